"""The facts of a film, beside it in a study's `clips/`: what a report says below it."""

from pathlib import Path

import msgspec
from msgspec import Struct

from study.errors import RecordError
from study.harmless import one_line
from study.records.files import write_atomically

BEST = "best"
"""Name of the film of a study's best policy: the one that its report shows."""
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

    @classmethod
    def read(cls, path: Path) -> "FilmFacts":
        """Return what was written.

        Raises:
            RecordError: It is something else.
        """
        try:
            facts = msgspec.json.decode(path.read_bytes(), type=cls)
            if Path(facts.file).name != facts.file or Path(facts.file).suffix not in SUFFIXES or not facts.shots:
                raise ValueError(f"no film: {facts.file!r}")
        except (OSError, RecursionError, ValueError) as error:
            got = f"a damaged file ({one_line(str(error), 100)})"
            rule, fix = "must say what a film shows", "Film it again."
            raise RecordError(where=str(path), rule=rule, got=got, fix=fix) from error
        return facts
