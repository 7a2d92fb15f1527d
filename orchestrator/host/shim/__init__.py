"""The shim: the parent of one task. It keeps the log and the exit record, and outlives agent and coordinator."""
