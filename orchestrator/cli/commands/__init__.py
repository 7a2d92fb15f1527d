"""One module per command of `orch`."""
