"""The Python client of orch, for the command line, scripts and notebooks. See docs/python.md."""
