"""Lanes, and the runners that step them."""
