"""What a planned trial is to run: given by the plan, proposed before, or proposed now by Optuna, for its own scale.

The records are the only truth: a proposal follows from the space, the trial's place in the plan and the trials on
record. A study that was killed and resumed therefore proposes what it would have proposed without the kill.

A sampler that models the scale as one more parameter proposes for every scale what works at the easiest one. So each
proposal comes from a small study of its own: the trials at the dealt scale, filled up from the nearest scales while
there are few, each scored against the median of its own scale. It costs the same at trial 10 and at trial 10,000.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from study.designs.search import merit
from study.records.ledger import Ledger, TrialRow, result_of
from study.records.records import TrialRequest
from study.space.domains import Choices, Range
from study.space.parameters import SCALE, Value
from study.space.sections import Sampler
from study.space.spec import StudySpec

ENOUGH = 20
"""Scored trials below which neighbouring scales help out; TPE draws its first 10 at random."""
AT_MOST = 200
"""Scored trials of a scale beyond which the oldest are left out."""


class Observation(NamedTuple):
    """What is known of one setting at one scale: its tuned parameters as proposed, and what it is worth.

    `value` is None while the trial runs. A failure scores 0, and the model keeps away from there.
    """

    num_env_runners: int
    params: Mapping[str, Value]
    value: float | None


class Proposer:
    """Proposes what the trials of one study run, by its space and its records."""

    def __init__(self, spec: StudySpec, ledger: Ledger) -> None:
        """Take up a study; `ledger` grows meanwhile."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec, self._ledger = spec, ledger
        self._tuned = {name: domain for name, domain in distributions(spec).items() if name != SCALE}

    def ask(self, request: TrialRequest) -> tuple[dict[str, Value], int | None]:
        """Return the tuned parameters of a request's trial and their number among the proposals.

        They are those on record, where the trial was asked for before a kill; nothing where it needs no sampler.
        """
        if request.setting is not None:
            return {}, None
        known = self._known()
        earlier = self._ledger.rows.get(request.trial)
        if earlier is not None and earlier.optuna_number is not None:
            return dict(earlier.proposed), earlier.optuna_number
        values = request.given or propose(
            self._spec.search.sampler,
            num_env_runners=request.num_env_runners,
            space=self._tuned,
            observations=self._observations(known),
            index=request.index_at_scale,
            seed=self._spec.search.sampler_seed,
        )
        # Through Optuna's form of a value, so that 1 is 1.0 where the parameter is a float.
        return {
            name: domain.to_external_repr(domain.to_internal_repr(values[name])) for name, domain in self._tuned.items()
        }, len(known)

    def _known(self) -> list[TrialRow]:
        """Return the trials that the sampler knows, in the order of their proposals."""
        return [row for row in self._ledger.rows.values() if row.optuna_number is not None]

    def _observations(self, known: Sequence[TrialRow]) -> list[Observation]:
        """Return what is known of the trials, oldest first; one that is to run again counts as running."""
        values = {row.trial: value_of(self._spec, row) if row.ended else None for row in known}
        failure = min([0.0, *(value for value in values.values() if value is not None)])
        return [
            Observation(
                num_env_runners=row.num_env_runners,
                params={name: row.proposed[name] for name in self._tuned},
                value=failure if row.ended and values[row.trial] is None else values[row.trial],
            )
            for row in known
        ]


def propose(
    sampler: Sampler,
    *,
    num_env_runners: int,
    space: Mapping[str, BaseDistribution],
    observations: Sequence[Observation],
    index: int,
    seed: int,
) -> dict[str, Value]:
    """Return values for all parameters of `space` at a scale.

    A sampler that is not `tpe` learns nothing from the observations, which are all trials so far, the oldest first.
    `index` is the number of this trial among those of its scale, from 0: no proposal is ever made twice.
    """
    # A seed for each proposal, so that a resumed study neither repeats nor changes any. NumPy's old generator draws
    # alike for seeds that are near each other.
    mixed = int(np.random.SeedSequence((seed, num_env_runners, index)).generate_state(1)[0])
    # Running trials count as bad ones, so that trials side by side explore different settings.
    tpe = TPESampler(seed=mixed, multivariate=True, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=tpe if sampler == "tpe" else RandomSampler(seed=mixed))
    modelled = nearest(observations, num_env_runners) if sampler == "tpe" else []
    scored = defaultdict[int, list[float]](list)
    for each in modelled:
        scored[each.num_env_runners] += [] if each.value is None else [each.value]
    for each in modelled:
        value = None if each.value is None else each.value - statistics.median(scored[each.num_env_runners])
        state = TrialState.RUNNING if value is None else TrialState.COMPLETE
        study.add_trial(create_trial(state=state, value=value, params=dict(each.params), distributions=dict(space)))
    return dict(study.ask(dict(space)).params)


def nearest(observations: Sequence[Observation], num_env_runners: int) -> list[Observation]:
    """Return the latest observations at a scale, filled up to `ENOUGH` scored ones from the scales nearest in ratio."""

    def distance(scale: int) -> float:
        return abs(math.log(scale / num_env_runners))

    chosen: list[Observation] = []
    for scale in sorted({each.num_env_runners for each in observations}, key=distance):
        if scale != num_env_runners and sum(each.value is not None for each in chosen) >= ENOUGH:
            break
        chosen += [each for each in observations if each.num_env_runners == scale][-AT_MOST:]
    return chosen


# --- a study in the terms of Optuna -----------------------------------------------------------------------------------

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
    """Return an Optuna trial that is whole: ended as on record, or else running with its parameters."""
    known: dict[str, Value] = {**row.proposed, SCALE: row.num_env_runners}
    domains = {name: domain for name, domain in distributions(spec).items() if name in known}
    state, value, seen = TrialState.RUNNING, None, dict[str, Any]()
    if row.ended:
        value = value_of(spec, row)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        finished = row.status == "finished"
        seen = {"final_return": row.summary.get("final_return")} if finished else {"reason": row.reason}
    trial = create_trial(
        state=state,
        value=value,
        params={name: known[name] for name in domains},
        distributions=domains,
        user_attrs={TRIAL: row.trial, "seed": row.seed, "baseline": row.anchor, **seen},
    )
    trial.datetime_start = datetime.fromtimestamp(row.started)
    if row.ended and row.ended_at is not None:
        trial.datetime_complete = datetime.fromtimestamp(row.ended_at)
    return trial
