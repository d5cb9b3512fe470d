"""Episodes of an evaluation, seen again: as an .mp4 or a .gif with a poster beside it.

Steps environments; imports the encoders (imageio-ffmpeg, Pillow) when needed. No Ray, no torch.
"""

import contextlib
import importlib.util
import itertools
import math
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from study.errors import RecordError
from study.evaluating.facts import SUFFIXES, Shot
from study.harmless import one_line
from study.options import wrong_option

if TYPE_CHECKING:
    from study.trial.engine.envs.frames import Frame, Scene
    from study.trial.evaluation import EvaluationResult

EPISODES = 3
"""Episodes that are shown, from the first."""
MOST_SECONDS = 20.0
"""Length of a film at most: a long episode is cut there."""
GIF_FPS = 25.0
"""Pictures per second of a .gif at most; viewers slow down shorter delays than 0.02 s."""
_GIF_TICK_MS = 10
"""Delays in a .gif are whole hundredths of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Film:
    """What was shown.

    Attributes:
        shots: One for each episode of which something was seen.
        fps: Pictures per second.
        num_frames: Pictures of the film.
        file: The film.
        poster: A picture from the middle of the first episode, beside the film.
        unlike: Episodes whose replay had another return than the one that was counted.
    """

    shots: tuple[Shot, ...]
    fps: float
    num_frames: int
    file: Path
    poster: Path
    unlike: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Length at the environment's own pace."""
        return self.num_frames / self.fps


def check_target(path: Path) -> None:
    """Refuse a name that no film can have here: before anything is played.

    Raises:
        SpaceError: The ending is none of `SUFFIXES`, what encodes it is not installed, or a folder is in its place.
    """
    if path.suffix.lower() not in SUFFIXES:
        rule, got, fix = f"must end in {' or '.join(SUFFIXES)}", f"'{path}'", "Name the file so."
    elif path.is_dir():
        rule, got, fix = "must be a file", f"the folder {path}", f"Name a file in it, such as {path / 'best.mp4'}."
    elif path.suffix.lower() == ".mp4" and best_suffix() != ".mp4":
        rule, got = "an .mp4 needs imageio-ffmpeg", "no such package"
        fix = "Run `pip install 'imageio-ffmpeg>=0.6'`, or name a .gif."
    else:
        return
    raise wrong_option("--video", rule=rule, got=got, fix=fix)


def best_suffix() -> str:
    """Return the ending for a film that a person gave no name: .mp4, the smaller one, where that can be written."""
    return ".gif" if importlib.util.find_spec("imageio_ffmpeg") is None else ".mp4"


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
    from PIL import Image

    shots: list[Shot] = []
    unlike: list[int] = []
    room = math.floor(MOST_SECONDS * scene.fps)
    middle = min(room, len(result.actions[0])) // 2
    poster_frame: Frame = np.zeros((1, 1, 3), np.uint8)

    def frames() -> "Generator[Frame, None, None]":
        nonlocal poster_frame, room
        for episode, actions in enumerate(result.actions[:EPISODES]):
            shown, total = 0, 0.0
            for frame, total in itertools.islice(scene.replay(result.seeds[episode], actions), room):  # noqa: B007
                if not shots and shown == middle:
                    poster_frame = frame
                yield frame
                shown += 1
            room -= shown
            expected, whole = result.returns[episode], shown == len(actions) + 1
            shot = Shot(
                episode=episode,
                seed=result.seeds[episode],
                episode_return=expected,
                num_steps=len(actions),
                num_frames=shown,
                whole=whole,
            )
            shots.append(shot)
            if whole and not math.isclose(total, expected, rel_tol=1e-6, abs_tol=1e-6):
                unlike.append(episode)
            if not room:
                return

    poster = film.with_suffix(".png")
    with _written(film) as draft, contextlib.closing(frames()) as pictures:
        write = _write_mp4 if film.suffix.lower() == ".mp4" else _write_gif
        write(draft, pictures, scene.fps)
    with _written(poster) as draft:
        Image.fromarray(poster_frame).save(draft)
    num_frames = sum(shot.num_frames for shot in shots)
    return Film(
        shots=tuple(shots), fps=scene.fps, num_frames=num_frames, file=film, poster=poster, unlike=tuple(unlike)
    )


@contextlib.contextmanager
def _written(path: Path) -> Iterator[Path]:
    """Yield the draft of a file, which takes its name when the block has ended well.

    Raises:
        RecordError: It cannot be written.
    """
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.replace(path)
    except OSError as error:
        why = one_line(str(error.strerror or error), 200)
        fix = "Name another file with --video."
        raise RecordError(where=str(path), rule="the film must be written", got=why, fix=fix) from error
    finally:
        with contextlib.suppress(OSError):  # there is none
            draft.unlink()


def _write_mp4(path: Path, frames: Iterator["Frame"], fps: float) -> None:
    """Write H.264 by the ffmpeg that imageio-ffmpeg brings."""
    import imageio_ffmpeg

    first = next(frames)
    size = (first.shape[1], first.shape[0])
    # The index at the beginning, where a browser looks for it; H.264 takes no odd sizes.
    more = ["-movflags", "+faststart", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
    settings = {"fps": fps, "macro_block_size": 1, "ffmpeg_log_level": "error", "output_params": more}
    with contextlib.closing(imageio_ffmpeg.write_frames(str(path), size, **settings)) as process:
        process.send(None)
        for frame in itertools.chain([first], frames):
            process.send(np.ascontiguousarray(frame))


def _write_gif(path: Path, frames: Iterator["Frame"], fps: float) -> None:
    """Write a .gif by Pillow; of fast films some pictures are left out."""
    from PIL import Image

    every = max(math.ceil(fps / GIF_FPS), 1)
    delay_ms = round(every * 1000 / fps / _GIF_TICK_MS) * _GIF_TICK_MS
    images = (Image.fromarray(frame) for frame in itertools.islice(frames, 0, None, every))
    next(images).save(path, save_all=True, append_images=images, duration=delay_ms, loop=0)
