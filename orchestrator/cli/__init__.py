"""Speaks with people: one module per command."""
