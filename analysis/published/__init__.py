"""Scaling figures that others have published, read again with this project's definitions. Imports pandas; no engine."""

from analysis.published.audit import audit, claims, learner_ceiling, one_number

__all__ = ["audit", "claims", "learner_ceiling", "one_number"]
