"""What every environment runner of a trial shares; RLlib's own runners, real and emulated. Imports RLlib and torch.

RLlib's statistics are means of means and smoothed times; here every runner hands over sums, counts and raw
times. RLlib's own runners are below, as is what hosts many of them in one process, and `batched_runner` has ours.
"""

import functools
import math
import os
import pickle
import random
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from study.errors import TrialError
from study.trial.engine.envs.probing import why_not_here
from study.trial.engine.sampling.lanes import LaneLayout, lane_seed, noise_seed
from study.trial.failures import RunnerStartError, described, original, was_lost
from study.trial.measure import Place, ProcessMeasurement, RunnerMeasurement, Watch

Ended = list[tuple[float, int]]
"""(return, length) of training episodes that ended."""
Sample = tuple[list[SingleAgentEpisode], dict[str, Any], RunnerMeasurement]
"""Episodes, RLlib's own metrics, raw measurement."""
SampleReference = tuple[Any, dict[str, Any], RunnerMeasurement, dict[str, Any] | None]
"""The same with the episodes in the object store, for the learner alone; and what the runner's connectors know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerReport:
    """What a runner process says about itself once it is up."""

    place: Place
    lanes: tuple[tuple[int, int], ...]
    effective: Mapping[str, Any]
    """For the record of what was built."""


class DivergedError(ValueError):
    """The policy's outputs are not finite."""


def layout_of(config: AlgorithmConfig) -> LaneLayout:
    """Return the lanes of a configuration: those of the study, else one process for every runner."""
    runners, envs = max(config.num_env_runners, 1), config.num_envs_per_env_runner
    return getattr(config, "lane_layout", None) or LaneLayout(num_env_runners=runners, num_envs_per_env_runner=envs)


def is_hosted(config: AlgorithmConfig) -> bool:
    """Return whether a study hosts RLlib's remote runners in the main process: `HostedActor`."""
    return getattr(config, "hosted", False)


