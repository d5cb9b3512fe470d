"""What a study will run and what it needs on a cluster. Pure."""
