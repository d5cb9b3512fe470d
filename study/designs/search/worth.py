"""What a trial is worth to a search. Pure."""

import math

from study.records.ledger import TrialRow
from study.space.spec import StudySpec

PRICES = ("env_steps_to_target", "time_to_target_s", "cpu_s_to_target")
"""Objectives that are a price of reaching the target."""

TYPICAL_STEP_S = 1e-4
"""Seconds that an environment step takes here, sampling and learning: where prices differ most in worth."""


def merit(spec: StudySpec, row: TrialRow) -> float:
    """Return what a trial is worth: its score, or how cheaply it reached the target.

    A price p becomes 0.5 + 0.5 / (1 + p / unit), with one unit for the whole study: in (0.5, 1], and the cheaper the
    more. A trial that never reached the target is worth less than half, by its score, so that the search has a slope to
    climb there too. Without scores a return takes its place, squeezed into (0, 1) in its order. A failed trial is
    worth 0.
    """
    score = row.summary.get("score")
    if not spec.is_scored and (final := row.summary.get("final_return")) is not None:
        score = _squeezed(final)
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


def _squeezed(final_return: float) -> float:
    """Return a number in (0, 1) that grows with the return, by its order of magnitude."""
    if not math.isfinite(final_return):
        return 0.0
    return 0.5 + math.atan(math.copysign(math.log1p(abs(final_return)), final_return) / _TYPICAL) / math.pi


_TYPICAL = 5.0
"""Logarithm of a return of about 150, around which returns differ most in worth."""
MOST_COLLAPSE = 0.3
"""Score that a policy may lose between its best evaluation and the end."""
FEWEST_UPDATES = 20
"""Iterations below which a policy is starved: it has hardly been updated, whatever the batch."""


def score_lost(row: TrialRow, spec: StudySpec) -> float | None:
    """Return the score of the best evaluation less that at the end; None where one is not known."""
    peak, final = row.summary.get("peak_return"), row.summary.get("final_return")
    return None if peak is None or final is None or not spec.is_scored else spec.score(peak) - spec.score(final)
