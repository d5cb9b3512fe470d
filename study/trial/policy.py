"""A recorded policy at work again: the network of the space with the numbers of a checkpoint. Imports RLlib and torch.

Needs no Ray process. Nothing in the checkpoint says what the network is: the space does, as it did in the training.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.rl_module import RLModule

from study.errors import RecordError
from study.space.parameters import Value
from study.space.spec import StudySpec
from study.trial.algorithm import build_config
from study.trial.engine.envs.probing import Spaces
from study.trial.weights import Weights, read_weights

NOT_ACTING = ("vf.", "encoder.critic_encoder.", "_old_encoder.", "_old_pi.")
"""Parameters of the value function, and of APPO's target networks: checkpoints of RLlib's own have them, a policy that
acts has not."""
_TALKATIVE = ("ray._common.deprecation", "ray.rllib.algorithms.algorithm_config")
"""Loggers of RLlib that tell of its own deprecated calls, and of its new API stack."""
_SHOWN = 3
"""Differences that a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy, and how its actions reach the environment.

    Attributes:
        module: Without its value function, as the runners had it.
        normalize_actions: Whether actions in [-1, 1] are scaled to the bounds.
        clip_actions: Whether actions are clipped to the bounds when they are not scaled.
    """

    module: RLModule
    normalize_actions: bool
    clip_actions: bool


def load_policy(
    checkpoint: Path, spec: StudySpec, *, setting: Mapping[str, Value], seed: int, spaces: Spaces
) -> Policy:
    """Return the policy of a checkpoint that belongs to a space. Whether to trust the folder is the caller's to ask.

    Raises:
        RecordError: The checkpoint cannot be read, or its network is another one than the space's.
        SpaceError: RLlib refuses the space.
    """
    weights = {name: value for name, value in read_weights(checkpoint).items() if not name.startswith(NOT_ACTING)}
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    # A policy that only acts needs no JAX, whatever it has learnt by.
    acting = spec.model_copy(update={"learner": "rllib"})
    config = build_config(acting, setting=setting, seed=seed, spaces=spaces, execution="real")
    both = (spaces.observation_space, spaces.action_space)
    with torch.random.fork_rng(devices=()):
        module = config.get_rl_module_spec(spaces={DEFAULT_MODULE_ID: both}, inference_only=True).build()
    _check_fit(checkpoint, {name: tuple(value.shape) for name, value in module.state_dict().items()}, weights, spec)
    module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()})
    # One thread more or less can round another last digit: as many as the trial had.
    torch.set_num_threads(spec.resources.num_cpus_for_main_process)
    return Policy(
        module=module,
        normalize_actions=bool(config.normalize_actions),
        clip_actions=bool(config.clip_actions),
    )


def _check_fit(checkpoint: Path, wanted: Mapping[str, tuple[int, ...]], weights: Weights, spec: StudySpec) -> None:
    """Refuse parameters of other names or shapes than those of the network."""
    shapes = {name: value.shape for name, value in weights.items()}
    differing = [
        f"{name} is {_shape(shapes.get(name))}, must be {_shape(wanted.get(name))}"
        for name in (*wanted, *(name for name in shapes if name not in wanted))
        if shapes.get(name) != wanted.get(name)
    ]
    if differing:
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        rule = f"the policy must fit {spec.environment.id} and the network of the space"
        got, fix = f"another one: {'; '.join(differing[:_SHOWN])}{more}", "Name the space that it was trained in."
        raise RecordError(where=str(checkpoint), rule=rule, got=got, fix=fix)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else "x".join(map(str, shape)) or "one number"
