"""What a planned trial is to run: given by the plan, proposed before, or proposed now by Optuna, for its own scale.

The records are the only truth: a proposal follows from the space, the trial's place in the plan and the trials on
record. A study that was killed and resumed therefore proposes what it would have proposed without the kill.

A sampler that models the scale as one more parameter proposes for every scale what works at the easiest one. So each
proposal comes from a small study of its own: the trials at the dealt scale, filled up from the nearest scales while
there are few, each scored against the median of its own scale. It costs the same at trial 10 and at trial 10,000.
"""

import math
import statistics
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial
from scipy.stats import qmc

from study.designs.search.outcome import Direction, Outcomes, directions_of, distributions, fixed_by
from study.designs.search.worth import constraint_attributes
from study.records.ledger import Ledger, TrialRow
from study.records.request import TrialRequest
from study.space.parameters import Value
from study.space.sections import Sampler
from study.space.spec import StudySpec

ENOUGH = 20
"""Scored trials below which neighbouring scales help out; TPE and GP draw their first 10 at random."""
AT_MOST = 200
"""Scored trials beyond which the oldest are left out."""
MODELLING: frozenset[Sampler] = frozenset({"tpe", "gp"})
"""Samplers that learn from the trials so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is known of one setting at one scale."""

    num_env_runners: int
    params: Mapping[str, Value]
    """The tuned parameters, as proposed."""
    values: tuple[float, ...] | None
    """One for each objective; None while the trial runs. A failure scores 0, and the model keeps away from there."""
    constraints: Mapping[str, float] = field(default_factory=dict)
    """At most 0 where a constraint is kept."""


