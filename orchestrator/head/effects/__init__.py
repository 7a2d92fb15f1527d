"""What follows a change of state and decides nothing: history, messages, files that tasks left."""
