"""Connections to hosts: opening them, sharing them, and the orders and replies that they carry."""
