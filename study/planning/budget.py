"""How far a trial has come, when it ends and when it is evaluated. Pure."""

import math
from dataclasses import dataclass

from study.space.sections import BudgetSpec

_ROUNDING = 1e-9
"""Shares of a budget are sums of floats; a point missed by less counts as reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one trial; the first one reached ends it."""

    env_steps: int | None
    iterations: int | None
    time_s: float | None

    def progress(self, *, env_steps: int, iterations: int, time_s: float) -> float:
        """Return the largest share of a limit that is used, in [0, 1]."""
        used = ((env_steps, self.env_steps), (iterations, self.iterations), (time_s, self.time_s))
        share = max(amount / limit for amount, limit in used if limit is not None)
        return 1.0 if share >= 1 - _ROUNDING else share


def trial_budget(spec: BudgetSpec, iterations: int | None) -> Budget:
    """Return the budget of a trial whose place in the plan limits it to `iterations`."""
    return Budget(env_steps=spec.env_steps, iterations=iterations, time_s=spec.time_s)


def evaluation_due(before: float, after: float, num_evaluations: int) -> bool:
    """Return whether an evaluation point lies in (`before`, `after`]; the points are 1/n, 2/n, …, 1."""
    return math.floor(after * num_evaluations + _ROUNDING) > math.floor(before * num_evaluations + _ROUNDING)
