"""Runs on the head node."""
