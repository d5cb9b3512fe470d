"""RLlib's stock environment runner, with a seed per lane and raw measurements. Imports RLlib and torch.

RLlib's statistics are means of means and smoothed times; here every runner hands over sums, counts and raw
times.
"""

import math
import os
import random
import traceback
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from study.trial.failures import described, original
from study.trial.measure import ProcessMeasurement, RunnerMeasurement, Watch
from study.trial.seeds import lane_seed, noise_seed

Sample = tuple[list[SingleAgentEpisode], dict[str, Any], RunnerMeasurement]
"""Episodes, RLlib's own metrics, raw measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerReport:
    """What a runner says about itself once it is up."""

    runner: int
    class_name: str
    num_envs: int
    rollout_fragment_length: int
    torch_threads: int
    omp_num_threads: str | None
    node: str
    """Identity of the node, as Ray knows it."""
    node_address: str
    hostname: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """Training episodes that ended: their returns and lengths, both of shape (episodes,)."""

    returns: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()


class NonFiniteRewardError(ValueError):
    """An environment returned a reward that no learner can use."""


class MeasuringEnvRunner(SingleAgentEnvRunner):
    """Stock sampling, measured; lanes and action noise are seeded by `study.trial.seeds`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.worker_index > 0:
            # The local runner lives in the main process, whose randomness is the learner's.
            torch.set_num_threads(max(int(self.config.num_cpus_per_env_runner), 1))
            if self.config.seed is not None:
                _seed_globally(noise_seed(self.config.seed, self.worker_index))
        self._node = ray.get_runtime_context().get_node_id()
        self._watch = Watch()

    def _try_env_reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset with a seed for every lane instead of RLlib's `seed + index`, which other runners use too."""
        seeds: Any = seed
        if seed is not None:
            seeds = [lane_seed(self.config.seed, self.worker_index, index) for index in range(self.num_envs)]
        return super()._try_env_reset(seed=seeds, options=options)

    def measured_sample(self) -> Sample:
        """Return one fragment of every lane with RLlib's metrics and the raw measurement.

        An exception of the environment is returned in the measurement: RLlib wraps it in an empty
        `RuntimeError`, and takes a runner that raises for dead.
        """
        self._watch.start()
        try:
            episodes = self.sample()
            measured = self._watch.stop(self._node)
            self._check_rewards(episodes)
        except Exception as error:  # noqa: BLE001 (the user's environment may raise anything)
            failed = self._measurement(self._watch.stop(self._node), env_steps=0, ended=_Ended())
            trace = "".join(traceback.format_exception(error))
            return [], {}, replace(failed, error=described(original(error)), traceback=trace)
        measurement = self._measurement(measured, env_steps=sum(map(len, episodes)), ended=self._ended())
        return episodes, self.get_metrics(), measurement

    def _measurement(self, measured: ProcessMeasurement, *, env_steps: int, ended: _Ended) -> RunnerMeasurement:
        return RunnerMeasurement(
            runner=self.worker_index,
            sampling_time_s=measured.wall_time_s,
            env_steps=env_steps,
            episode_return_sum=math.fsum(ended.returns),
            num_episodes=len(ended.returns),
            episode_len_sum=sum(ended.lengths),
            cpu_time_s=measured.cpu_time_s,
            peak_rss_mb=measured.peak_rss_mb,
            pressure_s=measured.pressure_s,
            node=measured.node,
        )

    def _check_rewards(self, episodes: list[SingleAgentEpisode]) -> None:
        for episode in episodes:
            rewards = np.asarray(episode.get_rewards())
            if not np.isfinite(rewards).all():
                index = int(np.flatnonzero(~np.isfinite(rewards))[0])
                step = episode.t_started + index + 1
                raise NonFiniteRewardError(f"rewards must be finite, got {rewards[index]} at step {step} of an episode")

    def _ended(self) -> _Ended:
        """Return the episodes that ended in this sample, their earlier fragments included.

        To be called before `get_metrics`, which forgets them.
        """
        episodes = [
            [*self._ongoing_episodes_for_metrics.get(last.id_, ()), last] for last in self._done_episodes_for_metrics
        ]
        return _Ended(
            returns=tuple(math.fsum(piece.get_return() for piece in pieces) for pieces in episodes),
            lengths=tuple(sum(map(len, pieces)) for pieces in episodes),
        )

    def report(self) -> RunnerReport:
        """Return what this runner really is."""
        self._watch.skip()
        return RunnerReport(
            runner=self.worker_index,
            class_name=type(self).__name__,
            num_envs=self.num_envs,
            rollout_fragment_length=self.config.get_rollout_fragment_length(self.worker_index),
            torch_threads=torch.get_num_threads(),
            omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
            node=self._node,
            node_address=ray.util.get_node_ip_address(),
            hostname=os.uname().nodename,
            pid=os.getpid(),
        )


def _seed_globally(seed: int) -> None:
    """Seed what RLlib samples actions from (torch), and what a user's environment may use against advice."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the global generator is exactly what is meant)
