"""Where a study would run: what every node told about itself, and one judgement for all of them. Imports no engine."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study.doctor.finding import LEVELS, Look, Verdict, fail, refused
from study.errors import StudyError
from study.hosts.facts import Facts
from study.planning.shape import LOCAL, ClusterShape, NodeShape
from study.space.spec import StudySpec

MAX_GROUPS = 3
"""Different answers that one line shows."""
MAX_NAMES = 4
"""Nodes that one answer names."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How far a node's clock is ahead of ours, seconds, and how well that is known."""

    ahead_s: float
    uncertainty_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What one node told."""

    address: str
    facts: Facts
    faults: Mapping[str, str] = field(default_factory=dict)
    """Facts that could not be read -> why."""
    num_cpus: int = 0
    """CPUs that Ray hands out there."""
    num_gpus: float = 0
    clock: Clock | None = None
    environment: str | None = None
    """Why the space's environment cannot be made there; empty when it can, None when that was not asked."""

    def shape(self) -> NodeShape:
        """Return what a plan cares about."""
        return NodeShape(
            address=self.address,
            num_cpus=self.num_cpus,
            physical_cpus=self.facts["cpus"]["num_cores"],
            memory_mb=self.facts["memory"]["total_mb"],
            num_gpus=self.num_gpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Ray that was joined."""

    address: str
    nodes: tuple[NodeReport, ...]
    """Those that answered."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Address of a node that did not -> why."""
    dead: tuple[str, ...] = ()
    """Addresses where a node died and none lives."""
    num_free_cpus: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything that checks look at."""

    here: NodeReport
    """This process and its machine; with no cluster, as a private Ray would have it."""
    tracking_uri: str
    out: Path = Path("studies")
    spec: StudySpec | None = None
    cluster: Cluster | None = None
    refusal: StudyError | None = None
    """Why the cluster could not be joined."""

    @property
    def nodes(self) -> tuple[NodeReport, ...]:
        """Where trials would run: the cluster's nodes, or this machine."""
        return self.cluster.nodes if self.cluster is not None else (self.here,)

    def shape(self) -> ClusterShape:
        """Return what a plan cares about."""
        return ClusterShape(nodes=tuple(node.shape() for node in self.nodes))


Judge = Callable[[NodeReport, Surroundings], Verdict | None]


def on_every_node(judge: Judge) -> Look:
    """Make one line of what `judge` says of each node."""

    @functools.wraps(judge)
    def look(around: Surroundings) -> Verdict | None:
        verdicts = {node.address: _judged(judge, node, around) for node in around.nodes}
        return folded({address: verdict for address, verdict in verdicts.items() if verdict is not None})

    return look


def _judged(judge: Judge, node: NodeReport, around: Surroundings) -> Verdict | None:
    try:
        return judge(node, around)
    except StudyError as error:
        return refused(error)
    except Exception as error:  # noqa: BLE001 (a check that crashes is a finding)
        return crashed(error, node)


def crashed(error: Exception, *nodes: NodeReport) -> Verdict:
    """Return what is said of a check that could not be made, because of a fact that could not be read or a fault."""
    missing = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
    for node in nodes:
        if missing in node.faults:
            return fail(f"cannot be read: {node.faults[missing]}", "Look at that on the node by hand.")
    got = " ".join(str(error).split())[:200]
    return fail(f"this check itself failed, {type(error).__name__}: {got}", "Look at it by hand, and report this line.")


def folded(verdicts: Mapping[str, Verdict]) -> Verdict | None:
    """Return one verdict for all nodes: the worst, with the nodes that it is about; None for no nodes.

    Args:
        verdicts: Address -> verdict.
    """
    groups: dict[Verdict, list[str]] = {}
    for address, verdict in verdicts.items():
        groups.setdefault(verdict, []).append(address)
    if not groups:
        return None
    if len(groups) == 1:
        ((verdict, addresses),) = groups.items()
        everywhere = "" if addresses == [LOCAL] else "all nodes: " if len(addresses) > 1 else f"{addresses[0]}: "
        return Verdict(verdict.level, everywhere + verdict.found, verdict.fix)
    ranked = sorted(groups.items(), key=lambda group: (-LEVELS.index(group[0].level), -len(group[1])))
    worst = ranked[0][0].level
    if worst != "ok":
        ranked = [group for group in ranked if group[0].level != "ok"]
    shown = [f"{_names(addresses)}: {verdict.found}" for verdict, addresses in ranked[:MAX_GROUPS]]
    unseen = sum(len(addresses) for _, addresses in ranked[MAX_GROUPS:])
    shown += [f"and {plural(unseen, 'more node')}"] if unseen else []
    fixes = dict.fromkeys(verdict.fix for verdict, _ in ranked if verdict.level == worst)
    return Verdict(worst, "; ".join(shown), " ".join(list(fixes)[:MAX_GROUPS]))


def _names(addresses: Sequence[str]) -> str:
    more = len(addresses) - MAX_NAMES
    return ", ".join(addresses[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def by_value(nodes: Sequence[NodeReport], value: Callable[[NodeReport], Any]) -> dict[Any, list[str]]:
    """Return each value that nodes have, with their addresses; nodes that could not read it are left out."""
    found: dict[Any, list[str]] = {}
    for node in nodes:
        try:
            found.setdefault(value(node), []).append(node.address)
        except KeyError as error:
            if not error.args or error.args[0] not in node.faults:
                raise
    return found


def told(values: Mapping[Any, Sequence[str]]) -> str:
    """Return values with the nodes that have them, for people."""
    ranked = sorted(values.items(), key=lambda pair: -len(pair[1]))
    shown = [f"{value} on {_names(addresses)}" for value, addresses in ranked[:MAX_GROUPS]]
    return "; ".join(shown) + (f"; and {len(ranked) - MAX_GROUPS} more" if len(ranked) > MAX_GROUPS else "")


def plural(number: int, thing: str) -> str:
    """Return `1 node`, `2 nodes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
