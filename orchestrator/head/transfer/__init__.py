"""Transfers between hosts and head: checkpoints, logs, and TensorBoard's files."""
