"""The batched environment runner: one forward pass per vector step over all lanes of a process. Imports RLlib.

RLlib's stock runner spends over nine tenths of a step on Python: connectors, per-step lists, timers, mode
switches. Here a fragment is a set of arrays, time by lane, that the environments write into; at its end the
arrays are cut into RLlib's episodes. What a lane does depends on the trial's seed and the lane alone (`lanes`), so the
same lanes can be stepped by one process or by many, up to the rounding of forward passes.
"""

import copy
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import ray
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core import COMPONENT_ENV_TO_MODULE_CONNECTOR
from ray.rllib.core.columns import Columns
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils import metrics as names

from study.ray_private import maker_of, pieces_to_module
from study.trial.engine.envs.environments import EnvFactory, make_lane_envs
from study.trial.engine.extensions import NormalizedObservations, scaled_by
from study.trial.engine.sampling.acting import action_rule, network_of, scaling_for_environment
from study.trial.engine.sampling.lanes import LaneNoise, lane_seed
from study.trial.engine.sampling.runner import DivergedError, Ended, Measuring, layout_of

Array = npt.NDArray[Any]
_Ends = list[list[tuple[int, Array]]]
"""Of each lane: (row after its last step, last observation) of every episode that ended in a fragment."""


@dataclass(slots=True, kw_only=True)
class _Rows:
    """A fragment of all lanes: row t is a step, shape (rows, lanes, …).

    `observations` are before the step, with one row more; `inputs` are those of the action distribution.
    """

    observations: Array
    actions: Array
    inputs: Array
    log_probs: Array
    rewards: Array
    terminated: Array
    truncated: Array


