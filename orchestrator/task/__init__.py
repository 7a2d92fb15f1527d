"""Runs inside the user's process. `orchestrator.runtime` is its door."""
