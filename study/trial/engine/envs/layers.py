"""What a space puts around an environment: repeated actions, stacked observations, a heavy step. No Ray, no torch."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from study.space.spec import EnvironmentSpec

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What a step costs besides itself.

    Attributes:
        wait_s: Seconds to wait.
        cpu_s: Seconds to compute, of CPU time: on a busy machine it takes longer.
    """

    wait_s: float = 0.0
    cpu_s: float = 0.0

    def __bool__(self) -> bool:
        return self.wait_s > 0 or self.cpu_s > 0

    def bear(self, steps: int = 1) -> None:
        """Wait and compute as for so many steps."""
        if self.cpu_s:
            end = time.thread_time() + steps * self.cpu_s
            while time.thread_time() < end:
                pass
        if self.wait_s:
            time.sleep(steps * self.wait_s)


def layered(env: gymnasium.Env, spec: EnvironmentSpec) -> gymnasium.Env:
    """Return an environment of float32 observations with what `spec` puts around it."""
    if spec.action_repeat > 1:
        env = _Repeated(env, spec.action_repeat)
    return _Stacked(env, spec.frame_stack) if spec.frame_stack > 1 else env


class _Repeated(gymnasium.Wrapper):
    """Takes every action several times, to the end of the episode at the most; rewards are added up."""

    def __init__(self, env: gymnasium.Env, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self._times):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


class _Stacked(gymnasium.Wrapper):
    """Puts the last observations side by side along the last axis, the newest last; an episode begins with copies."""

    def __init__(self, env: gymnasium.Env, number: int) -> None:
        super().__init__(env)
        space = env.observation_space
        low, high = (np.concatenate([bound] * number, axis=-1) for bound in (space.low, space.high))
        self.observation_space = Box(low, high, dtype=np.float32)
        # Copies: an environment may write its next observation into the same array.
        self._last: deque[Floats] = deque(maxlen=number)

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        self._last.extend([np.array(observation)] * (self._last.maxlen or 1))
        return self._seen(), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._last.append(np.array(observation))
        return self._seen(), reward, terminated, truncated, info

    def _seen(self) -> Floats:
        return np.concatenate(self._last, axis=-1)
