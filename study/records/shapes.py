"""What a file's content must be before it becomes a value: every field of the type that its class declares. Pure.

Dataclasses do not look at what they are given, and a file may hold anything. What passes here can be added, divided,
looked up and written down again by whatever reads it: no whole number is too large for a float, no nesting too deep.
"""

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from study.hosts.load import NodeLoad
from study.space.parameters import SCALE

LARGEST = 2**53
"""Whole numbers up to here are exact as floats."""
LAST_MOMENT = 1e11
"""Seconds since the epoch that a calendar still has."""
MAX_DEPTH = 32
"""Levels of lists and mappings in each other."""

Check = Callable[[Any], bool]

PROVENANCE: Mapping[str, Any] = {
    "time": str | None,
    "git": {"commit": str | None, "dirty": bool | None},
    "versions": dict[str, str | None] | None,
    "hostname": str | None,
    "platform": str | None,
    "cpu_model": str | None,
    "physical_cpus": int | None,
    "logical_cpus": int | None,
    "usable_cpus": int | None,
    "memory_mb": int | None,
    "command": list[str] | None,
    "scheduler": dict[str, str] | None,
    "environment": dict[str, str] | None,
    "own_modules": dict[str, str | None] | None,
}
"""What readers use of `StudyOpened.provenance`, where it is there."""
EFFECTIVE: Mapping[str, Any] = {
    "hostnames": list[str] | None,
    "num_learners": int | None,
    "torch_threads_learner": int | None,
}
"""What readers use of `TrialBuilt.effective`, where it is there."""
PLACE: Mapping[str, Any] = {"host": str, "num_cpus": int}
"""What readers use of each entry of `TrialBuilt.placement`; it is always there."""
_INNER = {"provenance": PROVENANCE, "effective": EFFECTIVE}


def misfit(kind: type, content: Mapping[str, Any]) -> str | None:
    """Return which field of a dataclass cannot have its value, and which value that is; None where all can.

    Args:
        kind: The dataclass.
        content: Field -> JSON value; fields that are not there, or not declared, are not looked at.
    """
    checks = _checks(kind)
    for name, value in content.items():
        check = checks.get(name)
        if check is not None and not check(value):
            return f"{name} {str(value)[:100]!r}"
    return None


def is_exact(value: object) -> bool:
    """Return whether a value is no whole number, or one that is exact as a float."""
    return type(value) is not int or -LARGEST <= value <= LARGEST


def is_moment(value: object) -> bool:
    """Return whether a value is a time, seconds since the epoch."""
    return (type(value) is float or type(value) is int) and 0 <= value <= LAST_MOMENT


@functools.cache
def _checks(kind: type) -> dict[str, Check]:
    hints = get_type_hints(kind)
    more = {**{name: _inner(hints) for name, hints in _INNER.items()}, **_MORE}
    checks = {item.name: _check(hints[item.name]) for item in fields(kind)}
    return {name: _both(check, more[name]) if name in more else check for name, check in checks.items()}


def _both(first: Check, second: Check) -> Check:
    return lambda value: first(value) and second(value)


def _inner(hints: Mapping[str, Any]) -> Check:
    """Return the check of the entries of a mapping that are there; one that is a mapping itself may be None."""
    inner = {name: _inner_or_none(hint) if isinstance(hint, Mapping) else _check(hint) for name, hint in hints.items()}
    return lambda value: all(each(value[name]) for name, each in inner.items() if name in value)


def _inner_or_none(hints: Mapping[str, Any]) -> Check:
    check = _inner(hints)
    return lambda value: value is None or (type(value) is dict and check(value))


def _are_places() -> Check:
    check = _inner({**PLACE, "cpu_model": str | None, "machine": str})  # these two are recorded since 0.12.1
    return lambda places: all(place.keys() >= PLACE.keys() and check(place) for place in places)


def _are_loads() -> Check:
    names = {item.name for item in fields(NodeLoad)}
    least = names - {"machine"}  # recorded since 0.12.1
    return lambda loads: all(names >= load.keys() >= least and misfit(NodeLoad, load) is None for load in loads)


def _check(hint: Any) -> Check:
    """Return what tells whether a JSON value may stand where `hint` is declared."""
    if hint is Any:
        return _is_shallow
    if (scalars := _scalars(hint)) is not None:
        return lambda value: type(value) in scalars and is_exact(value)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        allowed = frozenset(inner)
        return lambda value: type(value) is str and value in allowed
    if origin in (Union, types.UnionType):
        checks = [_check(each) for each in inner]
        return lambda value: any(check(value) for check in checks)
    if origin in (dict, Mapping):
        return _of_all(dict, inner[1], dict.values)
    if origin is list:
        return _of_all(list, inner[0], iter)
    if is_dataclass(hint):
        return lambda value: type(value) is dict and misfit(hint, value) is None  # type: ignore[arg-type]
    raise TypeError(f"no check for {hint!r}")  # a mistake of ours: a new kind of field


def _of_all(container: type, hint: Any, values: Callable[[Any], Any]) -> Check:
    """Return the check of a container all of whose values are alike."""
    if hint is Any:
        return lambda value: type(value) is container and _is_shallow(value)
    if (scalars := _scalars(hint)) is None:
        check = _check(hint)
        return lambda value: type(value) is container and all(map(check, values(value)))

    def of_scalars(value: Any) -> bool:  # the most common one: the metrics of every iteration
        if type(value) is not container:
            return False
        if not set(map(type, values(value))) <= scalars:
            return False
        whole = [each for each in values(value) if type(each) is int]
        return not whole or (is_exact(min(whole)) and is_exact(max(whole)))

    return of_scalars


def _scalars(hint: Any) -> frozenset[type] | None:
    """Return the types of a JSON value for a hint that is made of simple types only; JSON writes 1.0 as 1."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if not all(part in (int, float, str, bool, type(None)) for part in parts):
        return None
    return frozenset((*parts, int) if float in parts else parts)


def _is_shallow(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Return whether a JSON value is nested no deeper than `levels`, and its whole numbers exact."""
    if type(value) is dict or type(value) is list:
        inner = value.values() if type(value) is dict else value
        return levels > 0 and all(_is_shallow(each, levels - 1) for each in inner)
    return is_exact(value)


_MORE: Mapping[str, Check] = {
    "created": lambda moment: is_moment(moment),
    "setting": lambda setting: SCALE in setting,
    "returns": lambda returns: len(returns) > 0,  # a mean is taken of them
    "placement": _are_places(),
    "node_loads": _are_loads(),
}
"""Rules of single fields, whatever record has them."""
