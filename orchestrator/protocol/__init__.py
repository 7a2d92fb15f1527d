"""The protocol between coordinator, agent, shim and runtime: the types of all frames, and one table of the orders.

At run time, hosts import only `limits`. The types are for mypy, for the check of every frame that a host sends
(`check`), and for docs/protocol.md.
"""
