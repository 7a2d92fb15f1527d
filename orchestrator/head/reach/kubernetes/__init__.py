"""Kubernetes: reaches pods, asks for the state of those that are lent, and gives them back."""
