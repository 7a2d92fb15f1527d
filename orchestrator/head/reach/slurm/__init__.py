"""Slurm: reaches nodes of a job, asks for the job's state, and writes the script that requests nodes."""
