"""The field reference, `search_spaces/fields.md`: every key of a space, from the schema.

`python -m tests.fields` writes it; `tests/unit/test_readme.py` compares it.
"""

import json
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from study.space.parameters import EVERY, NAMES, RULES, Parameter
from study.space.parsing import FIELDS, SHIPPED

PAGE = SHIPPED / "fields.md"


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
    """Return the default, and those of algorithms that have another one."""
    if parameter.default is None:
        return "none" if parameter.name in RULES or parameter.optional else "required"
    others = (f"{_shown(value)} ({name})" for name, value in parameter.defaults.items())
    return "; ".join([_shown(parameter.default), *others])


def _shown(value: Any) -> str:
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return "required" if value is PydanticUndefined else ""
    return "none" if value is None else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    before, mark, _ = PAGE.read_text().partition("<!-- reference: python -m tests.fields -->\n")
    PAGE.write_text(f"{before}{mark}{field_reference()}<!-- /reference -->\n")
