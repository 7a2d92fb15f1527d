"""The ways to reach a host: SSH, a local process, Slurm, Kubernetes."""