@dataclass(slots=True)
class _Ongoing:
    """The episode that a lane is in."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    length: int = 0
    total: float = 0.0


class BatchedEnvRunner(Measuring, SingleAgentEnvRunner):
    """Steps the lanes of one runner, or of several emulated ones, with whole arrays; set as `env_runner_cls`.

    It always explores, a fragment a call. Its state holds weights and no environments: one that is restarted begins its
    lanes anew. Its episodes bring no steps of earlier fragments (RLlib: one, which is for connectors that need it). Of
    connectors it takes `NormalizedObservations`, with statistics of each of its runners.
    """

    in_lane_order = True
    """Whether episodes come lane by lane, each lane in time order, of equal shares of a batch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._ended: Ended = []
        """Episodes since RLlib's metrics were fetched."""
        self._statistics: NormalizedObservations | None = None
        """By which observations are normalised."""
        for piece in pieces_to_module(self) if self.env is not None else ():
            if isinstance(piece, NormalizedObservations):
                self._statistics = piece
                piece.begin(self._envs.observation_space.shape, num_runners=len({runner for runner, _ in self.lanes}))

    def make_env(self) -> None:
        """Make the environments of this process's lanes; the next sample resets them with the lanes' seeds."""
        if self.env is not None:
            self.env.close()
        seed = self._seed_of_lanes
        if seed is None:  # every run shall differ, as in RLlib
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        self._envs = make_lane_envs(_maker(self.config, self), [lane_seed(seed, *lane) for lane in self.lanes])
        self.num_envs = num_envs = self._envs.num_envs
        self._noises = [LaneNoise(seed, *lane) for lane in self.lanes]
        self._lane_steps = [0] * num_envs
        observation_space, action_space = self._envs.observation_space, self._envs.action_space
        self.env = SimpleNamespace(  # what RLlib asks of a runner's vector environment
            num_envs=num_envs,
            close=self._envs.close,
            single_observation_space=observation_space,
            single_action_space=action_space,
            observation_space=gymnasium.vector.utils.batch_space(observation_space, num_envs),
            action_space=gymnasium.vector.utils.batch_space(action_space, num_envs),
        )
        self.env.unwrapped = self.env
        self._rule, self._scale = action_rule(action_space), scaling_for_environment(action_space, self.config)
        self._needs_initial_reset = True
        self._blank = SingleAgentEpisode(
            observations=InfiniteLookbackBuffer(np.zeros((1, *observation_space.shape)), 0, observation_space),
            actions=InfiniteLookbackBuffer(np.zeros((0, *action_space.shape)), 0, action_space),
            rewards=InfiniteLookbackBuffer(np.zeros(0)),
            infos=InfiniteLookbackBuffer([{}]),
            len_lookback_buffer=0,
            observation_space=observation_space,
            action_space=action_space,
        )

    def sample(self) -> list[SingleAgentEpisode]:
        """Return this process's share of a train batch as episodes (or pieces of them), in lane order.

        Raises:
            ValueError: An observation is not as its space says, or it, a reward or an output of the policy is not
                finite.
        """
        self._used.clear()  # nobody asks for it where no study runs
        return self._measured(self._fragment)

    def _fragment(self) -> list[SingleAgentEpisode]:
        if self._env_runner_state_server is not None:  # newer weights, where an asynchronous algorithm has put some
            newer = ray.get(self._env_runner_state_server.pull_if_newer.remote(self._weights_seq_no))
            if newer is not None:
                self.set_state(newer)
        self.metrics.log_value(key=names.WEIGHTS_SEQ_NO, value=self._weights_seq_no, window=1)
        with self.metrics.log_time(names.SAMPLE_TIMER):
            if self._needs_initial_reset:
                self._begin()
            steps = self._steps_of_lanes()
            rows, ends = self._step(steps)
            episodes = self._cut(rows, steps, ends)
        self._log_env_steps(metric=self._metrics_num_env_steps_sampled, num_steps=sum(steps))
        self._increase_sampled_metrics(sum(steps), sum(map(len, ends)))
        return episodes

    def set_state(self, state: Any) -> None:
        """Take a state; once an iteration, where no other process samples, merge what its own runners have seen.

        RLlib then gives the local runner the count of steps alone: the only runner has nobody to be merged with.
        """
        super().set_state(state)
        alone = names.NUM_ENV_STEPS_SAMPLED_LIFETIME in state and COMPONENT_ENV_TO_MODULE_CONNECTOR not in state
        if self._statistics is not None and self.worker_index == 0 and alone:
            self._statistics.set_state(self._statistics.merge_states([self._statistics.get_state()]))

    def get_metrics(self) -> Any:
        """Return RLlib's metrics; those of episodes are computed once from all that ended."""
        self._reported, self._ended = self._ended, []
        if self._reported:
            returns, lengths = np.array(self._reported).T
            for values, mean, least, most in (
                (returns, names.EPISODE_RETURN_MEAN, names.EPISODE_RETURN_MIN, names.EPISODE_RETURN_MAX),
                (lengths, names.EPISODE_LEN_MEAN, names.EPISODE_LEN_MIN, names.EPISODE_LEN_MAX),
            ):
                self.metrics.log_value(mean, float(values.mean()), window=1)
                self.metrics.log_value(least, float(values.min()), reduce="min", window=1)
                self.metrics.log_value(most, float(values.max()), reduce="max", window=1)
        return self.metrics.reduce()

    def _steps_of_lanes(self) -> list[int]:
        """Return how many steps each lane takes in a call of `sample`; the first lanes may take one more."""
        length = self.config.rollout_fragment_length
        if length != "auto":  # of an asynchronous algorithm, whose batches are made of such fragments as they come
            return [int(length)] * self.num_envs
        return layout_of(self.config).steps_of(max(self.worker_index - 1, 0), self.config.total_train_batch_size)

    def _begin(self) -> None:
        self._seen = np.zeros((self.num_envs, *self._envs.observation_space.shape), np.float32)
        """What each lane saw last, (lanes, *shape)."""
        self._envs.reset(self._seen)
        _check_finite(self._seen)
        if self._statistics is not None:
            self._seen = self._normalized(self._seen)
        self._ongoing = [_Ongoing() for _ in range(self.num_envs)]
        self._ended = []
        self._needs_initial_reset = False

    def _normalized(self, observations: Array, ends: Sequence[tuple[int, Array]] = ()) -> Array:
        """Return what the first lanes saw, shape (lanes, *shape), as the policy sees it, after learning from it.

        The last observations of episodes, which `ends` has with their lanes, are replaced in place and not learnt from.
        """
        assert self._statistics is not None
        lanes = layout_of(self.config).num_envs_per_env_runner
        self._statistics.update(observations, lanes=lanes)
        mean, variance = self._statistics.moments(lanes=lanes)
        for lane, last in ends:
            last[...] = scaled_by(last, mean[lane], variance[lane])
        count = len(observations)
        normalized: Array = scaled_by(observations, mean[:count], variance[:count])
        return normalized

    def _step(self, lane_steps: list[int]) -> tuple[_Rows, _Ends]:
        """Step the lanes through a fragment."""
        steps, num_envs, network, rule = max(lane_steps), self.num_envs, network_of(self.module), self._rule
        observation, action, shape = self._envs.observation_space, self._envs.action_space, (steps, num_envs)
        rows = _Rows(
            observations=np.zeros((steps + 1, num_envs, *observation.shape), np.float32),
            actions=np.zeros((*shape, *action.shape), action.dtype),
            inputs=np.zeros((*shape, rule.num_inputs), np.float32),
            log_probs=np.zeros(shape, np.float32),
            rewards=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, bool),
            truncated=np.zeros(shape, bool),
        )
        rows.observations[0] = self._seen
        uniforms = np.empty((*shape, rule.noise_size))
        for lane, noise in enumerate(self._noises):  # going on in each lane
            start, count = self._lane_steps[lane] * rule.noise_size, steps * rule.noise_size
            uniforms[:, lane] = noise.uniforms(start, count).reshape(steps, rule.noise_size)
        noises = rule.noise(uniforms)
        ends: _Ends = [[] for _ in range(num_envs)]
        step, scale, continuous = self._envs.step, self._scale, isinstance(action, gymnasium.spaces.Box)
        for row in range(steps):
            num = num_envs if row < steps - 1 else lane_steps.count(steps)
            outputs, seen = rows.inputs[row, :num], rows.observations[row + 1, :num]
            outputs[:] = network(rows.observations[row, :num])
            chosen = rule.choose(outputs, noises[row, :num])
            if continuous and not np.isfinite(chosen).all():
                raise _diverged(rows.observations[: row + 1])  # before an environment gets to see it
            rows.actions[row, :num] = chosen
            received = (each[row, :num] for each in (rows.rewards, rows.terminated, rows.truncated))
            ended = step(scale(chosen), seen, *received)
            if self._statistics is not None:
                seen[:] = self._normalized(seen, ended)
            for lane, last in ended:
                ends[lane].append((row + 1, last))
        _check_finite(rows.observations, *(last for own in ends for _, last in own))
        if not np.isfinite(rows.inputs).all():
            raise _diverged(rows.observations)
        inputs, actions = (torch.from_numpy(each.reshape(-1, *each.shape[2:])) for each in (rows.inputs, rows.actions))
        policy = self.module.get_exploration_action_dist_cls().from_logits(inputs)
        rows.log_probs[:] = policy.logp(actions).numpy().reshape(shape)
        return rows, ends

    def _cut(self, rows: _Rows, lane_steps: list[int], ends: _Ends) -> list[SingleAgentEpisode]:
        """Cut a fragment into episodes, lane by lane, each lane in time order; note where each lane stands."""
        episodes = []
        for lane, (stop, ends_of_lane) in enumerate(zip(lane_steps, ends, strict=True)):
            start = 0
            for end, observation in ends_of_lane:
                episodes.append(self._episode(rows, lane, start, end, observation))
                ongoing = self._ongoing[lane]
                self._ended.append((ongoing.total, ongoing.length))
                self._ongoing[lane], start = _Ongoing(), end
            if start < stop:
                episodes.append(self._episode(rows, lane, start, stop, None))
            self._lane_steps[lane] += stop
            self._seen[lane] = rows.observations[stop, lane]  # a copy: fragments of images are large
        return episodes

    def _episode(self, rows: _Rows, lane: int, start: int, stop: int, last: Array | None) -> SingleAgentEpisode:
        """Return steps `start` to `stop` of a lane; `last` is the last observation of an episode that ended."""
        ongoing, steps = self._ongoing[lane], slice(start, stop)
        observations, rewards = rows.observations[start : stop + 1, lane], rows.rewards[steps, lane]
        if last is not None:
            observations = observations.copy()  # the array holds the next episode's first observation there
            observations[-1] = last
        outputs = {
            Columns.ACTION_DIST_INPUTS: rows.inputs[steps, lane],
            Columns.ACTION_LOGP: rows.log_probs[steps, lane],
            names.WEIGHTS_SEQ_NO: np.full(stop - start, self._weights_seq_no),
        }
        # Copies of an empty one: RLlib's constructors look at the spaces again and again, and check lengths.
        episode = copy.copy(self._blank)
        episode.id_, episode.t_started, episode.t = ongoing.id, ongoing.length, ongoing.length + stop - start
        episode.observations = _filled(self._blank.observations, observations)
        episode.actions = _filled(self._blank.actions, rows.actions[steps, lane])
        episode.rewards = _filled(self._blank.rewards, rewards)
        episode.infos = _filled(self._blank.infos, [{}] * len(observations))
        episode.extra_model_outputs = {name: _filled(self._blank.rewards, value) for name, value in outputs.items()}
        episode.is_terminated = last is not None and bool(rows.terminated[stop - 1, lane])
        episode.is_truncated = last is not None and not rows.terminated[stop - 1, lane]
        ongoing.length += stop - start
        ongoing.total += float(rewards.sum(dtype=np.float64))
        return episode


