"""What a value of a space may be, wherever the space was read: YAML, a study's identity, Python. Pure.

Parsers take more than any space needs: numbers of a million digits, lists in lists without end, text that cannot be
written down again. It is refused here, once, so that no law, table or message behind has to reckon with it.
"""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

Place = tuple[str | int, ...]

MAX_DEPTH = 32
"""Levels of lists and mappings in each other; shipped spaces have five."""
MAX_VALUES = 20_000
"""Guards against aliases that expand without end."""
MAX_CHARACTERS = 1_000_000
"""In all texts together, each counted wherever an alias puts it."""
MAX_KEY = 200
"""Characters of a key."""
MAX_TRIALS = 1_000_000
"""Of one study: more than anybody can run, and a plan holds each of them."""
MAX_WHOLE = 2**63 - 1
"""The whole numbers that JSON's readers, NumPy and databases agree on; `str` refuses those of 4300 digits."""


def unfit(content: Mapping[str, Any]) -> Iterator[tuple[Place, str, str]]:
    """Yield place, law and fix for every value that no space has; ends early where there are too many values."""
    waiting: list[tuple[Place, Any]] = [((), content)]
    seen = characters = 0
    while waiting:
        place, value = waiting.pop()
        seen += 1
        characters += len(value) if isinstance(value, str) else 0
        if seen > MAX_VALUES or characters > MAX_CHARACTERS:
            yield (), f"at most {MAX_VALUES} values and {MAX_CHARACTERS} characters.", "Do not nest aliases."
            return
        if isinstance(value, (Mapping, list)):
            if len(place) >= MAX_DEPTH:
                yield place[:3], f"at most {MAX_DEPTH} levels.", "Nest less."
                continue
            inner = list(value.items() if isinstance(value, Mapping) else enumerate(value))
            yield from _unfit_keys(place, value)
            waiting.extend(((*place, key), each) for key, each in reversed(inner) if _fits(str(key)))
        elif isinstance(value, str) and not _is_text(value):
            yield place, "must be text, got half of a surrogate pair.", "Write the character itself."
        elif isinstance(value, int) and not -MAX_WHOLE <= value <= MAX_WHOLE:
            yield place, "whole numbers have at most 64 bits.", "Write a smaller number."


def shown(value: object) -> str:
    """Return a value as a message shows it: a long one in part."""
    return _SHORT.repr(value)


def _unfit_keys(place: Place, value: object) -> Iterator[tuple[Place, str, str]]:
    if isinstance(value, Mapping):
        for key in value:
            if not _fits(str(key)):
                yield place, f"keys must be at most {MAX_KEY} printable characters, got {shown(key)}.", "Rename it."


def _fits(key: str) -> bool:
    return len(key) <= MAX_KEY and (key.isprintable() or not key)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 4, 20, 20, 200, 200
