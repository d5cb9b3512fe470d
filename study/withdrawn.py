"""What version 0.12.2 had and this one does not: whoever asks for it reads so in one line. Imports no engine."""

from collections.abc import Iterator, Mapping
from typing import Any

from study.errors import Fault

VALUES: Mapping[tuple[str, str], str] = {
    ("learner", "lean"): "Remove it: the fused learner serves where it can, else RLlib's own.",
}
"""Key of a space, and a value that it had -> what to do instead."""


def withdrawn_values(content: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault for each value in the content of a space that is withdrawn."""
    for (key, value), fix in VALUES.items():
        if content.get(key) == value:
            yield Fault(where=key, rule=f"`{value}` is withdrawn since version 0.13.0", fix=fix)
