"""What some strategies need in the user's process before the script begins."""
