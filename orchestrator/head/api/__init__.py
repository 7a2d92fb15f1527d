"""How one speaks to the coordinator over its Unix socket: the client, and the bound of what is sent."""
