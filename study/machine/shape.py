"""The shape of a Ray cluster, as far as a plan cares. Pure."""

from dataclasses import asdict, dataclass
from typing import Any

UNKNOWN = 10**9
"""Memory in MB, and GPUs, of a node that nobody can ask yet: more than any machine has."""
LOCAL = "local"
"""Address of the node of a private Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """One machine."""

    address: str
    num_cpus: int
    """CPUs that Ray hands out there."""
    physical_cpus: int
    """Cores that processes there can really have."""
    memory_mb: int
    """Memory of the machine, or of its container."""
    num_gpus: float = 0
    """GPUs that Ray hands out there."""
    niceness: int = 0
    """Nice value of the processes of trials: above 0 others go before them."""

    @property
    def capacity(self) -> int:
        """CPUs that processes there may occupy without sharing a core."""
        return min(self.num_cpus, self.physical_cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What an environment took where it was played for a moment, by random actions, before the start."""

    step_s: float
    """Seconds of a step, resets included."""
    episode_steps: float | None
    """Mean steps of the episodes that ended meanwhile, else Gymnasium's limit; None: none ended, and there is none."""
    observation_shape: tuple[int, ...] = ()
    """Of what the network sees; empty where nobody knows."""
    outside: str = ""
    """The first observation outside of the space that an environment of somebody's own declares; empty: none seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """The machines of a Ray cluster, and how fast the study's environment is there."""

    nodes: tuple[NodeShape, ...]
    speeds: Speeds | None = None
    """None: not measured; a plan then takes those of a small environment."""

    @property
    def num_cpus(self) -> int:
        """CPUs that Ray hands out."""
        return sum(node.num_cpus for node in self.nodes)

    @property
    def num_gpus(self) -> float:
        """GPUs that Ray hands out."""
        return sum(node.num_gpus for node in self.nodes)

    @property
    def capacity(self) -> int:
        """CPUs that trials may occupy side by side without sharing a core."""
        return max(sum(node.capacity for node in self.nodes), 1)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the records."""
        return {"num_cpus": self.num_cpus, "nodes": [asdict(node) for node in self.nodes]}
