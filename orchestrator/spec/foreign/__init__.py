"""What other launchers are told, read into hosts and a command, and written as a cluster spec. Pure functions."""
