"""From a space file to a `StudySpec`, or all its faults: place, line, rule, value, and what to write instead. Pure.

Faults of single fields are reported together, and once there are none, those of the rules between sections. The field
reference in `search_spaces` is made of the same models.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from study.errors import Fault, SpaceError
from study.space.domains import as_yaml, fault, inner_model, meant_by, suggestion
from study.space.parameters import ALGORITHMS, EVERY, NAMES, RULES, Parameter
from study.space.rules import RULES_OF
from study.space.sections import AXES
from study.space.space_file import MAX_FAULTS, Source
from study.space.spec import ScriptFacts, StudySpec


def parse_space(source: Source, *, scored: bool = True) -> StudySpec:
    """Validate the content of a space file; `scored`: whether the returns that make a score must be there, in order.

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
            faults = [each for rule in RULES_OF[spec.kind] for each in rule(spec)]
            faults = [each for each in faults if scored or each.where not in _SCORING]
    if faults:
        first = {each.where: replace(each, line=source.line_of(each.where)) for each in reversed(faults)}
        raise SpaceError(source.name, sorted(reversed(first.values()), key=lambda each: each.line or 0)[:MAX_FAULTS])
    return spec


_SCORING = ("environment.floor", "environment.reference", "environment.target")
"""Returns that give a score its meaning."""


def _fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield place and field of every key that a person may write; `[]` stands for the number of an item."""
    for name, info in model.model_fields.items():
        inner, items = inner_model(info), "[]" if get_origin(info.annotation) is list else ""
        if inner is not ScriptFacts:
            yield f"{above}{name}", info
            yield from _fields(inner, f"{above}{name}{items}.") if inner else ()


FIELDS = dict(_fields(StudySpec))
"""Place of every key of a space -> its field."""
_PLACES = [place.replace("[]", "") for place in (*FIELDS, *(f"parameters.{name}" for name in NAMES))]
_PLACE_OF = {place.rpartition(".")[2]: place for place in reversed(_PLACES)}
"""Key -> its first place."""


# --- pydantic's errors ------------------------------------------------------------------------------------------------

_FIXES: Mapping[str, str] = {
    "missing": "Add it.",
    "int_type": "Write a whole number, such as 1000000 or 1e6.",
    "float_type": "Write a number, such as 0.0003 or 3e-4.",
    "string_type": "Write it in quotes.",
    "list_type": "Write a list, such as [1, 2].",
    "literal_error": "Use one of these.",
}
"""Kind of pydantic's error -> what to do, where it is not to change the value."""
_FORMS = frozenset({"list", "dict", "int", "float"})
"""Parts of a pydantic location that name a type of a value, not a key."""


def _faults_of(error: ValidationError, content: Mapping[str, Any]) -> list[Fault]:
    """Return pydantic's errors as faults; where an unknown key is probably another's name, that is not missing."""
    faults, meant = list[Fault](), set[str]()
    for item in error.errors(include_url=False)[:MAX_FAULTS]:  # to look for what each may mean takes time
        parts = [str(part) for part in item["loc"] if part not in _FORMS] or ["file"]
        where, section = ".".join(parts), ".".join(parts[:-1])
        if item["type"] != "extra_forbidden":
            faults.append(_fault_of(item, where))
            continue
        keys, elsewhere = _known_keys(section, content), meant_by(parts[-1], [*_PLACE_OF], cutoff=0.8)
        near = meant_by(parts[-1], keys)
        fix = suggestion(parts[-1], keys) if near or not elsewhere else f"Did you mean '{_PLACE_OF[elsewhere]}'?"
        faults.append(fault(where, "unknown key", "", fix))
        meant.add(f"{section}.{near}".removeprefix("."))
    return [each for each in faults if each.where not in meant or each.rule != "must be given"]


def _fault_of(item: ErrorDetails, where: str) -> Fault:
    kind, known, found = item["type"], item.get("ctx", {}), item.get("input")
    if kind == "rule":  # of a validator of ours
        return fault(known.get("where", where), known["rule"], known["got"], known["fix"])
    rule, fix = re.sub("^(Input|List|String) should", "must", item["msg"]), _FIXES.get(kind, "Change the value.")
    if kind == "missing":
        return fault(where, "must be given", "", fix)
    if kind in ("dict_type", "model_type"):
        keys = ", ".join(_known_keys(where, {})) or "one a line"
        rule, fix = "must be a mapping of keys to values", f"Write its keys below it, indented, without dashes: {keys}."
    if kind == "literal_error":
        options = re.findall(r"[\w-]+", known["expected"].replace(" or ", " "))
        alike = difflib.get_close_matches(str(found), options, n=1)
        fix = f"Did you mean '{alike[0]}'?" if alike else fix
    return fault(where, rule, as_yaml(found), fix)


def _known_keys(section: str, content: Mapping[str, Any]) -> list[str]:
    """Return the keys that a section of a space may have; of parameters those of its algorithm."""
    if section == "holdup.published" or section.endswith("parameters"):
        return list(ALGORITHMS.get(str(content.get("algorithm")), ALGORITHMS["PPO"]).names)
    if section.startswith("throughput.grids."):
        return [*AXES]
    place = re.sub(r"\.\d+", "", section)  # an index
    return [each.rpartition(".")[2] for each in _PLACES if each.rpartition(".")[0] == place]


# --- the field reference ----------------------------------------------------------------------------------------------


def field_reference() -> str:
    """Return the field reference as Markdown tables."""
    lines = ["| field | default | meaning |", "|---|---|---|"]
    for place, info in FIELDS.items():
        meaning = (info.description or "").replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `{place}` | {_shown(info.default)} | {meaning} |")
    lines += ["", "| parameter | algorithms | default | allowed | meaning |", "|---|---|---|---|---|"]
    for each in NAMES.values():
        algorithms = "all" if each.algorithms == EVERY else ", ".join(each.algorithms)
        allowed = f"{each.kind.__name__} {each.bounds}"
        lines.append(f"| `{each.name}` | {algorithms} | {_defaults(each)} | {allowed} | {each.meaning} |")
    return "\n".join(lines) + "\n"


def _defaults(parameter: Parameter) -> str:
    """Return the default, and the algorithms that have another one."""
    if parameter.default is None:
        return "none" if parameter.name in RULES or parameter.optional else "required"
    names: dict[float, list[str]] = {}
    for name in parameter.algorithms:
        names.setdefault(parameter.defaults.get(name, parameter.default), []).append(name)
    if len(names) == 1:
        return _shown(next(iter(names)))
    return "; ".join(f"{_shown(value)} ({', '.join(each)})" for value, each in names.items())


def _shown(value: Any) -> str:
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return "required" if value is PydanticUndefined else ""
    return "none" if value is None else f"`{json.dumps(value)}`"
