"""What a value of a space may be, wherever the space was read: YAML, a study's identity, Python. Pure.

Parsers accept more than any space needs: numbers of a million digits, lists nested without end, text that cannot be
written again. It is refused here, once, so that no check, table or message has to expect it.
"""

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from study.errors import Fault

Place = tuple[str | int, ...]

MAX_FAULTS = 100
"""Most faults of one file that are reported."""
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


def unfit(content: Mapping[Any, Any]) -> Iterator[Fault]:
    """Yield a fault for every value that no space has; ends early where there are too many values."""
    waiting: list[tuple[Place, Any]] = [((), content)]
    seen = characters = 0
    while waiting:
        place, value = waiting.pop()
        where = dotted(place)
        seen += 1
        characters += len(value) if isinstance(value, str) else 0
        if seen > MAX_VALUES or characters > MAX_CHARACTERS:
            rule, fix = f"at most {MAX_VALUES} values and {MAX_CHARACTERS} characters", "Do not nest aliases."
            yield Fault(where="file", rule=rule, fix=fix)
            return
        if isinstance(value, (Mapping, list)):
            if len(place) >= MAX_DEPTH:
                rule, fix = f"at most {MAX_DEPTH} levels", "Nest less, and do not nest aliases."
                yield Fault(where=dotted(place[:3]), rule=rule, fix=fix)
                continue
            inner = list(value.items() if isinstance(value, Mapping) else enumerate(value))
            for key in value if isinstance(value, Mapping) else ():
                if not _fits(key):
                    rule = f"keys must be at most {MAX_KEY} printable characters"
                    got = shown(key) if isinstance(key, str) else "another"
                    yield Fault(where=where, rule=rule, got=got, fix="Rename it.")
            waiting.extend(((*place, key), each) for key, each in reversed(inner) if _fits(key))
        elif isinstance(value, str) and not _is_text(value):
            rule, got, fix = "must be text", "half of a surrogate pair", "Write the character itself."
            yield Fault(where=where, rule=rule, got=got, fix=fix)
        elif isinstance(value, int) and not -MAX_WHOLE <= value <= MAX_WHOLE:
            yield Fault(where=where, rule="whole numbers have at most 64 bits", fix="Write a smaller number.")


def dotted(place: Place) -> str:
    """Return the name of a place as messages show it: `parameters.lr`."""
    return ".".join(map(str, place)) or "file"


def shown(value: object) -> str:
    """Return a value as a message shows it: a long one in part."""
    return _SHORT.repr(value)


def _fits(key: object) -> bool:
    if isinstance(key, int) and not -MAX_WHOLE <= key <= MAX_WHOLE:
        return False
    return len(str(key)) <= MAX_KEY and str(key).isprintable()


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 4, 20, 20, 200, 200
