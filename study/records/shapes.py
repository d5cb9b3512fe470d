"""What a file's content must be before it becomes a value: every field of the type that its class declares. Pure.

Dataclasses do not look at what they are given, and a file may hold anything. What passes here can be added, divided,
looked up and written down again by whatever reads it: no whole number is too large for a float, no nesting too deep.
"""

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar, get_args, get_type_hints

import msgspec

LARGEST = 2**53
"""Whole numbers up to here are exact as floats."""
MAX_DEPTH = 32
"""Levels of lists and mappings in each other."""

_LONGEST = 200
"""Characters of a message."""

Whole = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Number = Whole | float
"""JSON writes 1.0 as 1, and both stay what they are."""
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since the epoch, as far as a calendar goes."""


class Git(TypedDict, total=False):
    """What readers use of `Provenance`'s `git`, where it is there."""

    commit: str | None
    dirty: bool | None


class Provenance(TypedDict, total=False):
    """What readers use of `StudyOpened.provenance`, where it is there."""

    time: str | None
    git: Git | None
    versions: dict[str, str | None] | None
    hostname: str | None
    platform: str | None
    cpu_model: str | None
    physical_cpus: Whole | None
    logical_cpus: Whole | None
    usable_cpus: Whole | None
    memory_mb: Whole | None
    command: list[str] | None
    scheduler: dict[str, str] | None
    environment: dict[str, str] | None
    own_modules: dict[str, str | None] | None


class Effective(TypedDict, total=False):
    """What readers use of `TrialBuilt.effective`, where it is there."""

    hostnames: list[str] | None
    num_learners: Whole | None
    torch_threads_learner: Whole | None


class Place(TypedDict):
    """What readers use of each entry of `TrialBuilt.placement`."""

    host: str
    num_cpus: Whole
    cpu_model: NotRequired[str | None]
    """Recorded since 0.12.1, as `machine` is."""
    machine: NotRequired[str]


class Setting(TypedDict):
    """What every setting has, beside its other parameters."""

    num_env_runners: Number


_INNER: Mapping[str, Any] = {
    "provenance": Provenance,
    "effective": Effective,
    "placement": list[Place],
    "setting": Setting,
    "node_loads": Any,  # their class is below the records, and does not limit its numbers; what it lacks is not kept
}
"""Field -> what readers use in it, where its class declares less; other entries are kept as they are."""

T = TypeVar("T")


def read(kind: type[T], content: Mapping[str, Any]) -> T:
    """Return a value of a dataclass from JSON values.

    Raises:
        ValueError: A field is missing, unknown, or not of its type: which one, and why, in a line.
    """
    open_fields, names = _fields(kind)  # type: ignore[arg-type]
    if not content.keys() <= names:
        raise ValueError(f"unknown fields {', '.join(sorted(content.keys() - names))[:_LONGEST]}")
    try:
        value = msgspec.convert(content, kind)
    except ValueError as error:  # it may repeat a value; which field it is stands at the end
        text = str(error)
        raise ValueError(text if len(text) <= _LONGEST else f"{text[:60]}…{text[-100:]}") from error
    for name in open_fields:
        if name in content:
            check(_INNER.get(name, Any), content[name], name)
    return value


def check(kind: Any, value: object, name: str) -> None:
    """Check a JSON value that is kept as it is.

    Args:
        kind: The type of what readers use of it, such as `Provenance`.
        value: The value.
        name: What the error calls it.

    Raises:
        ValueError: It is not of this type, nested too deep, or holds a whole number that no float holds.
    """
    try:
        msgspec.convert(value, kind)
    except ValueError as error:
        raise ValueError(f"{error} in {name}") from error
    if not _is_shallow(value, MAX_DEPTH):
        raise ValueError(f"{name} has whole numbers beyond {LARGEST}, or more than {MAX_DEPTH} levels")


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return which fields of a dataclass its class declares only in part, and all of them."""
    names = [item.name for item in fields(kind)]
    hints = get_type_hints(kind)
    return tuple(name for name in names if name in _INNER or _is_open(hints[name])), frozenset(names)


def _is_open(hint: Any) -> bool:
    return hint is Any or any(map(_is_open, get_args(hint)))


def _is_shallow(value: object, levels: int) -> bool:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return levels > 0 and all(_is_shallow(each, levels - 1) for each in inner)
    return type(value) is not int or -LARGEST <= value <= LARGEST
