"""Runs on a host. Standard library only, Python 3.10."""
