"""What the sampler may rely on, whichever backend steps the lanes."""

import importlib.util
import time

import numpy as np
import pytest
from gymnasium.spaces import Box

from study.space.sections import EnvironmentSpec
from study.trial.engine.envs.environments import EnvFactory, make_env, make_lane_envs
from tests.environments import Keeps, Returns

needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="envpool is not installed")
backends = pytest.mark.parametrize("backend", ["gymnasium", pytest.param("envpool", marks=needs_envpool)])
TASKS = ["CartPole-v1", "LunarLander-v3", "Pendulum-v1"]


class Played:
    """Lanes with arrays to step into; rows that a step does not write stay NaN."""

    def __init__(self, make, seeds):
        self.envs = make_lane_envs(make, [*seeds])
        self.observations = np.empty((len(seeds), *self.envs.observation_space.shape), np.float32)
        self.finals = []

    def reset(self):
        self.envs.reset(self.observations)
        return self.observations.copy()

    def step(self, actions):
        m = len(actions)
        observations = np.full((m, *self.envs.observation_space.shape), np.nan, np.float32)
        rewards, terminated, truncated = np.full(m, np.nan, np.float32), np.zeros(m, bool), np.zeros(m, bool)
        self.finals = self.envs.step(np.asarray(actions), observations, rewards, terminated, truncated)
        self.observations[:m] = observations
        return observations, rewards, terminated, truncated


def actions_of(space, steps, lanes):
    """Return actions, shape (steps, lanes, …), of which lane i's depend on i alone."""
    generators = [np.random.default_rng((0, lane)) for lane in lanes]
    if isinstance(space, Box):
        return np.array([[g.uniform(space.low, space.high) for g in generators] for _ in range(steps)], space.dtype)
    return np.array([[g.integers(space.n) for g in generators] for _ in range(steps)])


@backends
@pytest.mark.parametrize("env_id", TASKS)
def test_a_lane_plays_what_one_environment_with_its_seed_plays(env_id, backend):
    spec = EnvironmentSpec(id=env_id, backend=backend)
    seeds = [5, 2**31 - 1]
    played, env = Played(EnvFactory(spec), seeds), make_env(spec)
    observation, _ = env.reset(seed=seeds[1])
    first = played.reset()
    assert first[1].tolist() == observation.tolist()
    assert not np.array_equal(*first)
    episodes = 0
    for actions in actions_of(env.action_space, 600, seeds):
        observations, rewards, terminated, truncated = played.step(actions)
        observation, reward, ends, cut, _ = env.step(actions[1])
        assert (np.float32(reward), ends, cut) == (rewards[1], terminated[1], truncated[1])
        if ends or cut:
            assert dict(played.finals)[1].tolist() == observation.tolist()
            observation, _ = env.reset()
            episodes += 1
        assert observations[1].tolist() == observation.tolist()
    assert episodes > 0
    env.close()


@backends
@pytest.mark.parametrize(
    ("env_id", "given", "limit"),
    [
        *(("Acrobot-v1", None, 500), ("Pendulum-v1", None, 200)),
        *(("Acrobot-v1", limit, limit) for limit in (1, 700)),
    ],
)
def test_the_given_limit_or_else_the_environments_own_truncates(env_id, given, limit, backend):
    played = Played(EnvFactory(EnvironmentSpec(id=env_id, backend=backend, max_episode_steps=given)), [1, 2])
    played.reset()
    space = played.envs.action_space
    idle = np.zeros((2, *space.shape), space.dtype) + (1 if env_id != "Pendulum-v1" else 0)  # no torque
    for step in range(1, 2 * limit + 1):
        _, _, terminated, truncated = played.step(idle)
        assert (terminated.tolist(), truncated.tolist()) == ([False] * 2, [step % limit == 0] * 2), step


@backends
def test_an_end_in_the_last_allowed_step_is_both(backend):
    free = Played(EnvFactory(EnvironmentSpec(id="CartPole-v1", backend=backend)), [1])
    free.reset()
    length = 1
    while not free.step([1])[2][0]:
        length += 1
    limited = Played(EnvFactory(EnvironmentSpec(id="CartPole-v1", backend=backend, max_episode_steps=length)), [1])
    limited.reset()
    outcomes = [limited.step([1])[2:] for _ in range(length)]
    assert [(bool(ends[0]), bool(cut[0])) for ends, cut in outcomes] == [(False, False)] * (length - 1) + [(True, True)]


@backends
def test_only_the_first_lanes_are_stepped(backend):
    seeds, factory = [1, 2, 3, 4], EnvFactory(EnvironmentSpec(id="Acrobot-v1", backend=backend, max_episode_steps=20))
    together, apart = Played(factory, seeds), [Played(factory, [seed]) for seed in seeds]
    together.reset()
    for lane in apart:
        lane.reset()
    actions = actions_of(together.envs.action_space, 200, seeds)
    for row, m in zip(actions, np.random.default_rng(0).integers(0, 5, 200), strict=True):
        outcome = together.step(row[:m])
        expected_finals = []
        for index, lane in enumerate(apart[:m]):
            alone = lane.step(row[index : index + 1])
            assert [part[index].tolist() for part in outcome] == [part[0].tolist() for part in alone]
            expected_finals += [(index, last.tolist()) for _, last in lane.finals]
        assert [(lane, last.tolist()) for lane, last in together.finals] == expected_finals


@backends
def test_a_training_step_waits_for_every_lane_and_an_evaluation_does_not(backend, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    spec = EnvironmentSpec(id="CartPole-v1", backend=backend, step_wait_ms=10)
    for make, expected in ((EnvFactory(spec, wait_s=0.01), 0.06), (EnvFactory(spec), 0), (lambda: make_env(spec), 0)):
        waits.clear()
        played = Played(make, [1, 2, 3])
        played.reset()
        assert waits == []
        for _ in range(3):
            played.step([0, 0])
        assert sum(waits) == pytest.approx(expected)


# What only Gymnasium's lanes can meet: environments that misbehave.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(({"observation": np.zeros(each)}, f"got shape {each}, the space says (3,)") for each in ((), (1, 3), (4,))),
        ({"reward": np.ones(1)}, "a reward must be one number"),
        ({"reward": None}, "must be a string or a real number"),
    ],
)
def test_what_is_no_observation_or_no_reward_is_refused(given, words):
    played = Played(lambda: Returns(**given), [1, 2])
    played.reset()
    with pytest.raises((ValueError, TypeError)) as raised:
        played.step([0, 0])
    assert words in str(raised.value)


def test_an_environment_may_keep_its_action_and_reuse_its_observation():
    kept = []

    def make():
        kept.append(Keeps())
        return kept[-1]

    played = Played(make, [1])
    played.reset()
    actions = np.array([[0.25, -0.5]], np.float32)
    played.step(actions)
    actions[:] = 9
    assert kept[0].action.tolist() == [0.25, -0.5]
    played.step(actions)
    ((_, last),) = played.finals
    played.step(actions)
    assert last.tolist() == [np.float32(2 / 3)] * 3  # of the last step of the episode that ended
