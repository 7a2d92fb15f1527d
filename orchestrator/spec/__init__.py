"""Reads cluster.yaml and returns a plan, or precise diagnostics."""
