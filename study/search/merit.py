"""What a trial is worth to the search: one number for each objective, larger is better, 0 for a failure. Pure."""

import math

from study.space.spec import StudySpec
from study.tracking.ledger import TrialRow

PRICES = ("env_steps_to_target", "time_to_target_s", "cpu_s_to_target")
"""Objectives that are a price of reaching the target."""


def merit(spec: StudySpec, row: TrialRow) -> float:
    """Return what a trial is worth: its score, or how cheaply it reached the target.

    A price p becomes 1 / (1 + p / whole), where whole is what the trial spent in all: 0.5 at the very end of the budget
    and more before; a trial that never reached the target is worth half its score at most, so that the search has a
    slope to climb there too. A failed trial is worth 0.
    """
    score = row.summary.get("score")
    if row.status != "finished" or score is None or not math.isfinite(score):
        return 0.0
    objective = spec.search.objective
    if objective not in PRICES:
        return score
    price = row.summary.get(objective)
    whole = row.summary.get(_WHOLE[objective])
    if price is None or whole is None or whole <= 0:
        return min(score, 1.0) * 0.49
    return 1 / (1 + price / whole)


_WHOLE = {"env_steps_to_target": "env_steps", "time_to_target_s": "wall_time_s", "cpu_s_to_target": "cpu_s_spent"}
"""Price -> what the whole trial spent of it."""