def _filled(like: InfiniteLookbackBuffer, data: Any) -> InfiniteLookbackBuffer:
    """Return a buffer with these data, else like the given one."""
    buffer = object.__new__(InfiniteLookbackBuffer)  # for each episode seven times; `copy.copy` is ten times slower
    vars(buffer).update(vars(like), data=data)
    return buffer


def _maker(config: AlgorithmConfig, runner: Measuring) -> Any:
    """Return what makes one environment of a configuration: its registered creator, else `gymnasium.make`."""
    creator = maker_of(config.env) if isinstance(config.env, str) else config.env
    if not callable(creator):
        return lambda: gymnasium.make(config.env, disable_env_checker=True, **config.env_config)
    if isinstance(creator, EnvFactory):  # ours: the backend is chosen by what it says
        return creator
    # Each lane gets the number of its own runner, whichever process steps it.
    runners, number = iter([each for each, _ in runner.lanes]), layout_of(config).num_env_runners
    return lambda: creator(EnvContext(config.env_config, worker_index=next(runners), num_workers=number))


def _diverged(observations: Array) -> ValueError:
    """Return what to raise where a policy answers no finite number: its observations may be the cause."""
    _check_finite(observations)
    largest = f"the largest observation so far was {np.abs(observations).max():.3g}"
    return DivergedError(f"the policy must answer finite numbers, it does not: the training diverged; {largest}")


def _check_finite(*observations: Array) -> None:
    if not all(np.isfinite(each).all() for each in observations):
        raise ValueError("observations must be finite, got nan or inf")
