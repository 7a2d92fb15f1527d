"""The head node's own disk and services: journal, state directory, logs, systemd."""
