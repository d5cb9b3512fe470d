"""What the doctor looks at, what a check says of it, and the results of many nodes as one. Imports no engine."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from study.errors import StudyError, in_one_line
from study.hosts.probe import NodeFacts
from study.planning.shape import LOCAL, ClusterShape, NodeShape
from study.space.spec import StudySpec
from study.text import count

Level = Literal["ok", "warn", "fail"]
"""`fail`: a study cannot run here, or its numbers would be wrong and not say so. `warn`: it runs with a loss."""
LEVELS: tuple[Level, ...] = ("ok", "warn", "fail")
MAX_GROUPS = 3
"""Different results that one line shows."""
MAX_NAMES = 4
"""Nodes, or other things, that one result names."""


# --- where a study would run -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What one node says."""

    address: str
    facts: NodeFacts
    faults: Mapping[str, str] = field(default_factory=dict)
    """Facts that could not be read -> why."""
    num_cpus: int = 0
    """CPUs that Ray hands out there."""
    num_gpus: float = 0
    environment: str | None = None
    """Why the space's environment cannot be made there; empty when it can, None when that was not asked."""

    def shape(self) -> NodeShape:
        """Return the node as a plan needs it."""
        return NodeShape(
            address=self.address,
            num_cpus=self.num_cpus,
            physical_cpus=self.facts["cpus"]["num_cores"],
            memory_mb=self.facts["memory"]["total_mb"],
            num_gpus=self.num_gpus,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCluster:
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
    cluster: JoinedCluster | None = None
    refusal: StudyError | None = None
    """Why the cluster could not be joined."""

    @property
    def nodes(self) -> tuple[NodeReport, ...]:
        """Where trials would run: the cluster's nodes, or this machine."""
        return self.cluster.nodes if self.cluster is not None else (self.here,)

    def shape(self) -> ClusterShape:
        """Return the cluster as a plan needs it."""
        return ClusterShape(nodes=tuple(node.shape() for node in self.nodes))


# --- what a check says -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the diagnosis."""

    level: Level
    found: str
    """A sentence without a full stop at the end."""
    fix: str = ""
    """What to do; empty where all is well."""
    theme: str = ""
    check: str = ""

    @property
    def name(self) -> str:
        """Theme and check."""
        return f"{self.theme}: {self.check}"


def ok(found: str) -> CheckResult:
    """Return that all is well."""
    return CheckResult("ok", found)


def warn(found: str, fix: str) -> CheckResult:
    """Return that a study runs with a loss."""
    return CheckResult("warn", found, fix)


def fail(found: str, fix: str) -> CheckResult:
    """Return that a study would fail, or that its numbers would be wrong."""
    return CheckResult("fail", found, fix)


def failed(error: StudyError) -> CheckResult:
    """Return the result for an error of this project."""
    found = in_one_line(where=error.where, rule=error.rule, got=error.got, fix="")
    return fail(" ".join(found.split()).rstrip("."), error.fix or "See the message.")


def crashed(error: Exception, *nodes: NodeReport) -> CheckResult:
    """Return the result of a check that could not be made, because of a fact that could not be read or a fault."""
    missing = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
    for node in nodes:
        if missing in node.faults:
            return warn(f"cannot be read: {node.faults[missing]}", "Look at it on the node by hand.")
    got = " ".join(str(error).split())[:200]
    return fail(f"this check itself failed, {type(error).__name__}: {got}", "Look at it by hand, and report this line.")


def on_every_node(
    judge: Callable[[NodeReport, Surroundings], CheckResult | None],
) -> Callable[[Surroundings], CheckResult | None]:
    """Make one result of what `judge` says of each node."""

    @functools.wraps(judge)
    def judge_all(around: Surroundings) -> CheckResult | None:
        results = {}
        for node in around.nodes:
            try:
                result = judge(node, around)
            except Exception as error:  # noqa: BLE001 (a check that crashes is a result)
                result = crashed(error, node)
            if result is not None:
                results[node.address] = result
        return merged(results)

    return judge_all


def merged(results: Mapping[str, CheckResult]) -> CheckResult | None:
    """Return one result for all nodes: the worst, with the nodes that it is about; None for no nodes.

    Args:
        results: Address -> result; this machine (`LOCAL`) needs no name.
    """
    groups: dict[CheckResult, list[str]] = {}
    for address, result in results.items():
        groups.setdefault(result, []).append(address)
    if not groups:
        return None
    if len(groups) == 1:
        ((result, addresses),) = groups.items()
        where = "" if addresses == [LOCAL] else "all nodes: " if len(addresses) > 1 else f"{addresses[0]}: "
        return CheckResult(result.level, where + result.found, result.fix)
    ranked = sorted(groups.items(), key=lambda group: (-LEVELS.index(group[0].level), -len(group[1])))
    worst = ranked[0][0].level
    if worst != "ok":
        ranked = [group for group in ranked if group[0].level != "ok"]
    shown = [f"{some(addresses)}: {result.found}" for result, addresses in ranked[:MAX_GROUPS]]
    unseen = sum(len(addresses) for _, addresses in ranked[MAX_GROUPS:])
    shown += [f"and {count(unseen, 'more node')}"] if unseen else []
    fixes = dict.fromkeys(result.fix for result, _ in ranked if result.level == worst)
    return CheckResult(worst, "; ".join(shown), " ".join(list(fixes)[:MAX_GROUPS]))


def some(items: Sequence[str]) -> str:
    """Return the first `MAX_NAMES` items, and how many more there are."""
    more = len(items) - MAX_NAMES
    return ", ".join(items[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
