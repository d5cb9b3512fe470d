"""From a space file to a `StudySpec`, or all its faults: place, line, rule, value, and what to write instead. Pure.

Faults of single fields are reported together, and once there are none, those of the rules between sections.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from study.errors import Fault, SpaceError
from study.space.domains import NEAR, as_yaml, fault, inner_model, meant_by, suggestion
from study.space.parameters import ALGORITHMS, NAMES
from study.space.rules import ASKED, OF_KIND
from study.space.script import ScriptFacts
from study.space.sections import AXES
from study.space.space_file import MAX_FAULTS, Source
from study.space.spec import StudySpec

_SCORING = ("environment.floor", "environment.reference", "environment.target")
"""Returns that give a score its meaning."""
_FORMS = frozenset({"list", "dict", "int", "float"})
"""Parts of a pydantic location that name a type of a value, not a key."""


def parse_space(source: Source, *, scored: bool = True, asked: bool = False) -> StudySpec:
    """Validate the content of a space file.

    Args:
        source: The content.
        scored: Whether the returns that give a score its meaning must be there, and in order.
        asked: Whether a person starts this study now: some rules do not apply to studies on record.

    Raises:
        SpaceError: With every fault found.
    """
    if "script" in source.lines:
        faults = [fault("script", "is found in the script, and not written", "", "Remove it; `config` names it.")]
    else:
        try:
            spec = StudySpec.model_validate(source.content)
        except ValidationError as error:
            faults = _faults_of(error, source.content)
        else:
            rules = (*OF_KIND[spec.kind], *(ASKED if asked else ()))
            faults = [each for rule in rules for each in rule(spec) if scored or each.where not in _SCORING]
    if faults:
        first = {each.where: replace(each, line=source.line_of(each.where)) for each in reversed(faults)}
        raise SpaceError(source.name, sorted(reversed(first.values()), key=lambda each: each.line or 0)[:MAX_FAULTS])
    return spec


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


def _faults_of(error: ValidationError, content: Mapping[str, Any]) -> list[Fault]:
    """Return pydantic's errors as faults; where an unknown key is probably another's name, that is not missing."""
    faults, meant = list[Fault](), set[str]()
    for item in error.errors(include_url=False)[:MAX_FAULTS]:  # to look for what each may mean takes time
        kind, known = item["type"], item.get("ctx", {})
        parts = [str(part) for part in item["loc"] if part not in _FORMS] or ["file"]
        where, section = known.get("where", ".".join(parts)), ".".join(parts[:-1])
        if kind == "extra_forbidden":
            keys, elsewhere = _known_keys(section, content), meant_by(parts[-1], [*_PLACES], cutoff=NEAR)
            near = meant_by(parts[-1], keys)
            fix = suggestion(parts[-1], keys) if near or not elsewhere else f"Did you mean '{_PLACES[elsewhere]}'?"
            faults.append(fault(where, "unknown key", "", fix))
            meant.add(f"{section}.{near}".removeprefix("."))
            continue
        rule, fix = _EXPLAINED.get(kind, ("must be another value", "Change the value."))
        got = "" if kind == "missing" else known.get("got", as_yaml(item.get("input")))
        if kind == "literal_error":
            options = re.findall(r"[\w-]+", known["expected"].replace(" or ", " "))
            alike = difflib.get_close_matches(str(item["input"]), options, n=1)
            fix = f"Did you mean '{alike[0]}'?" if alike else fix
        keys = _known_keys(where, {}) if kind == "model_type" else []
        words = {"keys": ", ".join(keys), **known}
        faults.append(fault(where, rule.format(**words), got, fix.format(**words)))
    # Of a value that fits none of several types, what lies deeper says more.
    deepest = [each for each in faults if not any(other.where.startswith(f"{each.where}.") for other in faults)]
    return [each for each in deepest if each.where not in meant or each.rule != "must be given"]


def _known_keys(section: str, content: Mapping[str, Any]) -> list[str]:
    """Return the keys that a section of a space may have; of parameters those of its algorithm."""
    if section == "holdup.published" or section.endswith("parameters"):
        return list(ALGORITHMS.get(str(content.get("algorithm")), ALGORITHMS["PPO"]).names)
    if section.startswith("throughput.grids."):
        return [*AXES]
    place = re.sub(r"\.\d+", "", section)  # an index
    return [each.rpartition(".")[2] for each in PLACES if each.rpartition(".")[0] == place]


def _places(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the place of every key, those of a section before those of the sections in it."""
    fields = {f"{prefix}{name}": inner_model(info) for name, info in model.model_fields.items()}
    fields = {place: inner for place, inner in fields.items() if inner is not ScriptFacts}  # which nobody writes
    yield from fields
    for place, inner in fields.items():
        if inner is not None:
            yield from _places(inner, f"{place}.")


PLACES = [*_places(StudySpec, ""), *(f"parameters.{name}" for name in NAMES)]
"""Of every key of a space; items of lists and mappings have no part of their own."""
_PLACES = {place.rpartition(".")[2]: place for place in reversed(PLACES)}
"""Key -> its first place."""
