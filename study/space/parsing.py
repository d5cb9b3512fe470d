"""From a space file to a `StudySpec`, with every fault at once: place, rule, value, and what to write instead. Pure.

Imports no Ray, torch or Optuna.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from study.errors import Fault, SpaceError
from study.space.domains import MAX_LISTED, Range, inner_model
from study.space.names import ALIKE, meant_by
from study.space.parameters import ALGORITHMS, SCALE
from study.space.rules import ASKED, COMMON, SEARCH, Rule, fault
from study.space.script import ScriptFacts
from study.space.space_file import MAX_FAULTS, Source, as_yaml
from study.space.spec import VERSION, StudySpec
from study.space.throughput import cells

RULES: dict[str, tuple[Rule, ...]] = {"search": SEARCH, "throughput": (*COMMON, cells)}
"""Kind of study -> its rules between sections."""
_NOT_FOR_PEOPLE: Mapping[str, tuple[str, str]] = {
    "search.anchors": (f"is called search.baselines since version {VERSION} of space files", "Write baselines."),
    "script": ("is found in the script, and not written", "Remove it; `config` names the script."),
}
"""What a program wrote or writes, and a file may not have: key -> rule and fix."""
_SCORING = ("environment.floor", "environment.reference", "environment.target")
"""Returns that give a score its meaning."""
_FORMS = frozenset({"value", "choices", "range", "list", "int", "float"})
"""Parts of a pydantic location that name a form of a value, not a key."""


def parse_space(source: Source, *, scored: bool = True, asked: bool = False) -> StudySpec:
    """Validate the content of a space file.

    Args:
        source: The content.
        scored: Whether the returns that give a score its meaning must be there, and in order.
        asked: Whether a person starts this study now: some rules do not apply to studies on record.

    Raises:
        SpaceError: With every fault found.
    """
    faults = [fault(key, rule, "", fix) for key, (rule, fix) in _NOT_FOR_PEOPLE.items() if key in source.lines]
    reported = set() if scored else {*_SCORING}
    spec: StudySpec | None = None
    try:
        spec = StudySpec.model_validate(source.without(each.where for each in faults if each.where != "script"))
    except ValidationError as error:
        found, meant = _faults_of(error, source)
        faults, reported = faults + [each for each in found if each.where not in _NOT_FOR_PEOPLE], reported | meant
        spec = _without(source, faults)
    if spec is not None:
        reported |= {each.where for each in faults}
        faults += [each for each in _broken(spec, asked=asked) if not _is_reported(each.where, reported)]
    if faults or spec is None:
        first = {each.where: replace(each, line=source.line_of(each.where)) for each in reversed(faults)}
        raise SpaceError(source.name, sorted(reversed(first.values()), key=lambda each: each.line or 0)[:MAX_FAULTS])
    return spec


def _broken(spec: StudySpec, *, asked: bool) -> Iterator[Fault]:
    """Yield a fault for every rule between sections that the spec breaks."""
    if len(spec.scales) > MAX_LISTED:  # rules look at every scale with every number of environments
        yield fault(f"parameters.{SCALE}", f"at most {MAX_LISTED} scales", len(spec.scales), "List fewer.")
        return
    for rule in (*RULES[spec.kind], *(ASKED if asked else ())):
        yield from rule(spec)


def _is_reported(where: str, reported: Iterable[str]) -> bool:
    """Return whether a fault of this key, or of one below it, is reported already."""
    return any(each == where or each.startswith(f"{where}.") for each in reported)


def _without(source: Source, faults: Sequence[Fault]) -> StudySpec | None:
    """Validate what is left without the faulty keys, so that rules between sections are checked in the same run."""
    content = source.without([each.where for each in faults])
    if isinstance(parameters := content.get("parameters"), dict):
        parameters.setdefault(SCALE, 1)  # required: a stand-in lets the other rules be checked
    try:
        return StudySpec.model_validate(content)
    except ValidationError:
        return None


# --- pydantic's errors as faults --------------------------------------------------------------------------------------


def _faults_of(error: ValidationError, source: Source) -> tuple[list[Fault], set[str]]:
    """Return pydantic's errors as faults, and the places of missing keys that an unknown key stands for.

    One mistake is one fault: where an unknown key is probably another's name, that other one is not missing.
    """
    items = error.errors(include_url=False)
    missing = {".".join(map(str, item["loc"])) for item in items if item["type"] == "missing"}
    faults, meant = [], set()
    for item in items[:MAX_FAULTS]:  # to look for what each may mean takes time
        unknown = item["type"] == "extra_forbidden"  # its last part is a key, also where a form has that name
        *above, last = map(str, item["loc"] or ("file",))
        parts = [*(part for part in above if part not in _FORMS), *([last] if unknown or last not in _FORMS else [])]
        section = "".join(f"{part}." for part in parts[:-1])
        if unknown:
            absent = [place.removeprefix(section) for place in missing if place.rpartition(".")[0] == section[:-1]]
            fix, named = _unknown_key(last, _known_keys(section[:-1], source.content), absent)
            meant |= {f"{section}{name}" for name in ([named] if named else [])}
            meant |= {f"{section}low", f"{section}high"} if named == "choices" else set()
            faults.append(fault(f"{section}{last}", "unknown key", "", fix))
        else:
            rule, got, fix = _explained(item, parts)
            faults.append(fault(".".join(parts), rule, got, fix))
    # Of a value that fits none of several types, what lies deeper says more.
    inner = [each for each in faults if not any(other.where.startswith(f"{each.where}.") for other in faults)]
    return [each for each in inner if each.where not in meant], meant


_KEYS = "Write its keys below it, indented, without dashes"
_EXPLAINED: Mapping[str, tuple[str, str]] = {
    "missing": ("must be given", "Add it."),
    "int_type": ("must be a whole number", "Write a whole number, such as 1000000 or 1e6."),
    "float_type": ("must be a number", "Write a number, such as 0.0003 or 3e-4."),
    "finite_number": ("must be a finite number", "Write a finite number."),
    "string_type": ("must be text", "Write it in quotes."),
    "bool_type": ("must be true or false", "Write true or false."),
    "list_type": ("must be a list", "Write a list, such as [1, 2]."),
    "dict_type": ("must be a mapping of keys to values", f"{_KEYS}."),
    "model_type": ("must be a mapping of keys to values", f"{_KEYS}: {{keys}}."),
    "greater_than": ("must be greater than {gt:g}", "Write a larger number."),
    "greater_than_equal": ("must be at least {ge:g}", "Write a larger number."),
    "less_than": ("must be less than {lt:g}", "Write a smaller number."),
    "less_than_equal": ("must be at most {le:g}", "Write a smaller number."),
    "string_too_short": ("must not be empty", "Write it."),
    "too_short": ("must have at least {min_length}", "Add an item."),
    "too_long": ("must have at most {max_length}", "Remove an item."),
    "literal_error": ("must be {expected}", "Use one of these."),
    "rule": ("{rule}", "{fix}"),
}
"""Kind of pydantic's error -> what must hold, and what to do; both with what pydantic knows of it."""


