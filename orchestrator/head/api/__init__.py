"""What the command line asks of the coordinator over its Unix socket: routes, server and client."""
