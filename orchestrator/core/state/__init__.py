"""The state of a run: what the coordinator believes."""
