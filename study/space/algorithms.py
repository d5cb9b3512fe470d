"""The algorithms: parameters that a space may give to each, and values that an algorithm fixes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticKnownError

from study.space.parameters import END_FRACTION, FRAGMENT, PARAMETERS, SCALE, Value
from study.space.script import ScriptFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm as a space knows it.

    Attributes:
        parameters: Names of `study.space.parameters` that a space may give.
        defaults: Defaults that differ from those of `study.space.parameters`.
        given: Parameters that the algorithm is defined by; a space does not give them.
        rules: The same for rules.
        asynchronous: Whether runners go on sampling while the learner learns; iterations are then a span of time.
    """

    parameters: tuple[str, ...]
    defaults: Mapping[str, Value] = field(default_factory=dict)
    given: Mapping[str, Value] = field(default_factory=dict)
    rules: Mapping[str, Value] = field(default_factory=dict)
    asynchronous: bool = False


_COMMON = (SCALE, "num_envs_per_env_runner", "train_batch_size", "lr", "gamma")
_LOSS = ("entropy_coeff", "grad_clip", "vf_loss_coeff")
_ACTOR_CRITIC = (*_COMMON, *_LOSS)
_ASYNCHRONOUS = (
    END_FRACTION,  # Espeholt et al. end at 0: nothing else bounds how far an update moves the policy
    FRAGMENT,
    "vtrace_clip_rho_threshold",
    "vtrace_clip_pg_rho_threshold",
)
_ONE_UPDATE: Mapping[str, Value] = {"num_minibatches": 1}
"""A batch is one minibatch, whatever its size."""
_RLLIB_ASYNCHRONOUS: Mapping[str, Value] = {
    "train_batch_size": 500,
    "num_envs_per_env_runner": 1,
    "lr": 5e-4,
    "entropy_coeff": 0.01,
    "grad_clip": 40.0,
}
"""RLlib's own defaults."""

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "PPO": Algorithm(  # Schulman et al., arXiv 1707.06347
            parameters=(
                *_COMMON,
                "minibatch_size",
                "num_epochs",
                "lambda",
                "clip_param",
                *_LOSS,
                "vf_clip_param",
                "kl_coeff",
                "kl_target",
            ),
        ),
        "A2C": Algorithm(  # Huang et al., A2C is a special case of PPO, arXiv 2205.09123
            parameters=_ACTOR_CRITIC,
            # Small batches, as there is one update for each; lr is that of Stable-Baselines3's A2C.
            defaults={"lr": 7e-4, "train_batch_size": 500},
            given={"num_epochs": 1, "lambda": 1.0, "kl_coeff": 0.0},
            rules=_ONE_UPDATE,
        ),
        "APPO": Algorithm(  # Luo et al., IMPACT, arXiv 1912.00167
            parameters=(
                *_ACTOR_CRITIC,
                "clip_param",
                "kl_coeff",
                "kl_target",
                *_ASYNCHRONOUS,
                "circular_buffer_num_batches",
                "circular_buffer_iterations_per_batch",
                "target_network_update_freq",
            ),
            defaults={**_RLLIB_ASYNCHRONOUS, "clip_param": 0.4, "kl_coeff": 0.0},
            given={"num_epochs": 1},
            rules=_ONE_UPDATE,
            asynchronous=True,
        ),
        "IMPALA": Algorithm(  # Espeholt et al., arXiv 1802.01561
            parameters=(*_ACTOR_CRITIC, *_ASYNCHRONOUS),
            defaults=_RLLIB_ASYNCHRONOUS,
            given={"num_epochs": 1},
            rules=_ONE_UPDATE,
            asynchronous=True,
        ),
    }
)

_OFF_POLICY = (*_COMMON, "grad_clip", FRAGMENT)
"""What RLlib's other algorithms have of our parameters."""


def of_script(facts: ScriptFacts) -> Algorithm:
    """Return what a space may give to a script's algorithm; its defaults are the script's values."""
    known = ALGORITHMS.get(facts.base_algorithm)
    taken = set(_OFF_POLICY if known is None else known.parameters)
    if known is not None:
        taken |= {"num_epochs", "minibatch_size", "lambda"} & facts.values.keys()
    return Algorithm(
        parameters=tuple(name for name in PARAMETERS if name in taken),
        asynchronous=facts.asynchronous,
    )


def _known(name: str, info: ValidationInfo) -> str:
    """Accept one of our algorithms, or whatever a script has."""
    if name not in ALGORITHMS and info.data.get("script") is None:
        *first, last = map(repr, ALGORITHMS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(first)} or {last}"})
    return name


AlgorithmName = Annotated[str, AfterValidator(_known), WithJsonSchema({"enum": list(ALGORITHMS), "type": "string"})]
"""The value of `algorithm`."""
