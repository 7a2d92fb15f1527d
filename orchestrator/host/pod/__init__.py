"""The entry of a pod: it starts one shim with one task, watches it, and answers Kubernetes by an exit code."""
