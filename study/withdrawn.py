"""What version 0.12.2 had and this one does not: whoever asks for it reads so in one line. Imports no engine."""

from collections.abc import Mapping

from study.errors import StudyError

COMMANDS: Mapping[str, str] = {
    "replay": "Read what it found in study/designs/holdup/evidence.md, or run it in version 0.12.2.",
}
"""Command -> what to do instead."""
OPTIONS: Mapping[str, str] = {
    "--format patch": "Use --format python, and compare the two scripts with diff.",
}
"""Option, or option with a value -> what to do instead."""


def withdrawn(name: str) -> StudyError:
    """Return the error of a command or an option that is gone."""
    fix = (COMMANDS | OPTIONS)[name]
    return StudyError(where=name, rule="is withdrawn since version 0.13.0", fix=fix)
