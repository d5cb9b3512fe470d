"""The film of a study's best policy, as `python -m study evaluate STUDY --video` left it. Reads files; no engine."""

import base64
from dataclasses import dataclass
from pathlib import Path

from analysis.film import BEST, FilmFacts
from study.errors import RecordError
from study.text import count, listed, plain

FOLDER = "clips"
"""Inside of the study's folder."""
MAX_BYTES = 2_000_000
"""Of a film inside of a page: what still opens at once and fits an e-mail."""
_KINDS = {".mp4": ("video/mp4", b"ftyp", 4), ".gif": ("image/gif", b"GIF8", 0)}
"""Ending -> media type, and what such a file has where."""
_FIX = "Film it again with `python -m study evaluate STUDY --video`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A film that a page can show, or why it cannot.

    Attributes:
        caption: What is seen, as sentences.
        suffix: `.mp4`, or `.gif`, which moves by itself.
        film: Its bytes; empty where it is missing.
        missing: Why it is not shown; empty where it is.
    """

    caption: str = ""
    suffix: str = ".mp4"
    film: bytes = b""
    missing: str = ""

    @property
    def film_uri(self) -> str:
        """The film as a data URI."""
        return f"data:{_KINDS[self.suffix][0]};base64,{base64.b64encode(self.film).decode()}"


def find_clip(study: Path, study_id: str) -> Clip | None:
    """Return the film of the study's best policy; None where nobody has made one.

    Args:
        study: The study's folder, which may be anybody's: what is no film by its first bytes is left out.
        study_id: Of the study: a film of another one is left out.
    """
    facts_file = study / FOLDER / f"{BEST}.json"
    if not facts_file.is_file():
        return None
    try:
        facts = FilmFacts.read(facts_file)
        film = _content(facts_file.with_name(facts.file), MAX_BYTES)
    except RecordError as error:
        return Clip(missing=str(error))
    if facts.study_id != study_id:
        return Clip(missing=f"{facts_file}: must show this study, got {facts.study_id}. Fix: {_FIX}")
    episode = "greedy episode" if facts.deterministic else "drawn episode"
    many = len(facts.shots) > 1
    cut = "" if all(shot.whole for shot in facts.shots) else " The last one is not shown to its end."
    caption = (
        f"The first {count(len(facts.shots), episode) if many else episode} of trial {facts.trial} in "
        f"{facts.environment}, evaluation seed {facts.evaluation_seed}; return{'s' if many else ''} "
        f"{listed([plain(shot.episode_return) for shot in facts.shots])}.{cut} Single episodes: an impression, no "
        "result."
    )
    return Clip(caption=caption, suffix=Path(facts.file).suffix, film=film)


def _content(file: Path, limit: int) -> bytes:
    """Return a film or a picture.

    Raises:
        RecordError: It is missing, too large, or something else.
    """
    _, mark, start = _KINDS[file.suffix]
    try:
        size = file.stat().st_size if file.is_file() else 0
        content = file.read_bytes() if 0 < size <= limit else b""
    except OSError as error:
        raise RecordError(where=str(file), rule=f"must be readable ({error.strerror})", fix=_FIX) from error
    if size > limit:
        rule, fix = f"must have at most {limit / 1e6:g} MB to be shown in a page", "Open the file itself."
        raise RecordError(where=str(file), rule=rule, got=f"{size / 1e6:.1f}", fix=fix)
    if content[start : start + len(mark)] != mark:
        raise RecordError(where=str(file), rule=f"must be a {file.suffix}", got="another content or none", fix=_FIX)
    return content
