"""Touches the world, one module per thing touched."""
