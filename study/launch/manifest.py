"""The files that a launch writes for other programs, from the templates beside this file. Imports no engine.

A name that is missing is an error, and a value is always written as a quoted string, so that no name of a host, a file
or an image can change what a manifest says.
"""

import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a printed sequence, and what it is for."""

    command: str
    why: str

    def __str__(self) -> str:
        return f"# {self.why}\n{self.command}"


def fill(template: str, **values: Any) -> str:
    """Return a template with its values."""
    return _environment().get_template(template).render(values)


def quoted(value: Any) -> str:
    r"""Return a value as JSON that YAML reads as the same.

    JSON is YAML, except for characters that YAML 1.1 folds or refuses, and for those that JSON writes as two
    surrogates: all but printable ASCII becomes `\uXXXX` or `\UXXXXXXXX`, which YAML reads.
    """
    return re.sub(r"[^ -~]", _escape, json.dumps(value, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("study.launch", "templates"),
        undefined=StrictUndefined,
        autoescape=False,  # YAML and recipes, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["tojson"] = quoted
    return environment
