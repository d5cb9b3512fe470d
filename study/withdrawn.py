"""What version 0.12.2 had and this one does not: whoever asks for it reads so in one line. Imports no engine."""

from collections.abc import Mapping, Sequence

from study.errors import StudyError

_HONESTY = "Leave it out: `certificate verify` shows that the arithmetic is right, not that the records are honest."
COMMANDS: Mapping[str, str] = {}
"""Command -> what to do instead."""
OPTIONS: Mapping[str, str] = {
    f"certificate verify {option}": _HONESTY for option in ("--frozen", "--rerun", "--seed", "--tracking-uri")
}
"""Option behind its command -> what to do instead."""


def check_withdrawn(args: Sequence[str]) -> None:
    """Refuse a command line that has a command or an option which is gone.

    Raises:
        StudyError: Names it, and what to do instead.
    """
    words = {part for word in args for part in word.split("=", 1)}
    if args and args[0] in COMMANDS:
        raise withdrawn(args[0])
    for name in OPTIONS:
        if words.issuperset(name.split()):
            raise withdrawn(name)


def withdrawn(name: str) -> StudyError:
    """Return the error of a command or an option that is gone."""
    fix = (COMMANDS | OPTIONS)[name]
    return StudyError(where=name, rule="is withdrawn since version 0.13.0", fix=fix)
