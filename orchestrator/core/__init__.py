"""Decides. Standard library only: no clock, I/O, thread, randomness or log."""
