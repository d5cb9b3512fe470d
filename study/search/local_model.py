"""Model-based proposals for a scale that was dealt beforehand. May import Optuna.

A sampler that models the scale as one more parameter proposes for every scale what works at the easiest one. So each
proposal comes from a small study of its own: the trials at the dealt scale, filled up from the nearest scales while
there are few, each scored against the median of its own scale. It costs the same at trial 10 and at trial 10,000.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState, create_trial

from study.parameters import Value
from study.spec import Sampler

ENOUGH = 20
"""Scored trials below which neighbouring scales help out; TPE and GP draw their first 10 at random."""
AT_MOST = 200
"""Scored trials beyond which the oldest are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is known of one setting at one scale."""

    num_env_runners: int
    params: Mapping[str, Value]
    """The tuned parameters, as proposed."""
    score: float | None
    """None while the trial runs."""


def propose(
    sampler: Sampler,
    *,
    num_env_runners: int,
    given: Mapping[str, Value],
    space: Mapping[str, BaseDistribution],
    looks: Sequence[Look],
    seed: int,
) -> dict[str, Value]:
    """Return values for all parameters of `space` at a scale.

    Args:
        sampler: `tpe` or `gp`.
        num_env_runners: The dealt scale.
        given: Parameters that are already fixed.
        space: The tuned parameters.
        looks: All trials so far, oldest first.
        seed: Of this proposal alone.
    """
    near = nearest(looks, num_env_runners)
    medians = _medians(near)
    study = optuna.create_study(direction="maximize", sampler=_sampler(sampler, seed))
    for look in near:
        score = None if look.score is None else look.score - medians[look.num_env_runners]
        study.add_trial(
            create_trial(
                state=TrialState.RUNNING if score is None else TrialState.COMPLETE,
                value=score,
                params=dict(look.params),
                distributions=dict(space),
            )
        )
    study.enqueue_trial(dict(given))
    return dict(study.ask(dict(space)).params)


def nearest(looks: Sequence[Look], num_env_runners: int) -> list[Look]:
    """Return the looks at a scale, filled up to `ENOUGH` scored ones from the scales nearest in ratio."""

    def distance(scale: int) -> float:
        return abs(math.log(scale / num_env_runners))

    chosen: list[Look] = []
    for scale in sorted({look.num_env_runners for look in looks}, key=distance):
        if scale != num_env_runners and sum(look.score is not None for look in chosen) >= ENOUGH:
            break
        chosen += [look for look in looks if look.num_env_runners == scale][-AT_MOST:]
    return chosen


def _medians(looks: Sequence[Look]) -> dict[int, float]:
    by_scale: dict[int, list[float]] = {}
    for look in looks:
        if look.score is not None:
            by_scale.setdefault(look.num_env_runners, []).append(look.score)
    return {scale: statistics.median(scores) for scale, scores in by_scale.items()}


def _sampler(name: Sampler, seed: int) -> BaseSampler:
    # Running trials count as bad ones, so that trials side by side explore different settings.
    return GPSampler(seed=seed) if name == "gp" else TPESampler(seed=seed, multivariate=True, constant_liar=True)
