"""Fixes for Keras, and the callbacks that watch its training."""
