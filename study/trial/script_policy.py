"""The policy of a script's trial as a checkpoint and back: modules by RLlib, and the states of its connectors.

The folder is RLlib's checkpoint of the module, or of the modules of several agents; beside it lies one file more. What
is read back are numbers: the networks and the connectors come from the script's configuration. Imports RLlib and torch.
"""

import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule

from study.records.folder import archived
from study.space.spec import StudySpec
from study.trial.evaluation import EvaluationResult
from study.trial.script_evaluation import State, evaluate_script
from study.trial.weights import STATE_FILE, read_values, read_weights

CONNECTORS_FILE = "connectors.pkl"
"""States of the connectors in a checkpoint, as plain values."""


def pack_script_policy(algorithm: Algorithm, state: State) -> bytes:
    """Return a zip archive of a checkpoint: unpacked, `RLModule.from_checkpoint` opens it.

    The modules' classes are those of `algorithm`, the numbers those of `state`, which `state_of` returned.
    """
    module, learnt = algorithm.env_runner_group.local_env_runner.module, state[COMPONENT_RL_MODULE]
    connectors = {name: value for name, value in state.items() if name != COMPONENT_RL_MODULE}
    with tempfile.TemporaryDirectory() as folder:
        several = isinstance(module, MultiRLModule)
        module.save_to_path(folder, state=dict(learnt) if several else learnt[DEFAULT_MODULE_ID])
        (Path(folder) / CONNECTORS_FILE).write_bytes(pickle.dumps(connectors, protocol=5))
        return archived(Path(folder))


def read_state(checkpoint: Path) -> State:
    """Return what a runner must know to act as a checkpoint says, read without running what its files say.

    The folder is of `pack_script_policy`, unpacked; or RLlib's own, with stateless connectors.

    Raises:
        RecordError: It cannot be read, or a connector's state is more than numbers, texts, and arrays of numbers.
    """
    several = {
        file.parent.relative_to(checkpoint).as_posix(): read_weights(file.parent)
        for file in sorted(checkpoint.glob(f"*/**/{STATE_FILE}"))
    }
    file = checkpoint / CONNECTORS_FILE
    connectors: dict[str, Any] = read_values(file) if file.exists() else {}
    return {**connectors, COMPONENT_RL_MODULE: several or {DEFAULT_MODULE_ID: read_weights(checkpoint)}}


def play_checkpoint(
    config: AlgorithmConfig, checkpoint: Path | None, spec: StudySpec, *, keep_actions: int, first_episode: int
) -> EvaluationResult:
    """Play a checkpoint of `read_state` as its trial did, outside of a trial; without one, play random actions.

    Raises:
        RecordError: The checkpoint cannot be read.
        TrialError: As of `evaluate_script`; the policy may not fit the script.
    """
    # One thread more or less can round another last digit: as many as the trial had.
    torch.set_num_threads(spec.resources.num_cpus_for_main_process)
    state = None if checkpoint is None else read_state(checkpoint)
    return evaluate_script(config, state, spec, keep_actions=keep_actions, first_episode=first_episode)
