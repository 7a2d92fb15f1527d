"""Horovod as far as orch knows it: the same environment, the same rendezvous; gradients are numbers in a list.

`make test-horovod` holds this package to the real one.
"""
