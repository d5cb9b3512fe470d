"""Settings and returns that others publish, a file for each source, and what a space names of them. Pure."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from ruamel.yaml import YAML

from study.errors import Fault
from study.space.domains import Model
from study.space.faults import ALIKE, fault, meant_by
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


def with_published(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """Return a space's content with published settings in place of their names, and the names that mean none.

    Where one means none, all baselines of its list are left out.
    """
    whole, faults = dict(content), list[Fault]()
    section = content.get("script") or content.get("environment")
    environment = section.get("environment", section.get("id")) if isinstance(section, dict) else None
    if isinstance(search := content.get("search"), dict) and isinstance(given := search.get("baselines"), list):
        baselines = [_written_out(each, index, str(environment), faults) for index, each in enumerate(given)]
        whole["search"] = {**search, "baselines": [] if faults else baselines}
    if isinstance(holdup := content.get("holdup"), dict) and isinstance(name := holdup.get("published"), str):
        whole["holdup"] = {**holdup, "published": _setting(name, "holdup.published", str(environment), faults)}
    return whole, faults


def _written_out(baseline: Any, index: int, environment: str, faults: list[Fault]) -> Any:
    """Return a baseline with the parameters of the published setting that it names, and its changes of them."""
    if not isinstance(baseline, dict) or baseline.get("published") is None:
        return baseline
    name, place = baseline["published"], f"search.baselines.{index}.published"
    setting, changes = _setting(name, place, environment, faults), baseline.get("parameters", {})
    parameters = {**setting, **changes} if isinstance(changes, dict) else changes
    rest = {key: value for key, value in baseline.items() if key != "published"}
    return {"name": name, **rest, "parameters": parameters}


def _setting(name: object, place: str, environment: str, faults: list[Fault]) -> dict[str, Value]:
    """Return the published setting of a name, nothing where it means none: the fault is then among `faults`."""
    known = published()
    entry = known.get(str(name), {}).get(environment)
    if entry is not None and not entry.lacks:
        return dict(entry.parameters)
    here = [source for source, entries in known.items() if environment in entries and not entries[environment].lacks]
    fix = f"Use one of: {', '.join(here)}." if here else f"Nothing is published for {environment}: write parameters."
    if entry is not None:
        faults.append(fault(place, f"this program has no {entry.lacks}", f"{name} of {environment}", fix))
    elif str(name) in known:
        rule = f"{name} publishes settings of {listed(list(known[str(name)]))}"
        faults.append(fault(place, rule, environment, fix))
    else:
        near = meant_by(str(name), [*known], cutoff=ALIKE)
        fix = f"Did you mean '{near}'? It has {listed(list(known[near]))}." if near else fix
        faults.append(fault(place, "must be a source of published settings", str(name), fix))
    return {}
