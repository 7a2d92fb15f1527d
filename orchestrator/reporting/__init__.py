"""Pure functions that turn state and events into texts and documents for people. Nothing here decides."""
