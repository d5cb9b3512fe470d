"""A study in the terms of Optuna: its space as distributions, its recorded trials as trials. May import Optuna.

By records alone, so that the sampler and a storage that mirrors the records see the same, whenever they ask.
"""

import math
from datetime import datetime
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from study.designs.search.worth import merit
from study.errors import RecordError
from study.records.ledger import TrialRow, result_of
from study.space.domains import Choices, Range
from study.space.parameters import SCALE, Value
from study.space.spec import StudySpec

TRIAL = "trial"
"""User attribute that holds the number in the plan."""


def distributions(spec: StudySpec) -> dict[str, BaseDistribution]:
    """Return what Optuna knows of the space: the scale and the tuned parameters."""
    scale = IntDistribution(min(spec.scales), max(spec.scales), log=True)
    return {SCALE: scale} | {name: _distribution(domain) for name, domain in spec.tuned.items()}


def _distribution(domain: Choices | Range) -> BaseDistribution:
    if isinstance(domain, Choices):
        return CategoricalDistribution(domain.choices)
    low, high = domain.low, domain.high
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=domain.log)
    return FloatDistribution(float(low), float(high), log=domain.log)


def value_of(spec: StudySpec, row: TrialRow) -> float | None:
    """Return what an ended trial is worth, the more the better; None for one without a result, which is a failure."""
    result = result_of(row)
    known = row.status == "finished" and result is not None and math.isfinite(result)
    return merit(spec, row) if known else None


def trial_of(spec: StudySpec, row: TrialRow) -> FrozenTrial:
    """Return an Optuna trial that is whole: ended as on record, or else running with its parameters.

    Raises:
        RecordError: Its proposal does not lie in the space.
    """
    known: dict[str, Value] = {**row.proposed, SCALE: row.num_env_runners}
    domains = {name: domain for name, domain in distributions(spec).items() if name in known}
    state, value, seen = TrialState.RUNNING, None, dict[str, Any]()
    if row.ended:
        value = value_of(spec, row)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        finished = row.status == "finished"
        seen = {"final_return": row.summary.get("final_return")} if finished else {"reason": row.reason}
    try:
        trial = create_trial(
            state=state,
            value=value,
            params={name: known[name] for name in domains},
            distributions=domains,
            user_attrs={TRIAL: row.trial, "seed": row.seed, "baseline": row.anchor, **seen},
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
