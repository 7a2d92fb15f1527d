"""Work on hosts before and after a run: examine them, prepare them, read their records."""
