"""The Python client: what one can ask of orch, for the command line, scripts and notebooks. See docs/python.md."""
