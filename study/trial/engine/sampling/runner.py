"""What every environment runner of a trial shares, and RLlib's stock runner with it. Imports RLlib and torch.

RLlib's statistics are means of means and smoothed times; here every runner hands over sums, counts and raw
times. RLlib's own runners are below, `batched_runner` has ours, and `hosted_runner` holds many of RLlib's own.
"""

import abc
import math
import os
import random
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from study.machine.host import read_peak_rss_mb
from study.trial.engine.envs.probing import why_not_here
from study.trial.engine.sampling.lanes import LaneLayout, lane_seed, noise_seed
from study.trial.failures import RunnerStartError, described, original, was_lost
from study.trial.measure import ProcessMeasurement, RunnerMeasurement, Watch
from study.trial.places import Place, here

Ended = list[tuple[float, int]]
"""(return, length) of training episodes that ended."""
Sample = tuple[list[SingleAgentEpisode], list[dict[str, Any]], RunnerMeasurement]
"""Episodes, RLlib's own metrics of each runner, raw measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReference:
    """A sample whose episodes go to the learner directly: `episodes` is their reference in the object store.

    `connectors` is the state of the runner's connectors, which RLlib merges; None where they have none.
    """

    episodes: Any
    metrics: list[dict[str, Any]]
    measurement: RunnerMeasurement
    connectors: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerReport:
    """What a runner process says about itself once it is up.

    The number of its place is RLlib's `worker_index`: from 1, or 0 for the main process. Its lanes are (runner from 1,
    environment from 0), and `class_name` is of the class that samples.
    """

    place: Place
    lanes: tuple[tuple[int, int], ...]
    env_steps_per_round: int
    class_name: str
    torch_threads: int
    omp_num_threads: str | None


class NonFiniteError(ValueError):
    """An environment returned a number that no learner can use."""


class DivergedError(ValueError):
    """The policy's outputs are not finite."""


def layout_of(config: AlgorithmConfig) -> LaneLayout:
    """Return the lanes of a configuration: those of the study, else one process for every runner."""
    layout: LaneLayout | None = getattr(config, "lane_layout", None)
    if layout is not None:
        return layout
    runners = max(config.num_env_runners, 1)
    return LaneLayout(num_env_runners=runners, num_envs_per_env_runner=config.num_envs_per_env_runner)


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
        self._seed_of_lanes: int | None = config.seed
        started_with = config
        # The local runner lives in the main process, whose threads and randomness are the learner's.
        if worker_index > 0:
            torch.set_num_threads(max(int(config.num_cpus_per_env_runner), 1))
        if worker_index > 0 and config.seed is not None:
            # RLlib's own seeding asks torch for deterministic algorithms by a function that imports torch's
            # compiler: 0.8 CPU seconds and 55 MB in every runner, with version 0.12.2. This sets the same flag.
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

    @property
    @abc.abstractmethod
    def env_steps_per_round(self) -> int:
        """Environment steps that a call of `sample` without arguments brings."""

    @abc.abstractmethod
    def _take_ended(self) -> Ended:
        """Return the episodes that ended before the last `get_metrics`, their earlier fragments included."""

    def _sample_unwatched(self, **kwargs: Any) -> Any:
        return self.sample(**kwargs)

    def get_metrics_of_runners(self) -> list[dict[str, Any]]:
        """Return RLlib's metrics of each runner that this process stands for, as far as they are kept apart."""
        return [self.get_metrics()]

    def measured_sample(self) -> Sample:
        """Return one fragment of every lane with RLlib's metrics and the raw measurement.

        An exception of the environment is returned in the measurement: RLlib wraps it in an empty
        `RuntimeError`, and takes a runner that raises for dead.
        """
        self._watch.start()
        try:
            episodes = self._sample_unwatched()
            measured = self._watch.stop()
            _check_finite(episodes)
        except Exception as error:  # noqa: BLE001 (the user's environment may raise anything)
            failed = self._measurement(self._watch.stop(), env_steps=0, ended=[])
            cause = original(error)
            notes = (note for note in getattr(cause, "__notes__", ()) if "\n" not in note)  # the others are tracebacks
            script = getattr(self.config, "script", "")
            fix = f"Correct {script}: its traceback names the line." if script else "Correct the environment."
            failed = replace(
                failed,
                error=". ".join([described(cause), *notes]).rstrip("."),
                fix="Lower lr, clip_param or num_epochs." if isinstance(error, DivergedError) else fix,
                traceback="".join(traceback.format_exception(error)),
            )
            return [], [], failed
        metrics = self.get_metrics_of_runners()
        measurement = self._measurement(measured, env_steps=sum(map(len, episodes)), ended=self._take_ended())
        return episodes, metrics, measurement

    def _measurement(self, measured: ProcessMeasurement, *, env_steps: int, ended: Ended) -> RunnerMeasurement:
        local = self.worker_index == 0  # then the main process counts its own CPU time and memory
        return RunnerMeasurement(
            runner=self.worker_index,
            num_runners=len({runner for runner, _ in self.lanes}),
            sampling_time_s=measured.wall_time_s,
            env_steps=env_steps,
            episode_return_sum=math.fsum(total for total, _ in ended),
            num_episodes=len(ended),
            episode_len_sum=sum(length for _, length in ended),
            cpu_time_s=0.0 if local else measured.cpu_time_s,
            peak_rss_mb=0.0 if local else measured.peak_rss_mb,
            pressure_s=measured.pressure_s,
        )

    def referenced_sample(self) -> SampleReference:
        """Return what `measured_sample` returns, with the episodes in the object store."""
        episodes, metrics, measurement = self.measured_sample()
        states = self._connector_states()
        return SampleReference(episodes=ray.put(episodes), metrics=metrics, measurement=measurement, connectors=states)

    def _connector_states(self) -> dict[str, Any] | None:
        return None

    @property
    def _class_name(self) -> str:
        return type(self).__name__

    def report(self) -> RunnerReport:
        """Return what this process really is."""
        self._watch.skip()
        return RunnerReport(
            place=here(
                "runner" if self.worker_index else "main",
                number=self.worker_index,
                runners=tuple(sorted({runner for runner, _ in self.lanes})),
                num_cpus=self.config.num_cpus_per_env_runner,
            ),
            lanes=self.lanes,
            env_steps_per_round=self.env_steps_per_round,
            class_name=self._class_name,
            torch_threads=torch.get_num_threads(),
            omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
        )


