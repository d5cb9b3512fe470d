"""Pictures -> an .mp4 or a .gif with a poster beside it, and the facts of what is seen.

Imports its encoders when needed. Pictures are written as they come, to a draft that takes the film's name at the end.
"""

import contextlib
import importlib.util
import json
import os
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from study.errors import Fault, RecordError, SpaceError
from study.records.files import write_atomically

if TYPE_CHECKING:
    from study.trial.engine.envs.frames import Frame

BEST = "best"
"""Name of the film of a study's best policy: the one that its report shows."""
SUFFIXES = (".mp4", ".gif")
EPISODES = 3
"""Episodes that are shown, from the first."""
MOST_SECONDS = 20.0
"""Length of a film at most: a long episode is cut there."""
GIF_FPS = 25.0
"""Pictures per second of a .gif at most; viewers slow down shorter delays than 0.02 s."""
_MAX_FACTS = 100_000
_GIF_COLOURS = 128
_GIF_TICK_MS = 10
"""Delays in a .gif are whole hundredths of a second."""
_INSTALL = "pip install '.[video]', or name a .gif."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """What is seen of one episode."""

    episode: int
    """From 0, as in the evaluation."""
    seed: int
    """Of the environment."""
    episode_return: float
    """Return of the whole episode, as it was counted."""
    num_steps: int
    """Of the whole episode."""
    num_frames: int
    """Pictures of it in the film."""
    whole: bool
    """Whether it is seen to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a film shows, for those who find it beside its file."""

    file: str
    """Name of the film, beside this."""
    study_id: str | None
    trial: int | None
    environment: str
    deterministic: bool
    evaluation_seed: int
    fps: float
    shots: tuple[Shot, ...]

    def write(self, film: Path) -> Path:
        """Write them beside the film and return the file."""
        path = film.with_suffix(".json")
        write_atomically(path, json.dumps(asdict(self), indent=1))
        return path

    @classmethod
    def read(cls, path: Path) -> "Facts":
        """Return what was written.

        Raises:
            RecordError: It is something else.
        """
        try:
            if path.stat().st_size > _MAX_FACTS:
                raise ValueError(f"more than {_MAX_FACTS} bytes")
            content = json.loads(path.read_text())
            facts = cls(**{**content, "shots": tuple(Shot(**shot) for shot in content["shots"])})
            if Path(facts.file).name != facts.file or Path(facts.file).suffix not in SUFFIXES or not facts.shots:
                raise ValueError(f"no film: {facts.file!r}")
            for shot in facts.shots:
                float(shot.episode_return)
        except (OSError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise RecordError(
                f"{path}: must say what a film shows, got a damaged file ({' '.join(str(error).split())[:100]}). "
                "Fix: film it again."
            ) from error
        return facts


def check_target(path: Path) -> None:
    """Refuse a name that no film can have here: before anything is played.

    Raises:
        SpaceError: The ending is none of `SUFFIXES`, what encodes it is not installed, or a folder is in its place.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise _mistake(f"must end in {' or '.join(SUFFIXES)}, got '{path}'.", "Name the file so.")
    if path.is_dir():
        raise _mistake(f"must be a file, got the folder {path}.", f"Name a file in it, such as {path / 'best.mp4'}.")
    if path.suffix.lower() == ".mp4":
        try:
            import imageio_ffmpeg  # noqa: F401
        except ImportError as error:
            raise _mistake("an .mp4 needs imageio-ffmpeg, which is not installed.", _INSTALL) from error


def best_suffix() -> str:
    """Return the ending for a film that a person gave no name: .mp4, the smaller one, where that can be written."""
    return ".mp4" if importlib.util.find_spec("imageio_ffmpeg") is not None else ".gif"


class Writer(Protocol):
    """Takes the pictures of a film one after another."""

    def add(self, frame: "Frame") -> None:
        """Take the next picture; all have the shape of the first."""


@contextlib.contextmanager
def writing(path: Path, fps: float) -> Iterator[Writer]:
    """Hold a film open; the file is there when the block has ended well.

    Args:
        path: The film; its folder is made.
        fps: Pictures per second at which they come.

    Raises:
        RecordError: It cannot be written.
    """
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(_Mp4(draft, fps) if path.suffix.lower() == ".mp4" else _Gif(draft, fps)) as film:
            yield film
            film.finish()
        draft.replace(path)
    except OSError as error:
        why = " ".join(str(error.strerror or error).split())[:200]
        raise RecordError(
            f"{path}: the film must be written, got: {why}. Fix: name another file with --video."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # there is none
            draft.unlink()


def write_poster(frame: "Frame", film: Path) -> Path:
    """Write one picture beside a film, as .png, and return its file.

    Raises:
        RecordError: It cannot be written.
    """
    from PIL import Image

    path = film.with_suffix(".png")
    try:
        Image.fromarray(frame).save(path)
    except OSError as error:
        raise RecordError(
            f"{path}: must be writable ({error.strerror}). Fix: name another file with --video."
        ) from error
    return path


class _Mp4:
    """H.264 by way of the ffmpeg that imageio-ffmpeg brings."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, fps
        self._process: Generator[None, Any, None] | None = None

    def add(self, frame: "Frame") -> None:
        even = np.pad(frame, [(0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)], mode="edge")
        if self._process is None:
            import imageio_ffmpeg

            size = (even.shape[1], even.shape[0])
            process = imageio_ffmpeg.write_frames(
                # At the beginning is where a browser looks for the index.
                *(str(self._path), size),
                **{"fps": self._fps, "macro_block_size": 1, "ffmpeg_log_level": "error"},
                output_params=["-movflags", "+faststart"],
            )
            process.send(None)
            self._process = process
        assert self._process is not None
        self._process.send(np.ascontiguousarray(even).tobytes())

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


class _Gif:
    """A .gif by Pillow: every picture has its own colours, and of fast ones some are left out."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._every = max(-(-fps // GIF_FPS), 1.0)
        self._delay_ms = round(self._every * 1000 / fps / _GIF_TICK_MS) * _GIF_TICK_MS
        self._seen = 0
        self._kept: list[Any] = []

    def add(self, frame: "Frame") -> None:
        from PIL import Image

        if self._seen % self._every == 0:
            self._kept.append(Image.fromarray(frame).quantize(_GIF_COLOURS, dither=Image.Dither.NONE))
        self._seen += 1

    def finish(self) -> None:
        first, *rest = self._kept
        first.save(self._path, save_all=True, append_images=rest, duration=self._delay_ms, loop=0)

    def close(self) -> None:
        self._kept = []


def _mistake(law: str, fix: str) -> SpaceError:
    return SpaceError("command line", [Fault(where="--video", rule=law, fix=fix)])
