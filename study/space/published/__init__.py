"""Settings of PPO and returns that others publish, a file for each source, and what a space names of them. Pure.

`tests/benchmarks/published.py` says what the keys of an entry mean, and runs each.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from study.space.domains import broken, suggestion
from study.space.parameters import Value


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
        PydanticCustomError: It publishes none that this program can run; says which do.
    """
    entries = {name: of[environment] for name, of in published().items() if environment in of}
    here = [name for name, entry in entries.items() if not entry.get("lacks")]
    if source in here:
        return dict(entries[source]["parameters"])
    rule = f"must be a source that publishes for {environment} what this program can run"
    fix = suggestion(source, here) if here else "There is none: write parameters."
    raise broken(where="holdup.published", rule=rule, got=source, fix=fix)
