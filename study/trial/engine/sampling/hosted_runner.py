"""Many of RLlib's own env runners in the main process: how RLlib's runners are emulated. Imports RLlib and torch.

To RLlib a `HostedEnvRunner` is the local runner, where no other samples. It holds one of RLlib's runners for every
runner of the trial, and calls them in turn. Each does what it does in a process of its own: it has its `worker_index`,
its copy of the configuration and of `env_config`, its seeds, callbacks, connectors and metrics, and its own states of
the global generators of torch, NumPy and `random`, which are exchanged around every call. Other globals of an
environment or a module are shared by all.
"""

import copy
import dataclasses
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
import torch
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import (
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_MODULE_TO_ENV_CONNECTOR,
    COMPONENT_RL_MODULE,
)
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from study.trial.engine.sampling.runner import AsRLlib, Ended, layout_of, seed_globally
from study.trial.failures import original
from study.trial.measure import Watch

_PIPELINES = {
    COMPONENT_ENV_TO_MODULE_CONNECTOR: "_env_to_module",
    COMPONENT_MODULE_TO_ENV_CONNECTOR: "_module_to_env",
}
"""Part of a runner's state -> attribute of RLlib's runners."""


class _Hosted:
    """One of RLlib's runners, with the global states that it would have in a process of its own."""

    def __init__(self, number: int, make: Callable[[int], AsRLlib]) -> None:
        self.number = number
        self._globals: Any = None
        """Their states while others use them; None before the first use."""
        with self._in_turn():
            self.runner = make(number)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the runner; what it raises says which runner it was."""
        with self._in_turn():
            try:
                return getattr(self.runner, method)(*args, **kwargs)
            except Exception as error:
                original(error).add_note(f"It was env runner {self.number} of the trial")
                raise

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        others = _globals()
        if self._globals is None:  # a runner with a seed seeds them by itself
            seed_globally(int(np.random.SeedSequence().generate_state(1)[0]))
        else:
            _set_globals(self._globals)
        try:
            yield
        finally:
            self._globals = _globals()
            _set_globals(others)


def _globals() -> tuple[Any, Any, Any, int]:
    """Return the states of the global generators, and whether torch may use algorithms that are not deterministic."""
    numpy_state = np.random.get_state()  # noqa: NPY002 (RLlib's runners use it)
    return torch.get_rng_state(), numpy_state, random.getstate(), torch.get_deterministic_debug_mode()


def _set_globals(states: tuple[Any, Any, Any, int]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])
    torch.set_deterministic_debug_mode(states[3])


class HostedEnvRunner(AsRLlib):
    """Holds RLlib's runners of all lanes of a trial, each of the class `config.hosted_runner_cls`.

    Beside them it holds the local runner that RLlib has where all others are remote: it has no environments, and RLlib
    merges the states of the connectors in it. Evaluation runners are not hosted: there the local one is all.
    """

    def _start(self, *, config: AlgorithmConfig, worker_index: int, **kwargs: Any) -> None:
        unseeded = config.copy(copy_frozen=False).debugging(seed=None)
        EnvRunner.__init__(self, config=unseeded, worker_index=worker_index, **kwargs)
        self.config, self._seed_of_lanes = config, config.seed
        own, layout = config.copy(copy_frozen=False), layout_of(config)  # as in processes of their own
        if not config.in_evaluation:
            own.num_env_runners = layout.num_env_runners
        numbers = range(0) if config.in_evaluation else range(1, layout.num_env_runners + 1)
        own.num_envs_per_env_runner = layout.num_envs_per_env_runner
        own.lane_layout = dataclasses.replace(layout, emulated=False)
        own.env_runner_cls, own.hosted_runner_cls = config.hosted_runner_cls, None
        threads = torch.get_num_threads()

        def make(number: int, **changes: Any) -> AsRLlib:
            given = {**kwargs, "num_workers": own.num_env_runners, **changes}
            runner: AsRLlib = config.hosted_runner_cls(config=own.copy(copy_frozen=False), worker_index=number, **given)
            return runner

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Overriding environment")  # RLlib registers it for each runner
            self._hosted = [_Hosted(number, make) for number in numbers]
            torch.set_num_threads(threads)  # each set it as if the process were its own
            known = config.observation_space and config.action_space
            spaces = self._hosted[0].runner.get_spaces() if self._hosted and not known else kwargs.get("spaces")
            self._local = make(0, spaces=spaces)
        first = self._first
        self.env, self.num_envs, self.spaces = first.env, first.num_envs, getattr(first, "spaces", None)
        self._watch = Watch()

    # --- what RLlib takes for one runner's own ---------------------------------------------------------------------

    @property
    def _first(self) -> Any:
        """The first runner with environments; without one the local runner."""
        return self._hosted[0].runner if self._hosted else self._local

    @property
    def module(self) -> Any:
        """The policy: RLlib's algorithms take it from the local runner."""
        return self._local.module

    @property
    def _env_to_module(self) -> Any:
        return self._local._env_to_module

    @property
    def _module_to_env(self) -> Any:
        return self._local._module_to_env

    def get_spaces(self) -> Any:
        """Return the spaces of one environment and of those of one runner."""
        return self._first.get_spaces()

    def assert_healthy(self) -> None:
        """Raise where a runner was not made completely."""
        self._of_all("assert_healthy")

    def make_env(self) -> None:
        """Make the environments of every runner anew."""
        self._of_all("make_env")

    def stop(self) -> None:
        """Close the environments of every runner."""
        self._of_all("stop")
        self._local.stop()

    def _of_all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [hosted.call(method, *args, **kwargs) for hosted in self._hosted]

    # --- sampling --------------------------------------------------------------------------------------------------

    @property
    def env_steps_per_round(self) -> int:
        """Environment steps that a call of `sample` without arguments brings, at the least."""
        return sum(hosted.runner.env_steps_per_round for hosted in self._hosted)

    def _sample_unwatched(self, **kwargs: Any) -> list[Any]:
        """Return the episodes of every runner, in the order of the runners.

        They are copies, as other processes would send: RLlib's learner changes those that it is given, and a runner
        goes on with its own.
        """
        if not self._hosted:
            own: list[Any] = self._local._sample_unwatched(**kwargs)
            return own
        sampled = self._of_all("_sample_unwatched", **kwargs)
        return [episode for episodes in sampled for episode in pickle.loads(cloudpickle.dumps(episodes))]

    def get_metrics_of_runners(self) -> list[dict[str, Any]]:
        """Return the metrics of every runner."""
        return self._of_all("get_metrics") or [self._local.get_metrics()]

    def get_metrics(self) -> Any:
        """Return the metrics of all runners, as RLlib aggregates them."""
        self.metrics.aggregate(self.get_metrics_of_runners())
        return self.metrics.reduce()

    def _take_ended(self) -> Ended:
        return [ended for hosted in self._hosted for ended in hosted.runner._take_ended()]

    @property
    def _class_name(self) -> str:
        return str(self.config.hosted_runner_cls.__name__)

    # --- weights and connectors ------------------------------------------------------------------------------------

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the state of the local runner."""
        state: dict[str, Any] = self._local.get_state(*args, **kwargs)
        return state

    def set_state(self, state: Any) -> None:
        """Set the state of every runner, connectors included."""
        weights = state.get(COMPONENT_RL_MODULE)
        if isinstance(weights, ray.ObjectRef):
            state = {**state, COMPONENT_RL_MODULE: ray.get(weights)}
        of_local = of_runners = state
        if self._hosted and NUM_ENV_STEPS_SAMPLED_LIFETIME in state and not any(name in state for name in _PIPELINES):
            of_local, of_runners = self._synchronised(state)
        self._local.set_state(of_local)
        for hosted in self._hosted:  # with connector states of its own: RLlib's filters go on to change them
            own = {name: copy.deepcopy(of_runners[name]) for name in _PIPELINES if name in of_runners}
            hosted.call("set_state", of_runners | own)

    def _synchronised(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states that RLlib sets in the local runner and in all others once in an iteration.

        It gives its only runner the count of steps alone, where it would merge the states of many. These are the steps
        of `EnvRunnerGroup.sync_env_runner_states` of RLlib 2.60.
        """
        way, broadcasts = self.config.merge_env_runner_states, self.config.broadcast_env_runner_states
        merges = way is True or (way == "training_only" and not self.config.in_evaluation)
        if not merges and not broadcasts:
            return {}, {}
        if merges:
            states = copy.deepcopy(self._of_all("get_state", [*_PIPELINES]))
            merged = {
                name: getattr(self._local, attribute).merge_states([each[name] for each in states])
                for name, attribute in _PIPELINES.items()
            }
        else:
            merged = self._local.get_state([*_PIPELINES])
        steps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: state[NUM_ENV_STEPS_SAMPLED_LIFETIME]}
        return {**merged, **steps}, {**(merged if broadcasts else {}), **state}
