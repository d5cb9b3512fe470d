"""A hold-up study: which setting still learns at 40 and more runners. Stages, decisions, verdict."""
