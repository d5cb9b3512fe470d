"""What a setting must not do, however good its score: the constraints that Optuna is told. Pure."""

from collections.abc import Mapping

from study.records.ledger import TrialRow
from study.space.spec import StudySpec

MOST_COLLAPSE = 0.3
"""Score that a policy may lose between its best evaluation and the end."""
FEWEST_UPDATES = 20
"""Iterations below which a policy is starved: it has hardly been updated, whatever the batch."""


def constraints_of(spec: StudySpec, row: TrialRow) -> dict[str, float]:
    """Return constraint -> value, at most 0 where it is kept; none for a trial that did not finish."""
    if row.status != "finished" or row.last_iteration is None:
        return {}
    peak, final = row.summary.get("peak_return"), row.summary.get("final_return")
    values: dict[str, float] = {"policy updates": float(FEWEST_UPDATES - row.last_iteration.iteration)}
    if peak is not None and final is not None:
        values["late collapse"] = spec.score(peak) - spec.score(final) - MOST_COLLAPSE
    least, rate = spec.search.min_env_steps_per_s, row.summary.get("env_steps_per_s")
    if least is not None and rate is not None and row.timing == "measured":
        values["throughput"] = 1 - rate / least
    return values


def constraint_attributes(constraints: Mapping[str, float]) -> dict[str, float]:
    """Return constraints as Optuna 5 keeps them with a trial; for trials that are added whole."""
    return {f"constraints:{name}": value for name, value in constraints.items()}
