"""What moves bytes between hosts and head: checkpoints, logs, TensorBoard files."""
