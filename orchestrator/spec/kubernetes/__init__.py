"""What a cluster spec is on Kubernetes: manifests for people who have a cluster, written and never sent."""
