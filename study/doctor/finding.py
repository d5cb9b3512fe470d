"""What a check says: ok, warn or fail, what was found and what to do. Imports nothing heavy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from study.errors import StudyError

if TYPE_CHECKING:
    from study.doctor.surroundings import Surroundings

Level = Literal["ok", "warn", "fail"]
"""`fail`: a study cannot run here, or its numbers would be wrong and not say so. `warn`: it can, with the loss told."""
LEVELS: tuple[Level, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, in a sentence without a full stop at the end, and what to do unless all is well."""

    level: Level
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        if (self.level == "ok") != (not self.fix):
            raise ValueError(f"what is not ok needs a fix, and nothing else does, got {self}")


def ok(found: str) -> Verdict:
    """Return that all is well."""
    return Verdict("ok", found)


def warn(found: str, fix: str) -> Verdict:
    """Return that a study runs, with a loss."""
    return Verdict("warn", found, fix)


def fail(found: str, fix: str) -> Verdict:
    """Return that a study would fail, or lie."""
    return Verdict("fail", found, fix)


def refused(error: StudyError) -> Verdict:
    """Return what an error of this project says; its message is `where: law, got value. Fix: action.`."""
    found, _, fix = " ".join(str(error).split()).partition(" Fix: ")
    return fail(found.rstrip("."), fix[:1].upper() + fix[1:] or "See above.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the diagnosis."""

    theme: str
    check: str
    level: Level
    found: str
    fix: str

    @property
    def name(self) -> str:
        """Theme and check."""
        return f"{self.theme}: {self.check}"


Look = Callable[["Surroundings"], Verdict | None]
"""Judges the surroundings; None where the question does not arise."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question, and how it is answered."""

    theme: str
    name: str
    look: Look
