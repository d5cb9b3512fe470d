"""Gymnasium's small control tasks, many at a time: the same numbers, bit for bit, in arrays. No Ray, no torch.

Gymnasium steps one environment at a time, in Python, which for these tasks takes longer than everything else in a
trial. Here NumPy steps all environments at once, in the order of Gymnasium's own operations. Environments are made and
reset by Gymnasium, so that their random numbers are its own, and a process compares both ways before it uses this one:
with another release of Gymnasium, or on a processor for which NumPy rounds otherwise, the plain loop serves.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.mountain_car import MountainCarEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.wrappers import TimeLimit

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
Stepped = tuple[tuple[Any, ...], Any, Any, Any]
"""New state, observation (each a sequence of arrays of shape (envs,)), rewards, whether episodes terminated."""
_CHECKED_STATES, _CHECKED_STEPS = 128, 8


def _square(values: Array) -> Doubles:
    """Return `value ** 2` as for single numbers: C's `pow`, which rounds otherwise than a product, as arrays do."""
    squares: Doubles = np.float_power(values, 2.0)
    return squares


def _acrobot(env: AcrobotEnv, state: Doubles, actions: Array) -> Stepped:
    torque = np.array(env.AVAIL_TORQUE, np.float64)[actions]
    m1, m2, l1 = env.LINK_MASS_1, env.LINK_MASS_2, env.LINK_LENGTH_1
    lc1, lc2, i1, i2, g, pi = env.LINK_COM_POS_1, env.LINK_COM_POS_2, env.LINK_MOI, env.LINK_MOI, 9.8, np.pi

    def derivatives(state: Doubles) -> Doubles:
        theta1, theta2, dtheta1, dtheta2 = state
        cos2, sin2 = np.cos(theta2), np.sin(theta2)
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * cos2) + i1 + i2
        d2 = m2 * (lc2**2 + l1 * lc2 * cos2) + i2
        phi2 = m2 * lc2 * g * np.cos(theta1 + theta2 - pi / 2.0)
        phi1 = (
            -m2 * l1 * lc2 * _square(dtheta2) * sin2
            - 2 * m2 * l1 * lc2 * dtheta2 * dtheta1 * sin2
            + (m1 * lc1 + m2 * l1) * g * np.cos(theta1 - pi / 2)
            + phi2
        )
        ratio = d2 / d1
        pulled = torque + ratio * phi1 - m2 * l1 * lc2 * _square(dtheta1) * sin2 - phi2
        ddtheta2 = pulled / (m2 * lc2**2 + i2 - _square(d2) / d1)
        return np.stack([dtheta1, dtheta2, -(d2 * ddtheta2 + phi1) / d1, ddtheta2])

    half = env.dt / 2.0
    k1 = derivatives(state)
    k2 = derivatives(state + half * k1)
    k3 = derivatives(state + half * k2)
    k4 = derivatives(state + env.dt * k3)
    theta1, theta2, dtheta1, dtheta2 = state + env.dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)
    theta1, theta2 = _wrapped(theta1), _wrapped(theta2)
    dtheta1 = np.minimum(np.maximum(dtheta1, -env.MAX_VEL_1), env.MAX_VEL_1)
    dtheta2 = np.minimum(np.maximum(dtheta2, -env.MAX_VEL_2), env.MAX_VEL_2)
    cos1 = np.cos(theta1)
    seen = (cos1, np.sin(theta1), np.cos(theta2), np.sin(theta2), dtheta1, dtheta2)
    terminated = -cos1 - np.cos(theta2 + theta1) > 1.0
    return (theta1, theta2, dtheta1, dtheta2), seen, np.where(terminated, 0.0, -1.0), terminated


def _wrapped(angle: Doubles) -> Doubles:
    circle = np.pi - -np.pi
    while (above := angle > np.pi).any():
        angle = np.where(above, angle - circle, angle)
    while (below := angle < -np.pi).any():
        angle = np.where(below, angle + circle, angle)
    return angle


def _cartpole(env: CartPoleEnv, state: Doubles, actions: Array) -> Stepped:
    x, x_dot, theta, theta_dot = state
    force = np.where(actions == 1, env.force_mag, -env.force_mag)
    cos, sin = np.cos(theta), np.sin(theta)
    temp = (force + env.polemass_length * np.square(theta_dot) * sin) / env.total_mass
    thetaacc = (env.gravity * sin - cos * temp) / (
        env.length * (4.0 / 3.0 - env.masspole * np.square(cos) / env.total_mass)
    )
    xacc = temp - env.polemass_length * thetaacc * cos / env.total_mass
    x, x_dot = x + env.tau * x_dot, x_dot + env.tau * xacc
    theta, theta_dot = theta + env.tau * theta_dot, theta_dot + env.tau * thetaacc
    terminated = (np.abs(x) > env.x_threshold) | (np.abs(theta) > env.theta_threshold_radians)
    new = (x, x_dot, theta, theta_dot)
    return new, new, np.ones(len(x)), terminated


def _mountain_car(env: MountainCarEnv, state: Doubles, actions: Array) -> Stepped:
    position, velocity = state
    pull = np.array([math.cos(each) for each in (3 * position).tolist()])
    velocity = velocity + ((actions - 1) * env.force + pull * (-env.gravity))
    velocity = np.clip(velocity, -env.max_speed, env.max_speed)
    position = np.clip(position + velocity, env.min_position, env.max_position)
    velocity = np.where((position == env.min_position) & (velocity < 0), 0.0, velocity)
    terminated = (position >= env.goal_position) & (velocity >= env.goal_velocity)
    new = (position, velocity)
    return new, new, np.full(len(position), -1.0), terminated


