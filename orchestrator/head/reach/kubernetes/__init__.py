"""Kubernetes: how its pods are reached, what it knows of those that are lent, and how they are given back."""
