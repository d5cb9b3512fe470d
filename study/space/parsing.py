"""From a space file to a `StudySpec`, with every fault at once: place, rule, value, and what to write instead. Pure.

Imports no Ray, torch or Optuna.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from study.errors import Fault, SpaceError
from study.space.domains import Range, inner_model
from study.space.faults import ALIKE, explained, fault, meant_by, unknown
from study.space.parameters import ALGORITHMS, NAMES, SCALE
from study.space.published import with_published
from study.space.rules import ASKED, COMMON, SEARCH, Rule
from study.space.script import ScriptFacts
from study.space.sections import AXES
from study.space.space_file import MAX_FAULTS, Source
from study.space.spec import StudySpec
from study.space.throughput import cells

RULES: dict[str, tuple[Rule, ...]] = {"search": SEARCH, "throughput": (*COMMON, cells)}
"""Kind of study -> its rules between sections."""
_SCORING = ("environment.floor", "environment.reference", "environment.target")
"""Returns that give a score its meaning."""
_FORMS = frozenset({"value", "choices", "range", "list", "dict", "int", "float"})
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
    content, faults = with_published(source.content)
    source, reported = replace(source, content=content), set() if scored else {*_SCORING}
    if "script" in source.lines:
        faults.append(fault("script", "is found in the script, and not written", "", "Remove it; `config` names it."))
    spec: StudySpec | None = None
    try:
        spec = StudySpec.model_validate(source.content)
    except ValidationError as error:
        found, meant = _faults_of(error, source)
        faults, reported = faults + found, reported | meant
        spec = _without(source, faults)
    if spec is not None:
        reported |= {each.where for each in faults}
        rules = (*RULES[spec.kind], *(ASKED if asked else ()))
        broken = (each for rule in rules for each in rule(spec))
        faults += [each for each in broken if not any(f"{at}.".startswith(f"{each.where}.") for at in reported)]
    if faults or spec is None:
        first = {each.where: replace(each, line=source.line_of(each.where)) for each in reversed(faults)}
        raise SpaceError(source.name, sorted(reversed(first.values()), key=lambda each: each.line or 0)[:MAX_FAULTS])
    return spec


def _without(source: Source, faults: Sequence[Fault]) -> StudySpec | None:
    """Validate what is left without the faulty keys, so that rules between sections are checked in the same run."""
    content = source.without([each.where for each in faults])
    if isinstance(parameters := content.get("parameters"), dict):
        parameters.setdefault(SCALE, 1)  # required: a stand-in lets the other rules be checked
    try:
        return StudySpec.model_validate(content)
    except ValidationError:
        return None


def _faults_of(error: ValidationError, source: Source) -> tuple[list[Fault], set[str]]:
    """Return pydantic's errors as faults, and the places of missing keys that an unknown key stands for.

    One mistake is one fault: where an unknown key is probably another's name, that other one is not missing.
    """
    items = error.errors(include_url=False)
    missing = {".".join(map(str, item["loc"])) for item in items if item["type"] == "missing"}
    faults, meant = [], set()
    for item in items[:MAX_FAULTS]:  # to look for what each may mean takes time
        is_unknown = item["type"] == "extra_forbidden"  # its last part is a key, also where a form has that name
        *above, last = map(str, item["loc"] or ("file",))
        parts = [*(part for part in above if part not in _FORMS), *([last] if is_unknown or last not in _FORMS else [])]
        where, section = ".".join(parts), ".".join(parts[:-1])
        if not is_unknown:
            keys = _known_keys(where, {}) if item["type"] == "model_type" else []
            faults.append(explained(where, item, keys))
            continue
        known = _known_keys(section, source.content)
        absent = [place.rpartition(".")[2] for place in missing if place.rpartition(".")[0] == section]
        near = meant_by(last, known) or meant_by(last, absent, cutoff=ALIKE)
        meant |= {f"{section}.{name}".removeprefix(".") for name in (near, *(_RANGE if near == "choices" else ()))}
        if near is None and (elsewhere := meant_by(last, [*_PLACES])) is not None:
            near = _PLACES[elsewhere]
        faults.append(fault(where, "unknown key", "", f"Did you mean '{near}'?") if near else unknown(where, known))
    # Of a value that fits none of several types, what lies deeper says more.
    inner = [each for each in faults if not any(other.where.startswith(f"{each.where}.") for other in faults)]
    return [each for each in inner if each.where not in meant], meant


def _known_keys(section: str, content: Mapping[str, Any]) -> list[str]:
    """Return the keys that a section of a space may have; of parameters those of its algorithm."""
    if section == "holdup.published" or section.endswith("parameters"):
        return list(ALGORITHMS.get(str(content.get("algorithm")), ALGORITHMS["PPO"]).names)
    if re.fullmatch(r"throughput\.grids\.[^.]*", section):
        return [*AXES]
    place = re.sub(r"\.\d+", "", section)  # an index
    return [each.rpartition(".")[2] for each in PLACES if each.rpartition(".")[0] == place] or _RANGE


def _places(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the place of every key, those of a section before those of the sections in it."""
    fields = {f"{prefix}{name}": inner_model(info) for name, info in model.model_fields.items()}
    yield from fields
    for place, inner in fields.items():
        if inner is not None and inner is not ScriptFacts:  # which nobody writes
            yield from _places(inner, f"{place}.")


PLACES = [*_places(StudySpec, ""), *(f"parameters.{name}" for name in NAMES)]
"""Of every key of a space; items of lists and mappings have no part of their own."""
_RANGE = [*Range.model_fields, "choices"]
_PLACES = {place.rpartition(".")[2]: place for place in reversed(PLACES)}
"""Key -> its first place."""
