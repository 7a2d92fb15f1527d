"""The records that the head keeps on disk for people: logs, history, checkpoints."""
