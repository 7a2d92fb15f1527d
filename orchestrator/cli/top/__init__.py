"""`orch top`: runs in a terminal, live. Only the command of that name imports this, since Textual takes its time."""
