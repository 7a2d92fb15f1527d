"""A cluster spec on Kubernetes: its pods as hosts, and exported manifests that orch writes and never sends."""
