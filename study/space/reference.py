"""Schema of space files for editors, and the field reference in `search_spaces`, from the same models. Pure."""

import json
from collections.abc import Iterator
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from study.space.domains import inner_model
from study.space.parameters import EVERY, NAMES, RULES, Parameter
from study.space.script import ScriptFacts
from study.space.sections import SeedsSpec
from study.space.spec import StudySpec


def json_schema() -> str:
    """Return the JSON Schema of space files."""
    content = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Space of a scaling study",
        **StudySpec.model_json_schema(),
    }
    return json.dumps(content, indent=2) + "\n"


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
        return _code(next(iter(names)))
    return "; ".join(f"{_code(value)} ({', '.join(each)})" for value, each in names.items())


def _rows(model: type[BaseModel], prefix: str, section: BaseModel | None = None) -> Iterator[str]:
    """Yield a row for each field; `section` is what stands where a space leaves the whole section out."""
    for name, info in model.model_fields.items():
        place, inner = f"{prefix}{name}", inner_model(info)
        default = _default(info) if section is None else _shown(getattr(section, name))
        meaning = (info.description or "").replace("\n", " ").replace("|", "\\|")
        if inner is ScriptFacts:
            continue  # nobody writes it
        if inner is SeedsSpec:
            yield f"| `{place}` | {_code(info.default.model_dump())} | {meaning} |"
        elif inner is not None:
            items = "[]" if get_origin(info.annotation) is list else ""
            yield f"| `{place}` | {default if items or info.default is None else ''} | {meaning} |"
            yield from _rows(inner, f"{place}{items}.", info.default if isinstance(info.default, BaseModel) else None)
        else:
            yield f"| `{place}` | {default} | {meaning} |"


def _default(info: FieldInfo) -> str:
    return "required" if info.default is PydanticUndefined else _shown(info.default)


def _shown(value: Any) -> str:
    return "none" if value is None else "" if isinstance(value, BaseModel) else _code(value)


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`"
