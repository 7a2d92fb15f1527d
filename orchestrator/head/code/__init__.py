"""The code that is pushed to hosts: the bundle of orch itself, and the user's working directory."""