def _explained(item: Any, parts: Sequence[str]) -> tuple[str, str, str]:
    """Return rule, value and fix of every error but an unknown key."""
    kind, known = item["type"], {"keys": "", **item.get("ctx", {})}
    rule, fix = _EXPLAINED.get(kind, ("must be another value", "Change the value."))
    got = "" if kind == "missing" else known.get("got", as_yaml(item.get("input")))
    if kind == "literal_error":
        options = re.findall(r"[\w-]+", known["expected"].replace(" or ", " "))
        near = difflib.get_close_matches(str(item["input"]), options, n=1)
        fix = f"Did you mean '{near[0]}'?" if near else fix
    if kind == "model_type":
        known["keys"] = ", ".join(_known_keys(".".join(parts), {}))
    if parts[:-1] == ["parameters"] and kind in ("int_type", "float_type"):
        return "must be a number, a list or a range", got, "Write 1, [1, 2] or a range such as {low: 1, high: 46}."
    return rule.format(**known), got, fix.format(**known)


def _unknown_key(key: str, known: Sequence[str], absent: Sequence[str]) -> tuple[str, str | None]:
    """Return the fix of a key that its section does not have, and the key of the section that was meant."""
    near = meant_by(key, known) or meant_by(key, absent, cutoff=ALIKE)
    places = {place.rpartition(".")[2]: place for place in reversed(PLACES)}
    elsewhere = meant_by(key, [name for name in places if name not in _RANGE])
    if near is None and elsewhere is not None:
        return f"Did you mean '{places[elsewhere]}'?", None
    near = near or meant_by(key, known, cutoff=ALIKE)
    return (f"Use one of: {', '.join(known)}." if near is None else f"Did you mean '{near}'?"), near


def _known_keys(section: str, content: Mapping[str, Any]) -> list[str]:
    """Return the keys that a section of a space may have; of parameters those of its algorithm."""
    if section == "parameters":
        return list(ALGORITHMS.get(str(content.get("algorithm")), ALGORITHMS["PPO"]).names)
    place = re.sub(r"^(search\.baselines|throughput\.grids)\.[^.]*", r"\1", section)  # an index, or the person's name
    return [each.rpartition(".")[2] for each in PLACES if each.rpartition(".")[0] == place] or _RANGE


def _places(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the place of every key, those of a section before those of the sections in it."""
    fields = {f"{prefix}{info.alias or name}": inner_model(info) for name, info in model.model_fields.items()}
    yield from fields
    for place, inner in fields.items():
        if inner is not None and inner is not ScriptFacts:  # which nobody writes
            yield from _places(inner, f"{place}.")


PLACES = list(_places(StudySpec, ""))
"""Of every key of a space; items of lists and mappings have no part of their own."""
_RANGE = [*Range.model_fields, "choices"]
