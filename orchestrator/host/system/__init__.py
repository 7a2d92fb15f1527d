"""The host's operating system: processes, control groups, logs, directories."""
