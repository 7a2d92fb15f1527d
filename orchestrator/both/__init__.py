"""Runs on the head node and on hosts alike: files, sockets, processes. Standard library only."""
