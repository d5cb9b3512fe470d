"""Where a study would run: what every node says about itself. Imports no engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from study.errors import StudyError
from study.hosts.probe import NodeFacts
from study.planning.shape import ClusterShape, NodeShape
from study.space.spec import StudySpec


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
