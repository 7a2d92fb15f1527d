"""What happens in each phase of a run, and when it moves to the next."""
