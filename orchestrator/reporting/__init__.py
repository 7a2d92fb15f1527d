"""Pure functions that turn state and events into what people read. Nothing here decides."""
