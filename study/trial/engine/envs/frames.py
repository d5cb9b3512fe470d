"""An episode seen again: the same seed and the same actions in an environment that draws. No Ray, no torch.

The pictures are then those of the very episodes that were counted, and drawing costs the evaluation nothing.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from study.errors import SpaceError, StudyError
from study.space.sections import EnvironmentSpec
from study.trial.engine.envs.environments import make_env
from study.trial.engine.envs.lane_envs import Unusable
from study.trial.failures import described

Frame = npt.NDArray[np.uint8]
"""A picture, shape (height, width, 3), red, green and blue in [0, 255]."""
DRAWS = "rgb_array"
"""The render mode of an environment that gives pictures."""
DEFAULT_FPS = 30.0
"""Frames per second where an environment does not say: what Gymnasium's own wrappers take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An environment that draws, and the frames per second at which it is meant to be seen."""

    env: gymnasium.Env
    fps: float

    def replay(self, seed: int, actions: Sequence[Any]) -> Iterator[tuple[Frame, float]]:
        """Yield the picture and the return so far: at the start, and after each action.

        Raises:
            SpaceError: The environment draws no picture, or fails.
        """
        total = 0.0
        _drawing(self.env.reset, seed=seed)
        for action in (None, *actions):
            if action is not None:
                total += float(_drawing(self.env.step, action)[1])
            frame = np.asarray(_drawing(self.env.render))
            if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
                rule = "a picture must have the shape (height, width, 3) of uint8"
                raise _refused(rule, f"shape {frame.shape} of {frame.dtype}")
            yield frame, total


def _drawing(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return method(*args, **options)
    except Exception as error:
        rule = f"`{getattr(method, '__name__', 'render')}` must not fail where the environment draws"
        raise _refused(rule, described(error)) from error


def open_scene(spec: EnvironmentSpec) -> Scene:
    """Return the environment, ready to draw pictures.

    Raises:
        SpaceError: It cannot draw, or a library for it is missing.
    """
    if spec.backend == "envpool":
        raise _refused(f"'{spec.id}' must draw, and EnvPool draws nothing", "backend: envpool")
    hide_display()
    try:
        env = make_env(spec, render_mode=DRAWS)
    except Unusable as unusable:
        raise SpaceError("command line", [unusable.fault]) from unusable
    except Exception as error:
        raise _refused(f"'{spec.id}' must take render_mode={DRAWS!r}", described(error)) from error
    return scene_of(env, spec.id)


def scene_of(env: gymnasium.Env, env_id: str) -> Scene:
    """Return an environment that was made with the render mode, after `hide_display`, ready to draw.

    Raises:
        SpaceError: It does not draw so; it is closed then.
    """
    modes = env.metadata.get("render_modes") or ()
    fps = env.metadata.get("render_fps")
    scene = Scene(env=env, fps=float(fps) if fps and np.isfinite(fps) and fps > 0 else DEFAULT_FPS)
    try:
        if env.render_mode != DRAWS or DRAWS not in modes:
            raise _refused(f"'{env_id}' must have the render mode {DRAWS}", ", ".join(modes) or "none")
        next(scene.replay(0, ()))  # a library that is missing shows with the first picture
    except StudyError:
        env.close()
        raise
    return scene


def hide_display() -> None:
    """Keep SDL from looking for a display where there is none, and for sound."""
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if sys.platform.startswith("linux") and not named:
        os.environ["SDL_VIDEODRIVER"] = "dummy"


def _refused(rule: str, got: str) -> SpaceError:
    fix = "Leave the option out, or give the environment that render mode."
    return SpaceError.of("command line", where="--video", rule=rule, got=got, fix=fix)
