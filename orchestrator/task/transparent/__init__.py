"""Runs an unchanged Keras script under a strategy: provides its scope, shards its data, and lets it resume."""
