"""Slurm: how its nodes are reached, what it knows of a job, and the script that asks it for nodes."""
