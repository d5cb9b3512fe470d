"""What a study remembers: the append-only log, and everything that follows from it. The only truth."""
