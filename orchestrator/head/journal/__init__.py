"""The journal: the decisions of the coordinator, on disk."""
