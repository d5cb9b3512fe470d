"""Settings and returns that others publish, a file for each source, and what a space names of them. Pure."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from ruamel.yaml import YAML

from study.space.domains import Model, broken, meant_by
from study.space.parameters import Value
from study.text import listed

_FILES = Path(__file__).parent


class EvaluationSource(Model):
    """What a published return is the mean of: one of the three."""

    episodes: int | None = None
    """Greedy episodes of the trained policy."""
    training_episodes: int | None = None
    """The last episodes of the training."""
    training_steps: int | None = None
    """The episodes that ended in so many last steps of the training."""


class Published(Model):
    """A setting of PPO for one environment, in the parameters of this program, and the return published for it."""

    source: str
    project: str
    """Repository on GitHub."""
    version: str
    """Commit."""
    files: list[str]
    """Where setting and return stand."""
    parameters: dict[str, Value]
    """All but the runners and their environments."""
    model: dict[str, Any]
    """Its network, as the section `model` of a space; a baseline has the network of the space."""
    environment: dict[str, Any] = Field({})
    """Other keys of the section `environment` by which it runs here."""
    num_envs: int
    """Environments in which it was published. Its batch is the same in any other number."""
    env_steps: int
    """Budget."""
    evaluation: EvaluationSource
    mean: float
    sd: float | None = None
    """Standard deviation, where it is published."""
    n: int
    """Of what `over` says."""
    over: Literal["episodes", "seeds"]
    """What `sd` and `n` are of: episodes of one agent, or seeds."""
    lacks: str = ""
    """What this program cannot do of it: no study can have it as a baseline."""
    differs: str = ""
    """What else is not the same here."""


@cache
def published() -> Mapping[str, Mapping[str, Published]]:
    """Return source -> environment -> what it publishes."""
    found: dict[str, dict[str, Published]] = {}
    for file in sorted(_FILES.glob("*.yaml")):
        shared = YAML(typ="safe", pure=True).load(file)
        entries = shared.pop("environments")
        found[shared["source"]] = {name: Published(**_merged(shared, entry)) for name, entry in entries.items()}
    return found


def _merged(shared: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    sections = {name: {**shared.get(name, {}), **entry.get(name, {})} for name in ("parameters", "model")}
    return {**shared, **entry, **sections}


def published_setting(source: str, environment: str) -> dict[str, Value]:
    """Return the setting that a source publishes for an environment.

    Raises:
        PydanticCustomError: It publishes none that this program can run; says which sources do.
    """
    known, where = published(), "holdup.published"
    entry = known.get(source, {}).get(environment)
    if entry is not None and not entry.lacks:
        return dict(entry.parameters)
    here = [name for name, entries in known.items() if environment in entries and not entries[environment].lacks]
    fix = f"Use one of: {', '.join(here)}." if here else f"Nothing is published for {environment}: write parameters."
    if entry is not None:
        rule, got = f"this program has no {entry.lacks}", f"{source} of {environment}"
        raise broken(where=where, rule=rule, got=got, fix=fix)
    if source in known:
        rule = f"{source} publishes settings of {listed(list(known[source]))}"
        raise broken(where=where, rule=rule, got=environment, fix=fix)
    if near := meant_by(source, [*known]):
        fix = f"Did you mean '{near}'? It has {listed(list(known[near]))}."
    raise broken(where=where, rule="must be a source of published settings", got=source, fix=fix)