class Proposer:
    """Proposes what the trials of one study run, by its space and its records."""

    def __init__(self, spec: StudySpec, ledger: Ledger) -> None:
        """Take up a study; `ledger` grows meanwhile.

        Raises:
            RecordError: A proposal on record does not lie in the space.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._spec, self._ledger = spec, ledger
        self._distributions = distributions(spec)
        self._outcomes = Outcomes(spec)
        for row in self._known():
            self._outcomes.trial(row)

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
        sampler, fixed = self._spec.search.sampler, fixed_by(request)
        tuned = {name: self._distributions[name] for name in self._spec.tuned}
        values = fixed | propose(
            sampler,
            num_env_runners=request.num_env_runners,
            given={name: value for name, value in fixed.items() if name in tuned},
            space=tuned,
            observations=self._observations(known, list(tuned)) if sampler in MODELLING else [],
            index=request.index_at_scale,
            seed=self._spec.search.sampler_seed,
            directions=directions_of(self._spec),
        )
        # Through Optuna's form of a value, so that 1 is 1.0 where the parameter is a float.
        proposed = {
            name: tuned[name].to_external_repr(tuned[name].to_internal_repr(value))
            for name, value in values.items()
            if name in tuned
        }
        return proposed, len(known)

    def _known(self) -> list[TrialRow]:
        """Return the trials that the sampler knows, in the order of their proposals."""
        return [row for row in self._ledger.rows.values() if row.optuna_number is not None]

    def _observations(self, known: list[TrialRow], names: list[str]) -> list[Observation]:
        """Return what is known of the latest trials of each scale, oldest first; the sampler uses no more of them.

        A trial that is to run again counts as running.
        """
        failed = self._value_of_failure(known)
        wanted = set(names)
        observations: list[Observation] = []
        at_scale: Counter[int] = Counter()
        for row in reversed(known):
            if not row.proposed.keys() >= wanted:
                continue
            at_scale[row.num_env_runners] += 1
            if at_scale[row.num_env_runners] > AT_MOST:
                continue
            outcome = self._outcomes.of(row) if row.ended else None
            observations.append(
                Observation(
                    num_env_runners=row.num_env_runners,
                    params={name: row.proposed[name] for name in names},
                    values=None if outcome is None else outcome.values or failed,
                    constraints={} if outcome is None else outcome.constraints,
                )
            )
        return observations[::-1]

    def _value_of_failure(self, known: list[TrialRow]) -> tuple[float, ...]:
        """Return what the model is given for a trial without values: at most 0, at twice the highest price."""
        ended = [row for row in known if row.ended]
        if self._spec.search.objective != "return_and_cpu_s":
            values = (self._outcomes.of(row).values for row in ended)
            return (min([0.0, *(each[0] for each in values if each is not None)]),)
        prices = [row.summary.get("cpu_s_spent") or 0.0 for row in self._ledger.rows.values() if row.ended]
        return 0.0, 2 * max(prices, default=1.0)


def propose(
    sampler: Sampler,
    *,
    num_env_runners: int,
    given: Mapping[str, Value],
    space: Mapping[str, BaseDistribution],
    observations: Sequence[Observation],
    index: int,
    seed: int,
    directions: Sequence[Direction] = ("maximize",),
) -> dict[str, Value]:
    """Return values for all parameters of `space` at a scale.

    Args:
        sampler: The space's sampler.
        num_env_runners: The dealt scale.
        given: Parameters that a baseline or the grid fixes.
        space: The tuned parameters.
        observations: All trials so far, oldest first; none for a sampler that is not among `MODELLING`.
        index: Number of this trial among those of its scale, from 0: no proposal is ever made twice.
        seed: Of the study.
        directions: Optuna's, one for each objective.
    """
    if set(given) == set(space):
        return dict(given)
    if sampler == "qmc":
        return _sobol(space, index=index, seed=_mixed(seed, num_env_runners)) | dict(given)
    modelled = nearest(observations, num_env_runners) if sampler in MODELLING else []
    medians = _medians(modelled)
    # A seed for each proposal, so that a resumed study neither repeats nor changes any.
    study = optuna.create_study(
        directions=list(directions), sampler=_sampler(sampler, _mixed(seed, num_env_runners, index))
    )
    names = dict.fromkeys(name for each in modelled for name in each.constraints) if sampler == "gp" else {}
    for each in modelled:
        values = (
            None
            if each.values is None
            else [value - median for value, median in zip(each.values, medians[each.num_env_runners], strict=True)]
        )
        study.add_trial(
            create_trial(
                state=TrialState.RUNNING if values is None else TrialState.COMPLETE,
                values=values,
                params=dict(each.params),
                distributions=dict(space),
                # GP wants the same constraints of every trial; one that failed has none and is on the edge of each.
                system_attrs=constraint_attributes(dict.fromkeys(names, 0.0) | dict(each.constraints)),
            )
        )
    study.enqueue_trial(dict(given))
    return dict(study.ask(dict(space)).params)


def _sobol(space: Mapping[str, BaseDistribution], *, index: int, seed: int) -> dict[str, Value]:
    """Return point `index` of a scrambled Sobol sequence over the space; every scale has a sequence of its own."""
    if not space:
        return {}
    sequence = qmc.Sobol(d=len(space), scramble=True, rng=np.random.default_rng(seed))
    if index:
        sequence.fast_forward(index)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # points are drawn one by one, not in powers of two
        point = sequence.random(1)[0]
    return {name: _at(domain, share) for (name, domain), share in zip(space.items(), point, strict=True)}


def _at(domain: BaseDistribution, share: float) -> Value:
    """Return the value at `share` in [0, 1) of a distribution."""
    if isinstance(domain, CategoricalDistribution):
        return domain.choices[int(share * len(domain.choices))]  # type: ignore[return-value]
    assert isinstance(domain, (FloatDistribution, IntDistribution))
    step = domain.step
    low, high = float(domain.low), float(domain.high)
    if (isinstance(domain, IntDistribution) and not domain.log) or (step is not None and not domain.log):
        count = int((high - low) / (step or 1) + 1e-9) + 1
        value = domain.low + int(share * count) * (step or 1)
    elif domain.log:
        edge = 0.5 if isinstance(domain, IntDistribution) else 0.0  # each integer gets the interval around it
        value = math.exp(math.log(low - edge) + share * (math.log(high + edge) - math.log(low - edge)))
    else:
        value = low + share * (high - low)
    value = round(value) if isinstance(domain, IntDistribution) else value
    return min(max(value, domain.low), domain.high)  # rounding may lead out by a last digit


def nearest(observations: Sequence[Observation], num_env_runners: int) -> list[Observation]:
    """Return the observations at a scale, filled up to `ENOUGH` scored ones from the scales nearest in ratio."""

    def distance(scale: int) -> float:
        return abs(math.log(scale / num_env_runners))

    chosen: list[Observation] = []
    for scale in sorted({each.num_env_runners for each in observations}, key=distance):
        if scale != num_env_runners and sum(each.values is not None for each in chosen) >= ENOUGH:
            break
        chosen += [each for each in observations if each.num_env_runners == scale][-AT_MOST:]
    return chosen


def _medians(observations: Sequence[Observation]) -> dict[int, list[float]]:
    by_scale: dict[int, list[tuple[float, ...]]] = {}
    for each in observations:
        if each.values is not None:
            by_scale.setdefault(each.num_env_runners, []).append(each.values)
    return {
        scale: [statistics.median(column) for column in zip(*rows, strict=True)] for scale, rows in by_scale.items()
    }


def _mixed(*numbers: int) -> int:
    """Return a seed far from those of neighbouring numbers; NumPy's old generator draws alike for 0 and 3."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _sampler(name: Sampler, seed: int) -> BaseSampler:
    match name:
        case "gp":
            import torch

            torch.set_num_threads(1)  # on cores that trials keep busy, a second thread makes a fit 20 times slower
            return GPSampler(seed=seed)
        case "tpe":
            # Running trials count as bad ones, so that trials side by side explore different settings.
            return TPESampler(seed=seed, multivariate=True, constant_liar=True)
        case _:
            return RandomSampler(seed=seed)
