"""The page: how runs are seen in a browser. It reads, as the command line does, and only this room knows the web."""
