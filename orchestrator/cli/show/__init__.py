"""Formats what people see in a terminal. Pure functions."""
