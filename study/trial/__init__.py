"""One trial: one run of RLlib, measured."""
