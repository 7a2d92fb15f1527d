"""Reads the configuration of other launchers into hosts and a command, and writes a cluster spec. Pure functions."""
