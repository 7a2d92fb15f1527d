"""Why something ended, and what a person can do: first causes, failure signatures, sentences."""
