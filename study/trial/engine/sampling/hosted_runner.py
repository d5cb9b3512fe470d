"""Many of RLlib's own env runners in one process: how runners that RLlib made are emulated. Imports RLlib and torch.

To RLlib a `HostedEnvRunner` is one runner, the local one or one of a few remote ones. It holds one of RLlib's runners
for every runner of the trial whose lanes it has, and calls them in turn. Each does what it does in a process of its
own: it has its `worker_index`, its copy of the configuration and of `env_config`, its seeds, callbacks, connectors and
metrics, and its own states of the global generators of torch, NumPy and `random`, which are exchanged around every
call. Other globals of an environment or a module are shared by all that share the process.
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
_CONNECTORS = list(_PIPELINES)


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


class _MergesHosted:
    """A connector pipeline of the local runner, which is given one list of states by each process of hosted runners."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def merge_states(self, states: list[Any]) -> Any:
        """Return the merged states of all runners, as if each had sent its own."""
        return self._pipeline.merge_states([state for each in states for state in each])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)


class HostedEnvRunner(AsRLlib):
    """Holds RLlib's runners of all lanes of a process, each of the class `config.hosted_runner_cls`.

    The local one holds beside them the local runner that RLlib has where all others are remote: it has no environments,
    and RLlib merges the states of the connectors in it. Evaluation runners are not hosted: there the local one is all.
    """

    def _start(self, *, config: AlgorithmConfig, worker_index: int, **kwargs: Any) -> None:
        if worker_index > 0:
            torch.set_num_threads(max(int(config.num_cpus_per_env_runner), 1))
        unseeded = config.copy(copy_frozen=False).debugging(seed=None)
        EnvRunner.__init__(self, config=unseeded, worker_index=worker_index, **kwargs)
        self.config, self._seed_of_lanes = config, config.seed
        self._kind: type[AsRLlib] = config.hosted_runner_cls
        layout, own = layout_of(config), _config_of_runners(config)
        samples = not config.in_evaluation and (worker_index > 0 or config.num_env_runners == 0)
        numbers = layout.runners_of(max(worker_index - 1, 0)) if samples else range(0)
        threads = torch.get_num_threads()

        def make(number: int, **changes: Any) -> AsRLlib:
            given = {**kwargs, "num_workers": own.num_env_runners, **changes}
            return self._kind(config=own.copy(copy_frozen=False), worker_index=number, **given)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Overriding environment")  # RLlib registers it for each runner
            self._hosted = [_Hosted(number, make) for number in numbers]
            torch.set_num_threads(threads)  # each set it as if the process were its own
            known = config.observation_space and config.action_space
            spaces = self._hosted[0].runner.get_spaces() if self._hosted and not known else kwargs.get("spaces")
            self._local = None if worker_index else make(0, spaces=spaces)
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
        return (self._local or self._first).module

    @property
    def _env_to_module(self) -> Any:
        return _MergesHosted((self._local or self._first)._env_to_module)

    @property
    def _module_to_env(self) -> Any:
        return _MergesHosted((self._local or self._first)._module_to_env)

    def get_spaces(self) -> Any:
        """Return the spaces of one environment and of those of one runner."""
        return self._first.get_spaces()

    def assert_healthy(self) -> None:
        """Raise where a runner was not made completely."""
        for hosted in self._hosted:
            hosted.runner.assert_healthy()

    def make_env(self) -> None:
        """Make the environments of every runner anew."""
        for hosted in self._hosted:
            hosted.call("make_env")

    def stop(self) -> None:
        """Close the environments of every runner."""
        for hosted in self._hosted:
            hosted.call("stop")
        if self._local is not None:
            self._local.stop()

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
            own: list[Any] = self._first._sample_unwatched(**kwargs)
            return own
        sampled = [hosted.call("_sample_unwatched", **kwargs) for hosted in self._hosted]
        return [episode for episodes in sampled for episode in pickle.loads(cloudpickle.dumps(episodes))]

    def get_metrics_of_runners(self) -> list[dict[str, Any]]:
        """Return the metrics of every runner."""
        if not self._hosted:
            return [self._first.get_metrics()]
        return [hosted.call("get_metrics") for hosted in self._hosted]

    def get_metrics(self) -> Any:
        """Return the metrics of all runners, as RLlib aggregates them."""
        self.metrics.aggregate(self.get_metrics_of_runners())
        return self.metrics.reduce()

    def _take_ended(self) -> Ended:
        return [ended for hosted in self._hosted for ended in hosted.runner._take_ended()]

    @property
    def _class_name(self) -> str:
        return self._kind.__name__

    # --- weights and connectors ------------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the state of the local runner; of a remote process lists with the connector states of its runners."""
        if self._local is not None:
            state: dict[str, Any] = self._local.get_state(components, not_components=not_components, **kwargs)
            return state
        states = [hosted.call("get_state", _CONNECTORS) for hosted in self._hosted]
        state = self._first.get_state(components, not_components=not_components, **kwargs)
        return state | {name: [each[name] for each in states] for name in _CONNECTORS if name in state}

    def set_state(self, state: Any) -> None:
        """Set the state of every runner, connectors included."""
        weights = state.get(COMPONENT_RL_MODULE)
        if isinstance(weights, ray.ObjectRef):
            state = {**state, COMPONENT_RL_MODULE: ray.get(weights)}
        of_local = of_runners = state
        merges = NUM_ENV_STEPS_SAMPLED_LIFETIME in state and not any(name in state for name in _CONNECTORS)
        if self._local is not None and self._hosted and merges:
            of_local, of_runners = self._synchronised(state)
        if self._local is not None:
            self._local.set_state(of_local)
        for index, hosted in enumerate(self._hosted):
            hosted.call("set_state", _own_state(of_runners, index))

    def _synchronised(self, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states that RLlib sets in the local runner and in all others once in an iteration.

        It gives its only runner the count of steps alone, where it would merge the states of many. These are the steps
        of `EnvRunnerGroup.sync_env_runner_states` of RLlib 2.60.
        """
        assert self._local is not None
        way, broadcasts = self.config.merge_env_runner_states, self.config.broadcast_env_runner_states
        merges = way is True or (way == "training_only" and not self.config.in_evaluation)
        if not merges and not broadcasts:
            return {}, {}
        if merges:
            states = [copy.deepcopy(hosted.call("get_state", _CONNECTORS)) for hosted in self._hosted]
            merged = {
                name: getattr(self._local, attribute).merge_states([each[name] for each in states])
                for name, attribute in _PIPELINES.items()
            }
        else:
            merged = self._local.get_state(_CONNECTORS)
        steps = {NUM_ENV_STEPS_SAMPLED_LIFETIME: state[NUM_ENV_STEPS_SAMPLED_LIFETIME]}
        return {**merged, **steps}, {**(merged if broadcasts else {}), **state}


def _config_of_runners(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return the configuration that RLlib's runners have in processes of their own."""
    own, layout = config.copy(copy_frozen=False), layout_of(config)
    if not config.in_evaluation:
        own.num_env_runners = layout.num_env_runners
    own.num_envs_per_env_runner = layout.num_envs_per_env_runner
    own.lane_layout = dataclasses.replace(layout, num_processes=layout.num_env_runners)
    own.env_runner_cls, own.hosted_runner_cls = config.hosted_runner_cls, None
    return own


def _own_state(state: dict[str, Any], index: int) -> dict[str, Any]:
    """Return a state for one runner, with connector states of its own: RLlib's filters go on to change them."""
    connectors = {name: state[name] for name in _CONNECTORS if name in state}
    return state | {
        name: copy.deepcopy(each[index] if isinstance(each, list) else each) for name, each in connectors.items()
    }
