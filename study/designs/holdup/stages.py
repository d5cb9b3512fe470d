"""What stages are made of: requests for trials, and decisions. Pure values."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from study.space.parameters import Value

Stage = Literal["calibrate", "search", "race", "stress", "confirm", "measure"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In their order."""
Purpose = Stage | Literal["throughput"]
"""What a trial that was asked for is part of: a stage of a hold-up study, or a throughput study."""
THROUGHPUT: Purpose = "throughput"
SHARED = "shared"
"""Name of the measured trials that share the CPUs of one: several of equal scale and seed, side by side."""
Variant = Literal["study", "stock", "measured"]
"""`study`: as the space says. `stock`: RLlib's own runner and learner. `measured`: real runners, for the clock."""


def digest_of(setting: Mapping[str, Value]) -> str:
    """Return the identity of a setting: equal for equal values, whatever their order.

    Args:
        setting: A value for every parameter except the scale, or for the rule in its place.
    """
    canonical = {name: float(value) for name, value in setting.items()}  # 1 and 1.0 are one value
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A trial that a stage, or a throughput study, asks for."""

    stage: Purpose
    num_env_runners: int
    seed: int
    setting: Mapping[str, Value] | None = None
    """A value for everything but the scale, rules included; None: the sampler proposes."""
    name: str | None = None
    """Of a baseline or an arm, for people and for the certificate."""
    variant: Variant = "study"
    iterations: int | None = None
    """Limit of a short trial; None is the budget of the space."""
    group: int | None = None
    """Trials of one group run side by side, and nothing else does meanwhile."""
    told: bool = False
    """Whether Optuna is told of it: a look at a setting that the sampler proposed."""
    num_learners: int | None = None
    """Learner processes; None for the space's."""
    first_episode: int = 0
    """Number of the first evaluation episode that it plays."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, without defaults."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content["setting"] = None if self.setting is None else dict(self.setting)
        return {name: value for name, value in content.items() if value != self.__dataclass_fields__[name].default}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Request":
        """Read what `to_json` wrote."""
        return cls(**content)
