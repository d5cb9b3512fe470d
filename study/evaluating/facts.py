"""The facts of a film, beside it in a study's `clips/`."""

from pathlib import Path

import msgspec
from msgspec import Struct

from study.records.files import write_atomically

BEST = "best"
"""Name of the film of a study's best policy."""
SUFFIXES = (".mp4", ".gif")


class Shot(Struct, frozen=True, kw_only=True):
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


class FilmFacts(Struct, frozen=True, kw_only=True):
    """What a film shows."""

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
        write_atomically(path, msgspec.json.format(msgspec.json.encode(self), indent=1))
        return path
