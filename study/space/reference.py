"""Schema of space files for editors, and the field reference in `search_spaces`, from the same models. Pure."""

import json
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from study.space.parameters import EVERY, NAMES, RULES, Parameter
from study.space.script import ScriptFacts
from study.space.sections import AXES, GridSpec, SeedsSpec
from study.space.spec import StudySpec


def json_schema() -> str:
    """Return the JSON Schema of space files."""
    content = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Space of a scaling study",
        **StudySpec.model_json_schema(by_alias=True),
    }
    return json.dumps(content, indent=2) + "\n"


def field_reference() -> str:
    """Return the field reference as Markdown tables."""
    lines = ["| field | default | meaning |", "|---|---|---|"]
    lines += _rows(StudySpec, "")
    lines += ["", "| parameter | algorithms | default | allowed | meaning |", "|---|---|---|---|---|"]
    for parameter in NAMES.values():
        allowed = f"{parameter.kind.__name__} {parameter.bounds}"
        cells = (f"`{parameter.name}`", _who_has(parameter), _defaults(parameter), allowed, parameter.meaning)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _who_has(parameter: Parameter) -> str:
    return "all" if parameter.algorithms == EVERY else ", ".join(parameter.algorithms)


def _defaults(parameter: Parameter) -> str:
    """Return the default, and the algorithms that have another one."""
    if parameter.default is None:
        return "none" if parameter.name in RULES else "required"
    others: dict[float, list[str]] = {}
    for name in parameter.algorithms:
        others.setdefault(parameter.defaults.get(name, parameter.default), []).append(name)
    if len(others) == 1:
        return _code(next(iter(others)))
    return "; ".join(f"{_code(value)} ({', '.join(names)})" for value, names in others.items())


def _rows(model: type[BaseModel], prefix: str, defaults: BaseModel | None = None) -> Iterator[str]:
    """Yield a row for each field; `defaults` is what stands where a space leaves the whole section out."""
    for name, info in model.model_fields.items():
        place = f"{prefix}{info.alias or name}"
        inner = _model(info.annotation)
        if inner is ScriptFacts:
            continue  # nobody writes it
        if place == "parameters":
            yield f"| `{place}` | required | {_cell(info)} See the next table. |"
        elif inner is SeedsSpec:
            yield f"| `{place}` | {_code(info.default.model_dump())} | {_cell(info)} |"
        elif inner is GridSpec:
            yield f"| `{place}` | {_default(info)} | {_cell(info)} |"
            yield f"| `{place}.<name>.<axis>` | none | Axes: {', '.join(f'`{axis}`' for axis in AXES)}. |"
        elif inner is not None:
            suffix = "[]" if get_origin(info.annotation) is list else ""
            alone = suffix or info.default is None
            yield f"| `{place}` | {_default(info) if alone else ''} | {_cell(info)} |"
            absent = info.default if isinstance(info.default, BaseModel) else None
            yield from _rows(inner, f"{place}{suffix}.", absent)
        else:
            default = _default(info) if defaults is None else _code(getattr(defaults, name))
            yield f"| `{place}` | {default if default != '`null`' else 'none'} | {_cell(info)} |"


def _model(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) in (list, dict, Union, UnionType):
        return next((model for inner in get_args(annotation) if (model := _model(inner))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _default(info: FieldInfo) -> str:
    if info.default is PydanticUndefined:
        return "required"
    return "none" if info.default is None else _code(info.default)


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def _cell(info: FieldInfo) -> str:
    return (info.description or "").replace("\n", " ").replace("|", "\\|")