class Measuring(EnvRunner):
    """Lets a runner process measure its own sampling and say what it is; goes before one of RLlib's runners."""

    env: Any

    def __init__(self, *, config: AlgorithmConfig, worker_index: int, **kwargs: Any) -> None:
        try:
            self._start(config=config, worker_index=worker_index, **kwargs)
        except Exception as error:
            if worker_index == 0 or was_lost(error):
                raise  # the main process says itself where it is, and a lost process or node is no fault of this one
            runner = f"env runner {worker_index} on {ray.util.get_node_ip_address()} ({os.uname().nodename})"
            rule, fix = why_not_here(error, getattr(config, "env_id", ""))
            raise RunnerStartError(f"{runner}: {' '.join(f'{rule} Fix: {fix}'.split())}") from error

    def _start(self, *, config: AlgorithmConfig, worker_index: int, **kwargs: Any) -> None:
        self._reported: Ended = []
        """Episodes that ended before the last `get_metrics`, their earlier fragments included."""
        self._used: list[tuple[ProcessMeasurement, int]] = []
        """What each call of `sample` used since `taken`, and its environment steps."""
        self._seed_of_lanes: int | None = config.seed
        started_with = config
        # Threads of the main process are the learner's, and the randomness of the local runner too.
        if worker_index > 0 and not is_hosted(config):
            torch.set_num_threads(max(int(config.num_cpus_per_env_runner), 1))
        if worker_index > 0 and config.seed is not None:
            # RLlib's own seeding sets this flag by a function that imports torch's compiler: 55 MB in every runner.
            torch.set_deterministic_debug_mode("error")
            seed_globally(noise_seed(config.seed, worker_index))
            started_with = config.copy(copy_frozen=False).debugging(seed=None)
        super().__init__(config=started_with, worker_index=worker_index, **kwargs)
        if started_with is not config:
            self.config, self._seed = config, config.seed
        self._watch = Watch()

    @property
    def lanes(self) -> tuple[tuple[int, int], ...]:
        """(runner from 1, environment from 0) of every lane of this process, in lane order."""
        return layout_of(self.config).lanes_of(max(self.worker_index - 1, 0))

    def _measured(self, sample: Callable[[], list[Any]]) -> list[Any]:
        """Return the episodes of a call of RLlib's `sample`, or of one in its place, and note what it used.

        A `ValueError` says that a reward is not finite.
        """
        self._watch.start()
        episodes = sample()
        self._used.append((self._watch.stop(), sum(map(len, episodes))))
        _check_finite(episodes)
        return episodes

    def measured_sample(self) -> Sample:
        """Return one fragment of every lane with RLlib's metrics and the raw measurement.

        What the environment raises is in the measurement: RLlib hides it, and takes a runner that raises for dead.
        """
        try:
            episodes = self.sample()
        except Exception as error:  # noqa: BLE001 (the user's environment may raise anything)
            return [], {}, replace(self.taken(), failure=self._failure(error))
        return episodes, self.get_metrics(), self.taken()

    def _failure(self, error: Exception) -> TrialError:
        fix = f"Correct {getattr(self.config, 'script', '') or 'the environment'}: its traceback names the line."
        if isinstance(error, DivergedError):
            fix = "Lower lr, clip_param or num_epochs, or scale what is observed."
        where = f"env runner {self.worker_index}" if self.worker_index else "sampling in the main process"
        failure = TrialError(where=where, rule="sampling must not fail", got=described(original(error)), fix=fix)
        # Indented: of the lines that begin with an exception, the last one is taken for what ended the trial.
        failure.add_note(f"In {where}:\n{textwrap.indent(''.join(traceback.format_exception(error)), '  ')}")
        return failure

    def taken(self) -> RunnerMeasurement:
        """Return what was sampled since the last call, with the episodes that have ended."""
        used, env_steps, ended = [each for each, _ in self._used], sum(steps for _, steps in self._used), self._reported
        self._used, self._reported = [], []
        between = self._watch.stop()  # of which CPU time alone counts
        hosted = is_hosted(self.config)
        local = self.worker_index == 0 or hosted  # then the main process counts its own CPU time and memory
        pressures = [each.pressure_s for each in used if each.pressure_s is not None]
        return RunnerMeasurement(
            runner=0 if local else self.worker_index,
            num_runners=self.config.num_env_runners if hosted else len({runner for runner, _ in self.lanes}),
            wall_time_s=math.fsum(each.wall_time_s for each in used),
            env_steps=env_steps,
            episode_return_sum=math.fsum(total for total, _ in ended),
            num_episodes=len(ended),
            episode_len_sum=sum(length for _, length in ended),
            cpu_time_s=0.0 if local else math.fsum(each.cpu_time_s for each in (*used, between)),
            peak_rss_mb=0.0 if local else between.peak_rss_mb,
            pressure_s=math.fsum(pressures) if pressures else None,
        )

    def referenced_sample(self) -> SampleReference:
        """Return what `measured_sample` returns, with a reference, and the states of connectors, which RLlib merges."""
        episodes, metrics, measurement = self.measured_sample()
        # Ours has no connectors with states where samples are asked for by reference.
        states = self.get_state(not_components=COMPONENT_RL_MODULE) if isinstance(self, AsRLlib) else None
        return ray.put(episodes), metrics, measurement, states

    def report(self) -> RunnerReport:
        """Return what this process really is."""
        self._watch.skip()
        effective = {
            "runner_class": type(self).__name__,  # of the class that samples
            "torch_threads_runner": torch.get_num_threads(),
            "omp_num_threads_runner": os.environ.get("OMP_NUM_THREADS"),
        }
        return RunnerReport(
            place=Place(
                process="runner" if self.worker_index else "main",
                number=self.worker_index,
                runners=tuple(sorted({runner for runner, _ in self.lanes})),
                num_cpus=self.config.num_cpus_per_env_runner,
            ),
            lanes=self.lanes,
            effective=effective,
        )


