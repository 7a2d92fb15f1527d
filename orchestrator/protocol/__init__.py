"""The protocol: what coordinator, agent, shim and runtime say to each other, as types, and one table of the orders.

Hosts import nothing of this room when they run, but for `limits`: its types are for mypy, for the check of everything
that comes from a host (`check`), and for docs/protocol.md.
"""
