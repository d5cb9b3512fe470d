"""Hypothesis has no deadline: how long an example takes depends on what else the machine does."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
