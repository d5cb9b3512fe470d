"""The lanes of a trial: which process steps them, how many steps each gives to a train batch, and their seeds. Pure.

A lane is one environment of one runner. What a lane does depends on the trial's seed and the lane alone, so
the processes that step it can be many (a real trial: one per runner) or few (an emulated one). RLlib gives environment
i of runner w the seed `seed + w + i`, so that neighbouring runners play the same episodes; here no two lanes share one.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_TRAINING, _EVALUATION, _NOISE, _LANE_NOISE, _RANDOM_ACTION = 0, 1, 2, 3, 4
"""Spawn keys of independent streams under one seed."""
_NUMBERS_PER_BLOCK = 4
"""Philox yields four 64-bit numbers per count."""
_SIZE = 1 << 29
"""Each stream owns 2^29 seeds, so that all of them fit in 31 bits: some environments take no more."""
_LANES_PER_RUNNER = 4096
"""Room between the lanes of two runners; 2^29 / 4096 runners fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLayout:
    """The lanes of a trial, numbered runner by runner, and the processes that step them."""

    num_env_runners: int
    num_envs_per_env_runner: int
    emulated: bool = False
    """Whether one process steps all lanes; else each runner is one."""

    def lanes_of(self, process: int) -> tuple[tuple[int, int], ...]:
        """Return (runner from 1, environment from 0) of every lane of a process (from 0), in lane order."""
        runners = range(1, self.num_env_runners + 1) if self.emulated else (process + 1,)
        return tuple((runner, env) for runner in runners for env in range(self.num_envs_per_env_runner))

    def steps_of(self, process: int, env_steps: int) -> list[int]:
        """Return how many steps each lane of a process (from 0) gives to a train batch of exactly `env_steps` steps.

        The first `env_steps % num_lanes` lanes of the trial give one more than the others, in every layout.
        """
        share, extra = divmod(env_steps, self.num_env_runners * self.num_envs_per_env_runner)
        first = process * self.num_envs_per_env_runner
        return [share + (first + lane < extra) for lane in range(len(self.lanes_of(process)))]


def lane_seed(seed: int, runner_index: int, env_index: int) -> int:
    """Return the environment seed of one training lane: in [0, 2^29), distinct for every lane of the trial.

    Runners are numbered from 1 (RLlib's `worker_index`), below 131072, environments of a runner from 0, below 4096.
    """
    return _seed(seed, _TRAINING, runner_index * _LANES_PER_RUNNER + env_index)


def evaluation_seeds(first_seed: int, episodes: int, *, first_episode: int = 0) -> tuple[int, ...]:
    """Return the environment seeds of evaluation episodes from `first_episode` on, shape (episodes,).

    Episode e has the same seed however many episodes there are, and no two of the 2^29 episodes have the same one. The
    seeds lie in [2^29, 2^30), where no training lane's seed can be.
    """
    return tuple(_seed(first_seed, _EVALUATION, first_episode + number) for number in range(episodes))


def noise_seed(seed: int, runner_index: int) -> int:
    """Return the seed of a stock runner's action noise: in [2^30, 2^30 + 2^29), distinct for every runner."""
    return _seed(seed, _NOISE, runner_index)


def random_action_seed(seed: int, episode: int, step: int) -> int:
    """Return the seed of one action of a random policy, in [0, 2^64): of its place in its episode alone."""
    sequence = np.random.SeedSequence(seed, spawn_key=(_RANDOM_ACTION, episode, step))
    return int(sequence.generate_state(1, np.uint64)[0])


def _seed(seed: int, stream: int, index: int) -> int:
    """Return the `index`-th seed of a stream: a permutation of its 2^29 numbers that `seed` chooses."""
    state = np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(2)
    offset, factor = int(state[0]), int(state[1])
    # An odd factor is invertible modulo a power of two, so different indices never meet.
    return stream * _SIZE + (offset + (2 * factor + 1) * index) % _SIZE


class LaneNoise:
    """The action noise of one training lane: a sequence of uniform numbers that can be entered anywhere.

    Number i depends on the trial's seed, the lane and i alone (counter-based: Philox 4x64, Salmon et al.,
    "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
    """

    def __init__(self, seed: int, runner_index: int, env_index: int) -> None:
        """Choose the lane; arguments as in `lane_seed`."""
        sequence = np.random.SeedSequence(seed, spawn_key=(_LANE_NOISE, runner_index, env_index))
        self._key = sequence.generate_state(2, np.uint64)

    def uniforms(self, start: int, count: int) -> npt.NDArray[np.float64]:
        """Return the numbers `start` to `start + count` in the open interval (0, 1), shape (count,)."""
        block, skipped = divmod(start, _NUMBERS_PER_BLOCK)
        generator = np.random.Generator(np.random.Philox(key=self._key, counter=block))
        # 0 has probability 2^-53 and no finite normal quantile.
        return np.maximum(generator.random(skipped + count)[skipped:], 2.0**-54)
