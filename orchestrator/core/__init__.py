"""The pure core: decides what happens to a run. Standard library only: no clock, I/O, thread, randomness or log."""
