"""What a trial is to be, from the proposal to its record."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from study.space.parameters import Value
from study.space.settings import Variant


class TrialRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial before it runs: everything about it that no sampler may choose. Decisions keep it in this order."""

    stage: str | None = None
    """Stage of a hold-up study, or `throughput`."""
    num_env_runners: int
    seed: int
    setting: Mapping[str, Value] | None = None
    """A value for everything but the scale, rules included; None: the sampler proposes."""
    name: str | None = None
    """Of a baseline, an arm or a cell, for people and for the certificate."""
    variant: Variant = "study"
    iterations: int | None = None
    """Limit of a short trial; None is the budget of the space."""
    group: int | None = None
    """Number of a trial that is timed with nothing beside it."""
    num_learners: int | None = None
    """Learner processes; None for the space's."""
    first_episode: int = 0
    """Number of the first evaluation episode that it plays."""
    given: Mapping[str, Value] = {}
    """Where the sampler proposes: tuned parameters that are fixed beforehand."""
    trial: int = -1
    """Number in the study, from 0; `numbered` gives it."""
    index_at_scale: int = 0
    """Number among the trials of its scale that the sampler proposes, from 0."""


def numbered(requests: Iterable[TrialRequest]) -> tuple[TrialRequest, ...]:
    """Return the requests, which are in their order, with their numbers and those among the proposals of a scale."""
    proposed: Counter[int] = Counter()
    result = []
    for trial, request in enumerate(requests):
        result.append(structs.replace(request, trial=trial, index_at_scale=proposed[request.num_env_runners]))
        proposed[request.num_env_runners] += request.setting is None
    return tuple(result)


def digest_of(setting: Mapping[str, Value]) -> str:
    """Return the identity of a setting without its scale: equal for equal values, whatever their order."""
    canonical = {name: float(value) for name, value in setting.items()}  # 1 and 1.0 are one value
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:12]