class AsRLlib(Measuring):
    """RLlib's own sampling, also where the algorithm calls it; environments are seeded by lane, noise by runner."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.worker_index > 0 and self.config.seed is not None:
            # Anew: environments and module may have drawn while they were made.
            seed_globally(noise_seed(self.config.seed, self.worker_index))

    def sample(self, **kwargs: Any) -> Any:
        """Sample as RLlib does, and measure it; raise a `ValueError` where a reward is not finite."""
        return self._measured(functools.partial(super().sample, **kwargs))

    def get_metrics(self) -> Any:
        """Return RLlib's metrics, which forgets the episodes that ended: private lists, reported as smoothed means."""
        for last in self._done_episodes_for_metrics:
            pieces = [*self._ongoing_episodes_for_metrics.get(last.id_, ()), last]
            self._reported.append((math.fsum(piece.get_return() for piece in pieces), sum(map(len, pieces))))
        return super().get_metrics()

    def _try_env_reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset with a seed for every lane instead of RLlib's `seed + index`, which other runners use too.

        The method and the seed are private in RLlib. Source: https://github.com/ray-project/ray/issues/46986
        """
        seeds: Any = seed
        if seed is not None:
            seeds = [lane_seed(self.config.seed, *lane) for lane in self.lanes]
        return super()._try_env_reset(seed=seeds, options=options)


class StockEnvRunner(AsRLlib, SingleAgentEnvRunner):
    """RLlib's runner of one agent."""


class StockMultiAgentEnvRunner(AsRLlib, MultiAgentEnvRunner):
    """RLlib's runner of several agents; returns are sums over the agents, lengths are steps of the environment."""


def _check_finite(episodes: Sequence[Any]) -> None:
    for whole in episodes:
        for episode in whole.agent_episodes.values() if isinstance(whole, MultiAgentEpisode) else (whole,):
            rewards = np.asarray(episode.get_rewards())
            if not np.isfinite(rewards).all():
                index = int(np.flatnonzero(~np.isfinite(rewards))[0])
                step = episode.t_started + index + 1
                raise ValueError(f"rewards must be finite, got {rewards[index]} at step {step} of an episode")


def seed_globally(seed: int) -> None:
    """Seed what RLlib samples actions from (torch), and what a user's environment may use against advice."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the global generator is exactly what is meant)


# --- many of RLlib's own runners in the main process ------------------------------------------------------------------


class HostedActor:
    """Emulates one of RLlib's remote runners: to RLlib it is an actor of Ray's, which calls the runner in this process.

    The runner does what it does in a process of its own: it has its `worker_index`, its copy of the configuration and
    of `env_config`, its seeds, callbacks, connectors and metrics, and its own states of the global generators. Other
    globals of an environment or a module are shared by all.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """Make the runner."""
        self._globals: Any = None
        """Their states while others use them; None before the first use."""
        with self._in_turn(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Overriding environment")  # RLlib registers it for each runner
            self._runner = make()

    def ask(self, method: str) -> Any:
        """Return a copy of what a method of the runner returns, as another process would send.

        RLlib's learner changes the episodes that it is given, and a runner goes on with its own.
        """
        with self._in_turn():
            return pickle.loads(cloudpickle.dumps(getattr(self._runner, method)()))

    @property
    def apply(self) -> Any:
        """What RLlib calls an actor by: `apply.remote(func=…, **arguments)` returns a reference."""
        return SimpleNamespace(remote=self._applied)

    def _applied(self, func: Callable[..., Any], **given: Any) -> ray.ObjectRef:
        arguments = {name: ray.get(each) if isinstance(each, ray.ObjectRef) else each for name, each in given.items()}
        with self._in_turn():
            return ray.put(func(self._runner, **arguments))

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        others = generators_now()
        if self._globals is None:  # a runner with a seed seeds them by itself
            seed_globally(int(np.random.SeedSequence().generate_state(1)[0]))
        else:
            set_generators(self._globals)
        try:
            yield
        finally:
            self._globals = generators_now()
            set_generators(others)


def generators_now() -> tuple[Any, Any, Any, int]:
    """Return the states of the global generators of this process, and of torch's determinism."""
    numpy_state = np.random.get_state()  # noqa: NPY002 (RLlib's runners use it)
    return torch.get_rng_state(), numpy_state, random.getstate(), torch.get_deterministic_debug_mode()


def set_generators(states: tuple[Any, Any, Any, int]) -> None:
    """Put back what `generators_now` returned."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])
    torch.set_deterministic_debug_mode(states[3])
