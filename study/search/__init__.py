"""How the next trial is chosen."""
