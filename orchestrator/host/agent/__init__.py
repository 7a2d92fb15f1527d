"""The agent: one process per host, as long as the connection lasts. It runs orders and keeps nothing."""