class MeasuredEnvRunner(Measuring, SingleAgentEnvRunner):
    """A runner of one agent."""


class AsRLlib(Measuring):
    """RLlib's own sampling; environments are seeded by lane, the action noise by runner.

    Also where the algorithm itself calls `sample`: `taken` says what all calls since the last one measured.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._sampled: list[tuple[ProcessMeasurement, int]] = []
        """Each call of `sample`: what it used, and its environment steps."""
        self._ended: Ended = []
        """Those since the measurement before, noted at each call of `get_metrics`."""
        super().__init__(**kwargs)
        if self.worker_index > 0 and self.config.seed is not None:
            # Anew: environments and module may have drawn while they were made.
            seed_globally(noise_seed(self.config.seed, self.worker_index))

    def sample(self, **kwargs: Any) -> Any:
        """Sample as RLlib does, and measure it.

        Raises:
            NonFiniteError: A reward is not finite.
        """
        self._watch.start()
        episodes = self._sample_unwatched(**kwargs)
        self._sampled.append((self._watch.stop(), sum(map(len, episodes))))
        _check_finite(episodes)
        return episodes

    def _sample_unwatched(self, **kwargs: Any) -> Any:
        return super().sample(**kwargs)

    def _connector_states(self) -> dict[str, Any] | None:
        states: dict[str, Any] = self.get_state(not_components=COMPONENT_RL_MODULE)
        return states

    def get_metrics(self) -> Any:
        """Return RLlib's metrics, which forgets the episodes that ended: private lists, reported as smoothed means."""
        for last in self._done_episodes_for_metrics:
            pieces = [*self._ongoing_episodes_for_metrics.get(last.id_, ()), last]
            self._ended.append((math.fsum(piece.get_return() for piece in pieces), sum(map(len, pieces))))
        return super().get_metrics()

    def taken(self) -> RunnerMeasurement:
        """Return what was sampled since the last call."""
        sampled, self._sampled = self._sampled, []
        pressures = [used.pressure_s for used, _ in sampled if used.pressure_s is not None]
        total = ProcessMeasurement(
            wall_time_s=math.fsum(used.wall_time_s for used, _ in sampled),
            cpu_time_s=self._watch.stop().cpu_time_s + math.fsum(used.cpu_time_s for used, _ in sampled),
            peak_rss_mb=read_peak_rss_mb(),
            pressure_s=math.fsum(pressures) if pressures else None,
        )
        return self._measurement(total, env_steps=sum(steps for _, steps in sampled), ended=self._take_ended())

    @property
    def env_steps_per_round(self) -> int:
        """Environment steps that a call of `sample` without arguments brings, at the least."""
        return int(self.config.get_rollout_fragment_length(self.worker_index) * self.num_envs)

    def _try_env_reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset with a seed for every lane instead of RLlib's `seed + index`, which other runners use too.

        The method and the seed are private in RLlib. Source: https://github.com/ray-project/ray/issues/46986
        """
        seeds: Any = seed
        if seed is not None:
            seeds = [lane_seed(self.config.seed, *lane) for lane in self.lanes]
        return super()._try_env_reset(seed=seeds, options=options)

    def _take_ended(self) -> Ended:
        ended, self._ended = self._ended, []
        return ended


class StockEnvRunner(AsRLlib, MeasuredEnvRunner):
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
                raise NonFiniteError(f"rewards must be finite, got {rewards[index]} at step {step} of an episode")


def seed_globally(seed: int) -> None:
    """Seed what RLlib samples actions from (torch), and what a user's environment may use against advice."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the global generator is exactly what is meant)