def _pendulum(env: PendulumEnv, state: Doubles, actions: Array) -> Stepped:
    angle, speed = state
    torque = np.clip(actions, -env.max_torque, env.max_torque)[:, 0]
    # Of single numbers, as Gymnasium's: single precision, and C's function.
    effort = np.array([each**2 for each in torque], torque.dtype)
    off = ((angle + np.pi) % (2 * np.pi)) - np.pi
    costs = _square(off) + 0.1 * _square(speed) + 0.001 * effort
    pull = 3 * env.g / (2 * env.l) * np.sin(angle) + 3.0 / (env.m * env.l**2) * torque
    speed = np.clip(speed + pull * env.dt, -env.max_speed, env.max_speed)
    angle = angle + speed * env.dt
    return (angle, speed), (np.cos(angle), np.sin(angle), speed), -costs, np.zeros(len(angle), bool)


_TASKS: dict[type, Callable[[Any, Doubles, Array], Stepped]] = {
    AcrobotEnv: _acrobot,
    CartPoleEnv: _cartpole,
    MountainCarEnv: _mountain_car,
    PendulumEnv: _pendulum,
}


class ClassicTasks:
    """Environments of one of the tasks, each by itself: nothing here starts an episode anew.

    Attributes:
        num_envs: Their number.
        observation_space: Of one of them.
        action_space: Of one of them.
    """

    def __init__(self, envs: Sequence[gymnasium.Env], limit: float | None = None) -> None:
        """Take environments for which `serves` holds, and the steps after which their episodes are cut.

        Without `limit` it is what they are registered with.
        """
        self._envs, self.num_envs = envs, len(envs)
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self._one: Any = envs[0].unwrapped
        self._step = _TASKS[type(self._one)]
        own = (envs[0].spec and envs[0].spec.max_episode_steps) or math.inf
        self._limit = own if limit is None else limit
        self._elapsed = np.zeros(self.num_envs, np.int64)
        self._states: Doubles | None = None

    def reset(self, index: int, seed: int | None) -> Array:
        """Begin an episode of one environment, as its own `reset` does, and return its observation."""
        env = self._envs[index]
        observation, _ = env.reset() if seed is None else env.reset(seed=seed)
        state: Array = env.unwrapped.state
        if self._states is None:
            self._states = np.zeros((len(state), self.num_envs))
        self._states[:, index] = state
        self._elapsed[index] = 0
        return np.asarray(observation)

    def step(self, chosen: slice | Array, actions: Array, observations: Array) -> tuple[Array, Array, Array]:
        """Step some of the environments.

        Args:
            chosen: Which.
            actions: One for each of them.
            observations: Receives theirs, shape (chosen, numbers), float32.

        Returns:
            Rewards (float64), whether episodes terminated, whether they were cut; each of shape (chosen,).
        """
        assert self._states is not None, "reset comes first"
        state, seen, rewards, terminated = self._step(self._one, np.ascontiguousarray(self._states[:, chosen]), actions)
        for row, values in enumerate(state):
            self._states[row, chosen] = values
        for column, values in enumerate(seen):
            observations[:, column] = values
        self._elapsed[chosen] += 1
        return np.asarray(rewards), terminated, self._elapsed[chosen] >= self._limit

    def state(self, index: int) -> Doubles:
        """Return the state of one environment, in double precision."""
        assert self._states is not None, "reset comes first"
        state: Doubles = self._states[:, index].copy()
        return state

    def close(self) -> None:
        """Do nothing: nothing is open that was not drawn."""


def serves(env: gymnasium.Env) -> bool:
    """Return whether environments like this one can be stepped together, bit for bit as one by one."""
    inner = env.env if isinstance(env, TimeLimit) else env
    given = [] if inner.spec is None else [name for name in inner.spec.kwargs if name != "render_mode"]
    kind: Any = type(inner)
    limit_is_known = inner is env or inner.spec is not None
    return kind in _TASKS and not given and inner.render_mode is None and limit_is_known and _agrees(kind)


@functools.cache
def _agrees(kind: Any) -> bool:
    """Return whether both ways of stepping have the same results in this process, on states all over the space."""
    envs = [TimeLimit(kind(), _CHECKED_STEPS) for _ in range(_CHECKED_STATES)]
    together = ClassicTasks(envs, limit=_CHECKED_STEPS)
    generator = np.random.default_rng(0)
    try:
        for index, env in enumerate(envs):
            together.reset(index, index)
            # An eighth goes on as it was reset, which is another type of number in Acrobot.
            if index % 8:
                state: Any = env.unwrapped.state
                spread = np.asarray(state, np.float64) * generator.uniform(-30, 30, len(state))
                env.unwrapped.state = spread
                assert together._states is not None
                together._states[:, index] = spread
        space = envs[0].action_space
        space.seed(0)
        seen = np.empty((len(envs), *(envs[0].observation_space.shape or ())), np.float32)
        going = list(range(len(envs)))
        for _ in range(_CHECKED_STEPS):
            actions = np.stack([np.asarray(space.sample()) for _ in envs])
            rewards, terminated, truncated = together.step(slice(None), actions, seen)
            for index in going:
                observation, reward, ends, cut, _ = envs[index].step(actions[index])
                state = envs[index].unwrapped.state
                same = np.array_equal(state, together.state(index)) and np.array_equal(observation, seen[index])
                if (
                    not same
                    or float(reward) != rewards[index]
                    or (ends, cut) != (bool(terminated[index]), bool(truncated[index]))
                ):
                    return False
            going = [index for index in going if not (terminated[index] or truncated[index])]
    except Exception:  # noqa: BLE001 (whatever another release of Gymnasium does otherwise: then the plain loop serves)
        return False
    return True
