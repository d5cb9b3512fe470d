"""The field reference in `search_spaces`, from the models of the schema. Pure."""

import json
from collections.abc import Iterator
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from study.space.domains import inner_model
from study.space.parameters import EVERY, NAMES, RULES, Parameter
from study.space.script import ScriptFacts
from study.space.spec import StudySpec


def field_reference() -> str:
    """Return the field reference as Markdown tables."""
    lines = ["| field | default | meaning |", "|---|---|---|", *_rows(StudySpec, "")]
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


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        inner, items = inner_model(info), "[]" if get_origin(info.annotation) is list else ""
        if inner is not ScriptFacts:  # which nobody writes
            meaning = (info.description or "").replace("\n", " ").replace("|", "\\|")
            yield f"| `{prefix}{name}` | {_shown(info.default)} | {meaning} |"
            yield from _rows(inner, f"{prefix}{name}{items}.") if inner else ()


def _shown(value: Any) -> str:
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return "required" if value is PydanticUndefined else ""
    return "none" if value is None else f"`{json.dumps(value)}`"
