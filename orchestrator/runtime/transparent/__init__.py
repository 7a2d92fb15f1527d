"""An unchanged Keras script under a strategy: its scope, its data, its files, its resume."""
