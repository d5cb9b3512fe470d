"""Environments that misbehave on purpose, for the space files of tests: `tests.environments:AtStep`."""

import os
import random
import sys
import threading
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Plain(gymnasium.Env[Any, Any]):
    """Random observations, reward 1 a step, episodes of `length` steps."""

    observation_space: Any = Box(-1.0, 1.0, (3,), np.float32)
    action_space: Any = Discrete(2)

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.steps = 0
        self.lifetime = 0
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed = seed if seed is not None else self.seed
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.lifetime += 1
        return self.observe(), self.reward(action), self.steps >= self.length, False, {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reward(self, action: Any) -> float:
        return 1.0


class AtStep(Plain):
    """Raises in one step of its life, or hangs, ends its process, pays no number, or observes the undeclared."""

    def __init__(self, at_step: int = 30, does: str = "raises") -> None:
        super().__init__()
        self.at_step, self.does = at_step, does

    def observe(self) -> Any:
        strays = self.does == "strays" and self.lifetime == self.at_step
        return np.array([0, 2.5, 0], np.float32) if strays else super().observe()

    def reward(self, action: Any) -> float:
        if self.lifetime != self.at_step or self.does == "strays":
            return 1.0
        if self.does == "raises":
            raise ZeroDivisionError(f"planted fault at step {self.at_step}")
        if self.does == "hangs":
            time.sleep(3600)
        if self.does == "ends":
            os._exit(3)
        return float("nan")


class Sleeps(Plain):
    """Sleeps `step_s` at every step, or `slow_step_s` where the lane was reset with one of `slow_seeds`."""

    def __init__(self, step_s: float, slow_step_s: float = 0.0, slow_seeds: tuple[int, ...] = ()) -> None:
        super().__init__(length=10**12)
        self.step_s, self.slow_step_s, self.slow_seeds = step_s, slow_step_s, set(slow_seeds)

    def reward(self, action: Any) -> float:
        time.sleep(self.slow_step_s if self.seed in self.slow_seeds else self.step_s)
        return 1.0


class MadeOnce(Plain):
    """Is made without trouble once in a process, as where it is probed; then it lacks a module, or hangs."""

    made = 0

    def __init__(self, hangs: bool = False) -> None:
        super().__init__()
        type(self).made += 1
        if type(self).made > 1:
            time.sleep(3600 if hangs else 0)
            import no_such_planner  # type: ignore[import-not-found]  # noqa: F401


class Mixed(Plain):
    """Observations and actions of several discrete kinds."""

    observation_space = Dict(
        {"kind": Discrete(3), "levels": MultiDiscrete([2, 4]), "x": Box(0.0, 1.0, (2,), np.float64)}
    )
    action_space = MultiDiscrete([2, 3])

    def observe(self) -> Any:
        levels = self.np_random.integers([2, 4])
        return {"kind": self.np_random.integers(3), "levels": levels, "x": self.np_random.random(2)}

    def reward(self, action: Any) -> float:
        return float(np.sum(action))


class OldApi(Plain):
    def step(self, action: Any) -> Any:
        return super().step(action)[:3]


class BreaksAtOnce(Plain):
    """Its constructor fails by a mistake of its own, or by ending the process."""

    def __init__(self, how: str) -> None:
        super().__init__()
        if how == "mistake":
            _ = None + 1  # type: ignore[operator]
        raise SystemExit("the licence server says no")


class NoSpaces(gymnasium.Env[Any, Any]):
    """Says neither what it shows nor what it takes."""


class TupleActions(Plain):
    action_space = gymnasium.spaces.Tuple([Discrete(2), Discrete(2)])


class NanObservation(Plain):
    """Observations that are not finite from some step of its life on."""

    def __init__(self, at_step: int = 10, numbers: bool = False) -> None:
        super().__init__()
        self.at_step = at_step
        if numbers:
            self.action_space = Box(-1.0, 1.0, (2,), np.float32)

    def observe(self) -> Any:
        observation = super().observe()
        return observation if self.lifetime < self.at_step else observation * np.float32("nan")


class Returns(Plain):
    """Returns a given reward, and from the first step on a given observation."""

    def __init__(self, observation: Any = None, reward: Any = 1.0) -> None:
        super().__init__()
        self.given_observation, self.given_reward = observation, reward

    def observe(self) -> Any:
        return super().observe() if self.given_observation is None or not self.steps else self.given_observation

    def reward(self, action: Any) -> Any:
        return self.given_reward


class Keeps(Plain):
    """Keeps its first action, and writes every observation into one array, of more digits than it declares."""

    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self) -> None:
        super().__init__(length=2)
        self.action: Any = None
        self.observation = np.zeros(3)

    def observe(self) -> Any:
        self.observation[:] = self.steps / 3
        return self.observation

    def reward(self, action: Any) -> float:
        self.action = action if self.action is None else self.action
        return float(np.sum(action))


class Picture(Plain):
    """Images of 4 x 6 pixels with 3 channels; the brightest has 255."""

    observation_space = Box(0, 255, (4, 6, 3), np.uint8)

    def observe(self) -> Any:
        image = np.zeros((4, 6, 3), np.uint8)
        image[0, 5, 2], image[3, 0, 1] = 255, 51
        return image


class Block(Plain):
    """Three-dimensional numbers that are no image."""

    observation_space = Box(-5.0, 5.0, (2, 3, 4), np.float64)

    def observe(self) -> Any:
        return np.linspace(-5, 5, 24).reshape(2, 3, 4)


class OneThread(Plain):
    """May be used only in the thread that made it, as a rendering context or a database connection."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def observe(self) -> Any:
        assert threading.get_ident() == self.thread, "another thread"
        return super().observe()

    def close(self) -> None:
        assert threading.get_ident() == self.thread, "another thread"


class Draws(Plain):
    """Draws its step as a bar, in a picture of odd height and width."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 (as Gymnasium has it)

    def __init__(self, length: int = 20, render_mode: str | None = None) -> None:
        super().__init__(length)
        self.render_mode = render_mode

    def render(self) -> Any:
        picture = np.zeros((33, 51, 3), np.uint8)
        picture[:, : 2 * self.steps, 0] = 255
        return picture


# --- simulators that keep state in their process ---------------------------------------------------------------------


class OneWorld(Plain):
    """All environments of a process move the same world; the reward is how far it has moved in this episode's seed."""

    world: ClassVar[dict[str, float]] = {"at": 0.0}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.world["at"] = 0.0
        return super().reset(seed=seed)

    def reward(self, action: Any) -> float:
        self.world["at"] += 1.0
        return self.world["at"]


class OnlyOne(Plain):
    """A second one cannot be made while the first is open, as with a port."""

    is_open: ClassVar[list[bool]] = []

    def __init__(self) -> None:
        super().__init__()
        if self.is_open:
            raise OSError("the port is taken")
        self.is_open.append(True)

    def close(self) -> None:
        self.is_open.clear()


class DrawsGlobally(Plain):
    """Seeds and uses the generators that all of a process share, as RLlib's own example of an environment does."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        return super().reset(seed=seed)

    def reward(self, action: Any) -> float:
        return random.random() + np.random.random()  # noqa: NPY002


class Unseeded(Plain):
    def observe(self) -> Any:
        return np.random.default_rng().uniform(-1, 1, 3).astype(np.float32)


class LeavesAThread(Plain):
    """Leaves a thread in its process that does not end, and writes to its standard output."""

    def __init__(self) -> None:
        super().__init__()
        threading.Thread(target=time.sleep, args=(600,)).start()
        sys.stdout.write("simulator: licence found\n")
