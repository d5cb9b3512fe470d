"""The first episodes of an evaluation, seen again as an .mp4, by the ffmpeg of imageio-ffmpeg. No Ray, no torch.

The same seed and the same actions go to an environment that draws. So the pictures are those of the very episodes that
were counted, and drawing costs the evaluation nothing.
"""

import contextlib
import importlib.util
import itertools
import math
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from study.errors import RecordError, wrong_option
from study.harmless import one_line

if TYPE_CHECKING:
    import gymnasium

    from study.trial.evaluation import EvaluationResult

EPISODES = 3
"""Episodes that are shown, from the first."""
MOST_SECONDS = 20.0
"""Length of a film at most: a long episode is cut there."""
DRAWS = "rgb_array"
"""The render mode of an environment that gives pictures."""
DEFAULT_FPS = 30.0
"""Frames per second where an environment does not say: what Gymnasium's own wrappers take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Film:
    """What was shown.

    Attributes:
        file: The film.
        whole: For each episode of which something is seen whether it is seen to its end.
        seconds: Length at the environment's own pace.
        unlike: Episodes whose replay had another return than the one that was counted.
    """

    file: Path
    whole: tuple[bool, ...]
    seconds: float
    unlike: tuple[int, ...]


def check_target(path: Path) -> None:
    """Refuse, as `SpaceError`, a name that no film can have here: before anything is played."""
    if path.suffix.lower() != ".mp4" or path.is_dir():
        rule, got, fix = "must be the name of an .mp4 file", f"'{path}'", "Write --video film.mp4."
    elif importlib.util.find_spec("imageio_ffmpeg") is None:
        rule, got, fix = "needs imageio-ffmpeg", "no such package", "Run `pip install 'imageio-ffmpeg>=0.6'`."
    else:
        return
    raise wrong_option("--video", rule=rule, got=got, fix=fix)


def drawing(make: Callable[[], "gymnasium.Env"], name: str) -> "gymnasium.Env":
    """Return the environment that `make` makes with the render mode; it has drawn a picture.

    Raises:
        SpaceError: It draws none.
    """
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else SDL looks for a display
    try:
        env = make()
        next(_replay(env, 0, ()))
    except Exception as error:
        rule, got = f"'{name}' must draw with render_mode={DRAWS!r}", f"{type(error).__name__}: {error}"
        fix = "Leave the option out, or give the environment that render mode."
        raise wrong_option("--video", rule=rule, got=one_line(got, 200), fix=fix) from error
    return env


def _replay(env: "gymnasium.Env", seed: int, actions: Sequence[Any]) -> Generator[tuple[Any, float], None, None]:
    """Yield the picture and the return so far: at the start, and after each action."""
    env.reset(seed=seed)
    total = 0.0
    for action in (None, *actions):
        if action is not None:
            _, reward, *_ = env.step(action)
            total += float(np.sum(list(reward.values()) if isinstance(reward, Mapping) else reward))
        picture = np.asarray(env.render())
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise ValueError(f"a picture must have the shape (height, width, 3) of uint8, it has {picture.shape}")
        yield picture, total


def show(env: "gymnasium.Env", result: "EvaluationResult", *, film: Path) -> Film:
    """Play episodes again with the actions that they had, into a film.

    Args:
        env: Of `drawing`.
        result: The evaluation, with the actions of the episodes that are shown.
        film: Where the pictures go.

    Raises:
        RecordError: The film cannot be written.
    """
    whole: list[bool] = []
    unlike: list[int] = []
    fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)
    room = most = math.floor(MOST_SECONDS * fps)

    def pictures() -> Generator[Any, None, None]:
        nonlocal room
        for number, actions in enumerate(result.actions[:EPISODES]):
            shown, total = 0, 0.0
            for picture, total in itertools.islice(_replay(env, result.seeds[number], actions), room):  # noqa: B007
                yield picture
                shown += 1
            room -= shown
            whole.append(shown == len(actions) + 1)
            if whole[-1] and not math.isclose(total, result.returns[number], rel_tol=1e-6, abs_tol=1e-6):
                unlike.append(number)
            if not room:
                return

    draft = film.with_name(f".{film.stem}.{os.getpid()}.mp4")
    try:
        film.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(pictures()) as frames:
            _write(draft, frames, fps)
        draft.replace(film)
    except OSError as error:
        why, fix = one_line(str(error.strerror or error), 200), "Name another file with --video."
        raise RecordError(where=str(film), rule="the film must be written", got=why, fix=fix) from error
    finally:
        with contextlib.suppress(OSError):  # there is none
            draft.unlink()
    return Film(file=film, whole=tuple(whole), seconds=(most - room) / fps, unlike=tuple(unlike))


def _write(path: Path, frames: Generator[Any, None, None], fps: float) -> None:
    import imageio_ffmpeg

    first = next(frames)
    # The index at the beginning, where a browser looks for it; H.264 takes no odd sizes.
    more = ["-movflags", "+faststart", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
    settings = {"fps": fps, "macro_block_size": 1, "ffmpeg_log_level": "error", "output_params": more}
    size = (first.shape[1], first.shape[0])
    with contextlib.closing(imageio_ffmpeg.write_frames(str(path), size, **settings)) as process:
        process.send(None)
        for frame in itertools.chain([first], frames):
            process.send(np.ascontiguousarray(frame))
