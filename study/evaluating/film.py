"""The first episodes of an evaluation, seen again as an .mp4, by the ffmpeg of imageio-ffmpeg. No Ray, no torch."""

import contextlib
import importlib.util
import itertools
import math
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from study.errors import RecordError
from study.harmless import one_line
from study.options import wrong_option

if TYPE_CHECKING:
    from study.trial.engine.envs.frames import Frame, Scene
    from study.trial.evaluation import EvaluationResult

EPISODES = 3
"""Episodes that are shown, from the first."""
MOST_SECONDS = 20.0
"""Length of a film at most: a long episode is cut there."""


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
    """Refuse a name that no film can have here: before anything is played.

    Raises:
        SpaceError: It is no name of an .mp4 file, or what encodes it is not installed.
    """
    if path.suffix.lower() != ".mp4" or path.is_dir():
        rule, got, fix = "must be the name of an .mp4 file", f"'{path}'", "Write --video film.mp4."
    elif importlib.util.find_spec("imageio_ffmpeg") is None:
        rule, got, fix = "needs imageio-ffmpeg", "no such package", "Run `pip install 'imageio-ffmpeg>=0.6'`."
    else:
        return
    raise wrong_option("--video", rule=rule, got=got, fix=fix)


def show(scene: "Scene", result: "EvaluationResult", *, film: Path) -> Film:
    """Play episodes again with the actions that they had, into a film.

    Args:
        scene: The environment, ready to draw.
        result: The evaluation, with the actions of the episodes that are shown.
        film: Where the pictures go.

    Raises:
        SpaceError: The environment does not draw.
        RecordError: The film cannot be written.
    """
    whole: list[bool] = []
    unlike: list[int] = []
    room = most = math.floor(MOST_SECONDS * scene.fps)

    def pictures() -> "Generator[Frame, None, None]":
        nonlocal room
        for number, actions in enumerate(result.actions[:EPISODES]):
            shown, total = 0, 0.0
            for picture, total in itertools.islice(scene.replay(result.seeds[number], actions), room):  # noqa: B007
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
            _write(draft, frames, scene.fps)
        draft.replace(film)
    except OSError as error:
        why, fix = one_line(str(error.strerror or error), 200), "Name another file with --video."
        raise RecordError(where=str(film), rule="the film must be written", got=why, fix=fix) from error
    finally:
        with contextlib.suppress(OSError):  # there is none
            draft.unlink()
    return Film(file=film, whole=tuple(whole), seconds=(most - room) / scene.fps, unlike=tuple(unlike))


def _write(path: Path, frames: "Generator[Frame, None, None]", fps: float) -> None:
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
