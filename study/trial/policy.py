"""The policy of a trial: what a runner must know to act as it does, as a file and back. Needs no Ray process.

The folder is RLlib's checkpoint of the module, or of the modules of several agents: a pickle, which is a program, for
whoever opens it with RLlib. Beside it lies a file that can hold nothing but values. It alone is read back, which runs
nothing: the networks and the connectors come from the study. RLlib and torch are imported where they are used.
"""

import io
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from study.errors import RecordError
from study.text import one_line

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.rllib.core.rl_module.rl_module import RLModule

STATE_FILE = "policy.msgpack"
"""Name of the state in a policy's folder."""
MODULES = "rl_module"
"""RLlib's name of the networks in the state of a runner."""
State = dict[str, Any]
"""What `EnvRunner.set_state` takes: the numbers of the modules, and the states of both connector pipelines."""
_ARRAY, _OTHER = 1, 2
"""Codes of an array in NumPy's own format, and of the name of what is neither a number, a text nor an array."""
_TALKATIVE = ("ray._common.deprecation", "ray.rllib.algorithms.algorithm_config")
"""Loggers of RLlib that tell of its own deprecated calls, and of its new API stack."""


def state_of(algorithm: "Algorithm") -> State:
    """Return what a runner must know to act as the policy does now; to be called where no learner is at work."""
    from study.ray_private import merged_connectors

    learnt = algorithm.learner_group.get_state(components=[f"learner/{MODULES}"], inference_only=True)["learner"]
    # RLlib merges the states of all runners into those of the local one, or into those that its state server holds.
    connectors = algorithm.env_runner_group.local_env_runner.get_state(not_components=MODULES)
    connectors |= merged_connectors(algorithm, timeout_s=algorithm.config.sample_timeout_s)
    return {**connectors, MODULES: learnt[MODULES]}


def pack_policy(module: "RLModule", state: State) -> bytes:
    """Return a zip archive of a policy: unpacked, `RLModule.from_checkpoint` opens it, and `read_state` its numbers.

    The modules' classes are those of `module`, the numbers those of `state`, which `state_of` returned.
    """
    from ray.rllib.core import DEFAULT_MODULE_ID
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule

    learnt = dict(state[MODULES])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "policy"
        module.save_to_path(folder, state=learnt if isinstance(module, MultiRLModule) else learnt[DEFAULT_MODULE_ID])
        (folder / STATE_FILE).write_bytes(packed_state(state))
        return Path(shutil.make_archive(f"{place}/packed", "zip", folder)).read_bytes()


def packed_state(state: Mapping[str, Any]) -> bytes:
    """Return a state as bytes; of what is no plain value, as a connector of one's own may have, only its name."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic) and isinstance(number := value.item(), (bool, int, float, str)):
            return number
        if isinstance(value, np.ndarray) and value.dtype != object:
            stream = io.BytesIO()
            np.save(stream, value, allow_pickle=False)
            return msgspec.msgpack.Ext(_ARRAY, stream.getvalue())
        if isinstance(value, Mapping):
            return dict(value)
        return msgspec.msgpack.Ext(_OTHER, type(value).__name__.encode())

    return msgspec.msgpack.encode(state, enc_hook=plain)


def read_state(checkpoint: Path) -> State:
    """Return what a runner must know to act as a policy does; a `RecordError` says why the folder holds no such."""

    def value_of(code: int, content: memoryview) -> Any:
        if code != _ARRAY:
            name = bytes(content[:100]).decode(errors="replace")
            raise ValueError(f"a connector's state has a {name}, which is no value")
        return np.load(io.BytesIO(content), allow_pickle=False)

    file = checkpoint / STATE_FILE
    try:
        state: State = msgspec.msgpack.decode(file.read_bytes(), ext_hook=value_of)
        numbers = (each for module in state[MODULES].values() for each in module.values())
        if not all(isinstance(each, np.ndarray) and each.dtype.kind in "fiub" for each in numbers):
            raise ValueError("no arrays of numbers")
    except Exception as error:  # whatever a damaged file raises
        rule, got = "must hold the numbers of a policy", f"another file ({one_line(str(error), 200)})"
        if isinstance(error, OSError):
            rule, got = "must be a file that you can read", str(error.strerror)
        fix = "Restore the folder from a backup, or train the setting again."
        raise RecordError(where=str(file), rule=rule, got=got, fix=fix) from error
    return state


def module_of(config: "AlgorithmConfig", state: State) -> "RLModule":
    """Return the network of a study with the numbers of a policy, without its value function, as the runners have it.

    Raises:
        RecordError: The numbers are of another network than the space's.
    """
    import torch
    from ray.rllib.core import DEFAULT_MODULE_ID

    from study.trial.experiment import with_spaces

    config = with_spaces(config)
    weights = {name: torch.from_numpy(np.array(each)) for name, each in state[MODULES][DEFAULT_MODULE_ID].items()}
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
    both = (config.observation_space, config.action_space)
    with torch.random.fork_rng(devices=()):
        module: RLModule = config.get_rl_module_spec(spaces={DEFAULT_MODULE_ID: both}, inference_only=True).build()
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:  # which names what differs
        rule, got = "the policy must fit the environment and the network of the space", one_line(str(error), 300)
        fix = "Name the space that it was trained in."
        raise RecordError(where="checkpoint", rule=rule, got=got, fix=fix) from error
    return module
