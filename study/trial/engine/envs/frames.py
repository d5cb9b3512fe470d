"""An episode seen again: the same seed and the same actions in an environment that draws. No Ray, no torch.

The pictures are then those of the very episodes that were counted, and drawing costs the evaluation nothing.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt

from study.errors import SpaceError, StudyError
from study.space.sections import EnvironmentSpec
from study.trial.engine.envs.environments import make_env
from study.trial.engine.envs.wrappers import Unusable
from study.trial.failures import described

Frame = npt.NDArray[np.uint8]
"""A picture, shape (height, width, 3), red, green and blue in [0, 255]."""
Mode = Literal["rgb_array", "human"]

DEFAULT_FPS = 30.0
"""Frames per second where an environment does not say: what Gymnasium's own wrappers take."""
SMALLEST = 256
"""Pixels: observations that are pictures are enlarged to at least so high, by a whole number."""
_PLACES: dict[Mode, str] = {"rgb_array": "--video", "human": "--render"}
_NO_PICTURE = "Leave the option out, or give the environment that render mode."


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An environment that draws.

    Attributes:
        fps: Frames per second at which it is meant to be seen.
        from_observations: Whether the pictures are what the policy sees, since the environment draws none.
    """

    env: gymnasium.Env
    fps: float
    from_observations: bool

    def replay(self, seed: int, actions: Sequence[Any]) -> Iterator[tuple[Frame | None, float]]:
        """Yield the picture and the return so far: at the start, and after each action.

        A window shows its pictures itself: they are None.

        Raises:
            SpaceError: The environment draws no picture.
        """
        observation, _ = self._call("reset", lambda: self.env.reset(seed=seed))
        total = 0.0
        yield self._picture(observation), total
        for action in actions:
            observation, reward, *_ = self._call("step", functools.partial(self.env.step, action))
            total += float(reward)
            yield self._picture(observation), total

    def _call(self, what: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except Exception as error:
            where = _PLACES[self.mode]
            rule, got = f"`{what}` must not fail where the environment draws", described(error)
            raise SpaceError.of("command line", where=where, rule=rule, got=got, fix=_NO_PICTURE) from error

    def _picture(self, observation: Any) -> Frame | None:
        if self.from_observations:
            return picture_of(observation)
        drawn = self._call("render", self.env.render)
        if self.mode == "human":
            return None
        frame = np.asarray(drawn)
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            got = f"shape {frame.shape} of {frame.dtype}"
            where, rule, got = _PLACES[self.mode], "a picture must have the shape (height, width, 3) of uint8", str(got)
            raise SpaceError.of("command line", where=where, rule=rule, got=got, fix=_NO_PICTURE)
        return frame

    @property
    def mode(self) -> Mode:
        """How it draws."""
        return "human" if self.env.render_mode == "human" else "rgb_array"


def open_scene(spec: EnvironmentSpec, mode: Mode) -> Scene:
    """Return the environment, ready to draw pictures (`rgb_array`) or a window (`human`).

    Raises:
        SpaceError: It cannot draw so, a library for it is missing, or there is no display.
    """
    see_to_display(mode)
    try:
        scene = _of_observations(spec, mode) if spec.backend == "envpool" else _drawing(spec, mode)
    except Unusable as unusable:
        raise SpaceError("command line", [unusable.fault]) from unusable
    return _tried(scene, mode)


def scene_of(env: gymnasium.Env, env_id: str, mode: Mode) -> Scene:
    """Return an environment that was made with a render mode, after `see_to_display`, ready to draw.

    Raises:
        SpaceError: It does not draw so; it is closed then.
    """
    return _tried(_in_mode(env, env_id, mode), mode)


def _tried(scene: Scene, mode: Mode) -> Scene:
    if mode == "rgb_array":
        try:
            next(scene.replay(0, ()))  # a library that is missing shows with the first picture
        except StudyError:
            scene.env.close()
            raise
    return scene


def see_to_display(mode: Mode) -> None:
    """Refuse a window where there is no display; keep SDL from looking for one, and for sound, where none is needed."""
    if mode == "rgb_array":
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
        if not _has_display():
            os.environ["SDL_VIDEODRIVER"] = "dummy"
    elif not _has_display():
        rule = "a window needs a display"
        got, fix = "none (DISPLAY and WAYLAND_DISPLAY are not set)", "Use --video, or work where there is a screen."
        raise SpaceError.of("command line", where=_PLACES[mode], rule=rule, got=got, fix=fix)


def _drawing(spec: EnvironmentSpec, mode: Mode) -> Scene:
    try:
        env = make_env(spec, render_mode=mode)
    except Unusable:
        raise
    except Exception as error:
        where = _PLACES[mode]
        rule, got = f"'{spec.id}' must take render_mode={mode!r}", described(error)
        raise SpaceError.of("command line", where=where, rule=rule, got=got, fix=_NO_PICTURE) from error
    return _in_mode(env, spec.id, mode)


def _in_mode(env: gymnasium.Env, env_id: str, mode: Mode) -> Scene:
    if env.render_mode != mode or mode not in (env.metadata.get("render_modes") or ()):
        env.close()
        known = ", ".join(env.metadata.get("render_modes") or ()) or "none"
        rule = f"'{env_id}' must have the render mode {mode}"
        raise SpaceError.of("command line", where=_PLACES[mode], rule=rule, got=str(known), fix=_NO_PICTURE)
    return Scene(env=env, fps=_fps(env), from_observations=False)


def picture_of(observation: npt.NDArray[np.float32]) -> Frame:
    """Return what a policy sees as a picture.

    Args:
        observation: Shape (height, width, channels) in [0, 1]. Three channels are colours; of any other number, which
            is a stack of grey pictures, the last one is shown.
    """
    shown = observation if observation.shape[2] == 3 else np.repeat(observation[:, :, -1:], 3, axis=2)
    factor = -(-SMALLEST // shown.shape[0])
    pixels = np.clip(np.rint(shown * 255), 0, 255).astype(np.uint8)
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def _of_observations(spec: EnvironmentSpec, mode: Mode) -> Scene:
    env = make_env(spec)
    shape = env.observation_space.shape
    if mode == "human":
        rule = "EnvPool opens no window"
        fix = "Use --video where observations are images."
        raise SpaceError.of("command line", where=_PLACES[mode], rule=rule, got="backend envpool", fix=fix)
    if len(shape or ()) != 3:
        where, rule, got = _PLACES[mode], "EnvPool draws nothing, so observations must be images", f"shape {shape}"
        fix = "Leave --video out: Gymnasium's environment of that name is another implementation."
        raise SpaceError.of("command line", where=where, rule=rule, got=got, fix=fix)
    return Scene(env=env, fps=_fps(env), from_observations=True)


def _fps(env: gymnasium.Env) -> float:
    fps = env.metadata.get("render_fps")
    return float(fps) if fps and np.isfinite(fps) and fps > 0 else DEFAULT_FPS


def _has_display() -> bool:
    if not sys.platform.startswith("linux"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
