"""What version 0.12.2 had and this one does not: whoever asks for it reads so in one line. Imports no engine."""

from collections.abc import Mapping

from study.errors import StudyError

COMMANDS: Mapping[str, str] = {
    "seams": "Run `pytest tests/contract/test_private.py`, which checks what is used of Ray, RLlib, MLflow and JAX.",
}
"""Command -> what to do instead."""


def withdrawn(name: str) -> StudyError:
    """Return the error of a command that is gone."""
    return StudyError(where=name, rule="is withdrawn since version 0.13.0", fix=COMMANDS[name])
