"""What the coordinator does with hosts before and after a run: look at them, prepare them, read their records."""
