"""What a trial is worth to the search: one number for each objective, larger is better, 0 for a failure. Pure."""

import math

from study.records.ledger import TrialRow
from study.space.spec import StudySpec

PRICES = ("env_steps_to_target", "time_to_target_s", "cpu_s_to_target")
"""Objectives that are a price of reaching the target."""

TYPICAL_STEP_S = 1e-4
"""Seconds that an environment step takes here, sampling and learning: where prices are told apart best."""


def merit(spec: StudySpec, row: TrialRow) -> float:
    """Return what a trial is worth: its score, or how cheaply it reached the target.

    A price p becomes 0.5 + 0.5 / (1 + p / unit), with one unit for the whole study: in (0.5, 1], and the cheaper the
    more. A trial that never reached the target is worth less than half, by its score, so that the search has a slope to
    climb there too. A failed trial is worth 0.
    """
    score = row.summary.get("score")
    if row.status != "finished" or score is None or not math.isfinite(score):
        return 0.0
    objective = spec.search.objective
    if objective not in PRICES:
        return score
    price = row.summary.get(objective)
    if price is None:
        return min(score, 1.0) * 0.49
    steps = spec.budget.env_steps or 10**6
    unit = steps if objective == "env_steps_to_target" else steps * TYPICAL_STEP_S
    return 0.5 + 0.5 / (1 + price / unit)
