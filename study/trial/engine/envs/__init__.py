"""Environments, and the backends that step them."""
