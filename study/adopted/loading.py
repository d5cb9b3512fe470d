"""From a space file, which may name a script as `config`, to a `StudySpec`. Imports no Ray; a script runs in a process.

A space without `config` is read as `study.space.parsing` reads it.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from study.adopted.reading import TIMEOUT_S, Adopted, read_script
from study.errors import SpaceError
from study.space.parsing import parse_space
from study.space.space_file import Source, read_space
from study.space.spec import StudySpec

PATIENCE_S = 3600.0
"""Seconds for a script that was read before, when its study began: it came to its training within the limit then."""


def load_space(
    path: str | Path, *, overrides: Sequence[str] = (), timeout_s: float = TIMEOUT_S, new: bool = True
) -> StudySpec:
    """Read a space file; where it names a script, run that in a process of its own, up to where it would train.

    Args:
        path: A file, or the name of one in `search_spaces/`.
        overrides: `dotted.key=value` pairs that replace or add values; each value is read as YAML.
        timeout_s: Seconds that the script may take.
        new: Whether a study is to begin with it: rules that are younger than a study do not stop its resume.

    Raises:
        SpaceError: The file is missing, is not a plain YAML mapping, or breaks a rule of the schema; or its script
            cannot be studied. Carries all faults found.
    """
    return parse_space(with_script(read_space(path, overrides=overrides), timeout_s=timeout_s), asked=new)


def with_script(source: Source, *, timeout_s: float = TIMEOUT_S) -> Source:
    """Return a space with the facts of the script that it names; without one the space itself.

    Raises:
        SpaceError: The script cannot be studied.
    """
    content = source.content
    if not isinstance(content.get("config"), str) or not content["config"]:
        return source
    try:
        facts = _read(content, timeout_s).facts
    except SpaceError as error:
        faults = [replace(fault, line=source.line_of("config")) for fault in error.faults]
        raise SpaceError(source.name, faults) from error
    return replace(source, content={**content, "script": facts.model_dump(mode="json")})


def adopted_by(spec: StudySpec) -> Adopted | None:
    """Return the script of a study, as it is now; None for a study without one. A script is run once in a process.

    It has `PATIENCE_S`, as the limit under which its study was started is not on record.

    Raises:
        SpaceError: The script cannot be studied.
    """
    return None if spec.config is None else _read(spec.to_json(), PATIENCE_S)


def _read(content: dict[str, object], timeout_s: float) -> Adopted:
    kwargs, arguments = content.get("config_kwargs"), content.get("config_args")
    return read_script(
        str(content["config"]),
        args=words(arguments, "config_args") if isinstance(arguments, str) else (),
        kwargs=kwargs if isinstance(kwargs, dict) else {},
        timeout_s=timeout_s,
    )


def words(arguments: str, where: str) -> list[str]:
    """Return the arguments of a script's command line, as a shell splits them.

    Raises:
        SpaceError: A quote is open; names the option or key `where`.
    """
    try:
        return shlex.split(arguments)
    except ValueError as error:
        rule, fix = "must be words", "Close the quotes, or write a backslash before the quote."
        raise SpaceError.of("space", where=where, rule=rule, got=f"{arguments} ({error})", fix=fix) from error
