"""A study in the terms of Optuna: its space as distributions, its recorded trials as trials. May import Optuna.

By records alone, so that the sampler and a storage that mirrors the records see the same, whenever they ask.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from study.designs.search.worth import constraint_attributes, constraints_of, merit
from study.errors import RecordError
from study.records.ledger import TrialRow, result_of
from study.records.request import TrialRequest
from study.space.domains import Choices, Range
from study.space.parameters import SCALE, Value
from study.space.spec import StudySpec

TRIAL = "trial"
"""User attribute that holds the number in the plan."""

Direction = Literal["maximize", "minimize"]


def distributions(spec: StudySpec) -> dict[str, BaseDistribution]:
    """Return what Optuna knows of the space: the scale and the tuned parameters."""
    scale = IntDistribution(min(spec.scales), max(spec.scales), log=True)
    return {SCALE: scale} | {name: _distribution(domain) for name, domain in spec.tuned.items()}


def _distribution(domain: Choices | Range) -> BaseDistribution:
    if isinstance(domain, Choices):
        return CategoricalDistribution(domain.choices)
    low, high, step = domain.low, domain.high, domain.step
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=domain.log, step=int(step or 1))
    return FloatDistribution(float(low), float(high), log=domain.log, step=None if step is None else float(step))


def fixed_by(request: TrialRequest) -> dict[str, Value]:
    """Return what the sampler is not asked for: the scale and a baseline's values."""
    return {SCALE: request.num_env_runners, **request.given}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a trial."""

    values: tuple[float, ...] | None
    """One for each objective; None for a trial without a score, which is a failure."""
    constraints: Mapping[str, float]
    """At most 0 where a constraint is kept."""


class Outcomes:
    """The trials of one study, as Optuna knows them."""

    def __init__(self, spec: StudySpec) -> None:
        """Take up a study of a space."""
        self._spec = spec
        self._known: dict[int, Outcome] = {}
        self.distributions: dict[str, BaseDistribution] = distributions(spec)

    def of(self, row: TrialRow) -> Outcome:
        """Return the outcome of a trial that has ended; it never changes afterwards."""
        if row.trial not in self._known:
            constraints = constraints_of(self._spec, row)
            self._known[row.trial] = Outcome(values=self._values(row), constraints=constraints)
        return self._known[row.trial]

    def _values(self, row: TrialRow) -> tuple[float, ...] | None:
        result = result_of(row)
        if row.status != "finished" or result is None or not math.isfinite(result):
            return None
        value = merit(self._spec, row)
        if self._spec.search.objective == "return_and_cpu_s":
            return value, row.summary.get("cpu_s_spent") or 0.0
        return (value,)

    def trial(self, row: TrialRow) -> FrozenTrial:
        """Return an Optuna trial that is whole: ended as on record, or else running with its parameters.

        Raises:
            RecordError: Its proposal does not lie in the space.
        """
        known: dict[str, Value] = {**row.proposed, SCALE: row.num_env_runners}
        outcome = self.of(row) if row.ended else None
        state, values = TrialState.RUNNING, None
        if outcome is not None:
            state, values = (TrialState.COMPLETE if outcome.values else TrialState.FAIL), outcome.values
        try:
            trial = create_trial(
                state=state,
                values=values,
                params={name: known[name] for name in self.distributions if name in known},
                distributions={name: domain for name, domain in self.distributions.items() if name in known},
                user_attrs={TRIAL: row.trial, "seed": row.seed, "baseline": row.anchor, **attributes(row)},
                system_attrs={} if outcome is None else constraint_attributes(outcome.constraints),
            )
        except (ValueError, TypeError) as error:
            raise RecordError(
                where=f"trial {row.trial}",
                rule="what was proposed must lie in the space",
                got=f"another value ({error})",
                fix="Restore records.jsonl and study.json from a backup.",
            ) from error
        trial.datetime_start = datetime.fromtimestamp(row.started)
        if row.ended and row.ended_at is not None:
            trial.datetime_complete = datetime.fromtimestamp(row.ended_at)
        return trial


def attributes(row: TrialRow) -> dict[str, Any]:
    """Return what people want to see of an ended trial beside its value."""
    if not row.ended:
        return {}
    return {"final_return": row.summary.get("final_return")} if row.status == "finished" else {"reason": row.reason}


def directions_of(spec: StudySpec) -> list[Direction]:
    """Return Optuna's directions of the space's objective."""
    return ["maximize", "minimize"] if spec.search.objective == "return_and_cpu_s" else ["maximize"]
