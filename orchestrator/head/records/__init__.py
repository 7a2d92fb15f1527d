"""What the head keeps on disk so that people can read it: logs, history, checkpoints."""
