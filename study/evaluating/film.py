"""Episodes of an evaluation, seen again: as an .mp4 or a .gif with a poster beside it.

Below each picture stand the policy, the episode, the step and the return so far; the last picture of an episode stands
still for a moment, marked as its end.

Steps environments; imports the encoders (imageio-ffmpeg, Pillow) when needed. No Ray, no torch.
"""

import contextlib
import importlib.util
import itertools
import math
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from study.errors import RecordError
from study.options import wrong_option
from study.records.clip import SUFFIXES, Shot

if TYPE_CHECKING:
    from study.trial.engine.envs.frames import Frame, Scene
    from study.trial.evaluation import EvaluationResult

EPISODES = 3
"""Episodes that are shown, from the first."""
MOST_SECONDS = 20.0
"""Length of a film at most: a long episode is cut there."""
GIF_FPS = 25.0
"""Pictures per second of a .gif at most; viewers slow down shorter delays than 0.02 s."""
END_SECONDS = 0.8
"""How long the last picture of an episode stands still."""
NARROWEST = 200
"""Pixels of a picture that has room for words below it."""
_STRIP, _END_STRIP, _WORDS = (24, 26, 30), (32, 84, 147), (235, 235, 235)
"""Colours below the picture, while the episode runs and at its end, and of the words."""
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
    elif path.suffix.lower() == ".mp4" and not _writes_mp4():
        rule, got = "an .mp4 needs imageio-ffmpeg", "no such package"
        fix = "Run `pip install 'imageio-ffmpeg>=0.6'`, or name a .gif."
    else:
        return
    raise wrong_option("--video", rule=rule, got=got, fix=fix)


def best_suffix() -> str:
    """Return the ending for a film that a person gave no name: .mp4, the smaller one, where that can be written."""
    return ".mp4" if _writes_mp4() else ".gif"


def _writes_mp4() -> bool:
    return importlib.util.find_spec("imageio_ffmpeg") is not None


def show(scene: "Scene", result: "EvaluationResult", *, film: Path, title: str = "") -> Film:
    """Play episodes again with the actions that they had, into a film.

    Args:
        scene: The environment, ready to draw.
        result: The evaluation, with the actions of the episodes that are shown.
        film: Where the pictures go.
        title: Whose policy it is, for the words below the pictures.

    Raises:
        SpaceError: The environment does not draw.
        RecordError: The film cannot be written.
    """
    from PIL import Image

    replay, poster = _Replay(scene, result, title), film.with_suffix(".png")
    with _written(film) as draft, contextlib.closing(replay.frames()) as frames:
        write = _write_mp4 if film.suffix.lower() == ".mp4" else _write_gif
        write(draft, frames, scene.fps)
    with _written(poster) as draft:
        Image.fromarray(replay.poster).save(draft)
    return Film(
        shots=tuple(replay.shots),
        fps=scene.fps,
        num_frames=sum(shot.num_frames for shot in replay.shots),
        file=film,
        poster=poster,
        unlike=tuple(replay.unlike),
    )


@dataclass
class _Replay:
    """Plays the first episodes again, and keeps what was seen of each."""

    scene: "Scene"
    result: "EvaluationResult"
    title: str
    shots: list[Shot] = field(default_factory=list)
    unlike: list[int] = field(default_factory=list)
    poster: "Frame" = field(default_factory=lambda: np.zeros((1, 1, 3), np.uint8))

    def frames(self) -> Generator["Frame", None, None]:
        """Yield every picture of the episodes, as far as there is room."""
        room = math.floor(MOST_SECONDS * self.scene.fps)
        middle = min(room, len(self.result.actions[0])) // 2
        for episode, actions in enumerate(self.result.actions[:EPISODES]):
            shown, whole, total = 0, False, 0.0
            for frame, total, whole in self._episode(episode):  # noqa: B007 (those of the last picture count)
                if not self.shots and shown == middle:
                    self.poster = frame
                yield frame
                shown, room = shown + 1, room - 1
                if not room:
                    break
            expected = self.result.returns[episode]
            shot = Shot(
                episode=episode,
                seed=self.result.seeds[episode],
                episode_return=expected,
                num_steps=len(actions),
                num_frames=shown,
                whole=whole,
            )
            self.shots.append(shot)
            if whole and not math.isclose(total, expected, rel_tol=1e-6, abs_tol=1e-6):
                self.unlike.append(episode)
            if not room:
                return

    def _episode(self, episode: int) -> Iterator[tuple["Frame", float, bool]]:
        """Yield the pictures of an episode, the last one for a moment longer; the return so far; whether it is over."""
        actions, words = self.result.actions[episode], f"episode {episode + 1}"
        title = " · ".join(filter(None, [self.title, words]))
        for step, (frame, so_far) in enumerate(self.scene.replay(self.result.seeds[episode], actions)):
            ended = step == len(actions)
            if frame.shape[1] < NARROWEST:
                yield frame, so_far, ended
                continue
            captioned = with_caption(frame, (title, f"step {step} · return {so_far:.4g}"), ended=ended)
            for _ in range(1 + ended * round(END_SECONDS * self.scene.fps)):
                yield captioned, so_far, ended


def with_caption(frame: "Frame", words: tuple[str, str], *, ended: bool) -> "Frame":
    """Return a picture with a strip of two lines below it: whose episode it is, and how far it has come.

    Args:
        frame: Shape (height, width, 3).
        words: The lines; they are cut where the picture ends.
        ended: Whether the strip marks the end of the episode.
    """
    from PIL import Image, ImageDraw, ImageFont

    width = frame.shape[1]
    size = min(max(width // 26, 10), 20)
    strip = Image.new("RGB", (width, 3 * size), _END_STRIP if ended else _STRIP)
    draw, font = ImageDraw.Draw(strip), ImageFont.load_default(size)
    for line, text in enumerate((words[0], f"{words[1]} · END" if ended else words[1])):
        draw.text((size // 2, (0.25 + 1.3 * line) * size), text, fill=_WORDS, font=font)
    return np.vstack([frame, np.asarray(strip)])


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
        why = " ".join(str(error.strerror or error).split())[:200]
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
