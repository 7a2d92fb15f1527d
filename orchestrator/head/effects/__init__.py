"""What follows a change of state and decides nothing: history, messages, traces, files that tasks left."""
