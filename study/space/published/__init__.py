"""Settings of PPO and returns that others publish, a file for each source, and what a space names of them. Pure.

`tests/benchmarks/published.py` says what the keys of an entry mean, and runs each.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from study.space.domains import broken, meant_by
from study.space.parameters import Value
from study.text import listed


@cache
def published() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return source -> environment -> the entry: what the source has for all, with what it has for this one."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for file in sorted(Path(__file__).parent.glob("*.yaml")):
        shared = YAML(typ="safe", pure=True).load(file)
        entries = shared.pop("environments")
        found[shared["source"]] = {
            name: {**shared, **entry}
            | {part: {**shared.get(part, {}), **entry.get(part, {})} for part in ("parameters", "model")}
            for name, entry in entries.items()
        }
    return found


def published_setting(source: str, environment: str) -> dict[str, Value]:
    """Return the setting that a source publishes for an environment.

    Raises:
        PydanticCustomError: It publishes none that this program can run; says which sources do.
    """
    known = published()
    entry = known.get(source, {}).get(environment)
    if entry is not None and not entry.get("lacks"):
        return dict(entry["parameters"])
    here = [name for name, entries in known.items() if not entries.get(environment, {"lacks": "it"}).get("lacks")]
    fix = f"Use one of: {', '.join(here)}." if here else f"Nothing is published for {environment}: write parameters."
    rule, got = "must be a source of published settings", source
    if entry is not None:
        rule, got = f"this program has no {entry['lacks']}", f"{source} of {environment}"
    elif source in known:
        rule, got = f"{source} publishes settings of {listed(list(known[source]))}", environment
    elif near := meant_by(source, [*known]):
        fix = f"Did you mean '{near}'? It has {listed(list(known[near]))}."
    raise broken(where="holdup.published", rule=rule, got=got, fix=fix)
