"""A setting of a study for use elsewhere: a plain RLlib script, or a space file. Text alone; no engine."""
