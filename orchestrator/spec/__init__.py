"""Reads people's files: cluster.yaml in, a plan or precise diagnostics out."""
