"""Runs that are made to learn something: `orch scale` and `orch prove`."""
