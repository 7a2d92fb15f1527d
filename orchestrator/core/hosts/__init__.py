"""The hosts of a run: their state, who may be given which tasks, and whether they fit together."""
