"""What a trial is to be, from the proposal to its record."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from study.space.parameters import Value
from study.space.settings import Variant

IN_DECISIONS = (
    *("stage", "num_env_runners", "seed", "setting", "name", "variant", "iterations", "group", "num_learners"),
    "first_episode",
)
"""The fields that a decision's `requests` hold, in the order in which they are written."""


class TrialRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial before it runs: everything about it that no sampler may choose."""

    num_env_runners: int
    seed: int
    trial: int = -1
    """Number in the study, from 0; `numbered` gives it."""
    stage: str | None = None
    """Stage of a hold-up study, or `throughput`."""
    setting: Mapping[str, Value] | None = None
    """A value for everything but the scale, rules included; None: the sampler proposes."""
    given: Mapping[str, Value] = {}
    """Where the sampler proposes: tuned parameters that are fixed beforehand."""
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
    index_at_scale: int = 0
    """Number among the trials of its scale that the sampler proposes, from 0."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON values that a decision keeps, without defaults."""
        written = msgspec.to_builtins(self)
        return {name: written[name] for name in IN_DECISIONS if name in written}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TrialRequest":
        """Read what `to_json` wrote.

        Raises:
            ValueError: It is something else.
        """
        return msgspec.convert({name: content[name] for name in IN_DECISIONS if name in content}, cls)


def numbered(requests: Iterable[TrialRequest]) -> tuple[TrialRequest, ...]:
    """Return the requests, which are in their order, with their numbers and those among the proposals of a scale."""
    proposed: Counter[int] = Counter()
    result = []
    for trial, request in enumerate(requests):
        result.append(structs.replace(request, trial=trial, index_at_scale=proposed[request.num_env_runners]))
        proposed[request.num_env_runners] += request.setting is None
    return tuple(result)


def digest_of(setting: Mapping[str, Value]) -> str:
    """Return the identity of a setting: equal for equal values, whatever their order.

    Args:
        setting: A value for every parameter except the scale, or for the rule in its place.
    """
    canonical = {name: float(value) for name, value in setting.items()}  # 1 and 1.0 are one value
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:12]
