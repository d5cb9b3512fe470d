"""The policy of a trial: what a runner must know to act as it does, as a file and back. Imports RLlib and torch.

The folder is RLlib's checkpoint of the module, or of the modules of several agents, with the file of
`study.trial.weights`. Needs no Ray process.
"""

import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.rl_module import RLModule

from study.errors import RecordError
from study.ray_private import merged_connectors
from study.trial.experiment import Experiment, with_spaces
from study.trial.weights import STATE_FILE, State, packed_state

_TALKATIVE = ("ray._common.deprecation", "ray.rllib.algorithms.algorithm_config")
"""Loggers of RLlib that tell of its own deprecated calls, and of its new API stack."""


def state_of(algorithm: Algorithm) -> State:
    """Return what a runner must know to act as the policy does now: weights, and the states of the connectors.

    To be called where no learner is at work: it would change the policy meanwhile.
    """
    modules = f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}"
    learnt = algorithm.learner_group.get_state(components=[modules], inference_only=True)[COMPONENT_LEARNER]
    # RLlib merges the states of all runners into those of the local one, or into those that its state server holds.
    connectors = algorithm.env_runner_group.local_env_runner.get_state(not_components=COMPONENT_RL_MODULE)
    connectors |= merged_connectors(algorithm, timeout_s=algorithm.config.sample_timeout_s)
    return {**connectors, COMPONENT_RL_MODULE: learnt[COMPONENT_RL_MODULE]}


def pack_policy(module: RLModule, state: State) -> bytes:
    """Return a zip archive of a policy: unpacked, `RLModule.from_checkpoint` opens it, and `read_state` its numbers.

    The modules' classes are those of `module`, the numbers those of `state`, which `state_of` returned.
    """
    learnt = state[COMPONENT_RL_MODULE]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "policy"
        several = isinstance(module, MultiRLModule)
        module.save_to_path(folder, state=dict(learnt) if several else learnt[DEFAULT_MODULE_ID])
        (folder / STATE_FILE).write_bytes(packed_state(state))
        return Path(shutil.make_archive(f"{place}/packed", "zip", folder)).read_bytes()


def module_of(experiment: Experiment, state: State) -> RLModule:
    """Return the network of a space with the numbers of a policy, without its value function, as the runners have it.

    Raises:
        RecordError: The numbers are of another network than the space's.
    """
    config = with_spaces(experiment.config)
    learnt = state[COMPONENT_RL_MODULE][DEFAULT_MODULE_ID]
    weights = {name: torch.from_numpy(np.array(value)) for name, value in learnt.items()}
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    both = (config.observation_space, config.action_space)
    with torch.random.fork_rng(devices=()):
        module: RLModule = config.get_rl_module_spec(spaces={DEFAULT_MODULE_ID: both}, inference_only=True).build()
    shapes, given = (
        {name: tuple(value.shape) for name, value in each.items()} for each in (module.state_dict(), weights)
    )
    if wrong := [name for name in sorted({*shapes, *given}) if shapes.get(name) != given.get(name)]:
        what = "the environment" if experiment.judged is None else experiment.judged.id
        rule = f"the policy must fit {what} and the network of the space"
        got = f"another one: {wrong[0]} is {given.get(wrong[0])}, must be {shapes.get(wrong[0])}"
        raise RecordError(where="checkpoint", rule=rule, got=got, fix="Name the space that it was trained in.")
    module.load_state_dict(weights)
    return module
