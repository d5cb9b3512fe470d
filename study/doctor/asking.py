"""What the doctor looks at: this machine, or every node of a live Ray, asked once. Imports Ray inside functions."""

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from study.designs.registry import private_shape
from study.errors import ClusterError, SpaceError, StudyError
from study.machine.cluster import connected_ray, resolve_address
from study.machine.facts import read_facts
from study.machine.host import machine_key
from study.machine.shape import LOCAL, ClusterShape, NodeShape
from study.machine.shipping import own_modules, runtime_env
from study.mirrors.tracking_uri import DEFAULT_TRACKING_URI, asked_uri
from study.space.sections import EnvironmentSpec
from study.space.spec import StudySpec

SAMPLE_S = 1.0
"""How long the load is watched."""
ANSWER_TIMEOUT_S = 60.0
"""How long a node may take: the first task there starts a process."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What one node says of itself."""

    address: str
    num_cpus: int
    """CPUs that Ray hands out there, or that a private Ray would."""
    facts: dict[str, Any]
    num_gpus: float = 0
    why_no_environment: str | None = None
    """Why the space's environment cannot be made there; empty when it can, None when that was not asked."""

    def shape(self) -> NodeShape:
        """Return the node as a plan needs it."""
        return NodeShape(
            address=self.address,
            num_cpus=self.num_cpus,
            physical_cpus=self.facts["cpus"]["num_cores"],
            memory_mb=self.facts["memory_mb"][0],
            num_gpus=self.num_gpus,
        )


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A Ray that was joined."""

    address: str
    nodes: tuple[Node, ...]
    """Those that answered."""
    silent: Mapping[str, str] = {}
    """Address of a node that did not -> why."""
    dead: tuple[str, ...] = ()
    """Addresses where a node died and none lives."""
    num_free_cpus: float = 0


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the checks look at."""

    here: Node
    """This process and its machine, as a private Ray would have it."""
    tracking_uri: str = DEFAULT_TRACKING_URI
    out: Path = Path("studies")
    spec: StudySpec | None = None
    joined: Joined | None = None
    refusal: StudyError | None = None
    """Why a cluster could not be joined."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Where trials would run."""
        return (self.here,) if self.joined is None else self.joined.nodes

    def shape(self) -> ClusterShape:
        """Return the cluster as a plan needs it."""
        return ClusterShape(nodes=tuple(node.shape() for node in self.nodes))


def find_surroundings(
    *, address: str | None = None, tracking_uri: str | None = None, out: Path = Path("studies"), spec: StudySpec | None
) -> Surroundings:
    """Ask this machine, or every node of a live Ray. What Ray prints about its nodes is dropped: the findings say it.

    Args:
        address: Ray to join, as of `run`; None for `RAY_ADDRESS` or this machine.
        tracking_uri: MLflow; None for what `run` uses by default.
        out: Folder that holds the studies.
        spec: A space: then its environment is made on every node.
    """
    environment = None if spec is None else spec.environment
    why = None if environment is None else why_no_environment(environment)
    joined: Joined | None = None
    refusal: StudyError | None = None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = resolve_address(address)
            joined = None if found is None else _ask_cluster(found, environment)
    except StudyError as error:
        refusal = error
    except Exception as error:  # noqa: BLE001 (whatever Ray raises is a finding too)
        where, got = f"--address {address}" if address else "RAY_ADDRESS", f"{type(error).__name__}: {error}"
        refusal = ClusterError(where=where, rule="its nodes must answer", got=got, fix="Look at `ray status`.")
    facts = read_facts(sample_s=0.0 if joined is not None else SAMPLE_S)
    num_cpus = facts["cpus"]["num_cores"]
    if spec is not None:
        with contextlib.suppress(StudyError):  # the plan's own check says that
            num_cpus = private_shape(spec).num_cpus
    return Surroundings(
        here=Node(address=LOCAL, num_cpus=num_cpus, facts=facts, why_no_environment=why),
        tracking_uri=asked_uri(tracking_uri) or DEFAULT_TRACKING_URI,
        out=out,
        spec=spec,
        joined=joined,
        refusal=refusal,
    )


def why_no_environment(spec: EnvironmentSpec) -> str:
    """Return why an environment cannot be made in this process; empty when it can."""
    from study.trial.engine.envs.probing import probe

    try:
        probe(spec, "environment")
    except SpaceError as error:
        return " ".join(fault.problem for fault in error.faults)
    return ""


def _ask_cluster(address: str, environment: EnvironmentSpec | None) -> Joined:
    """Join a Ray, ask its nodes by tasks that reserve nothing there, leave it as it was.

    Raises:
        ClusterError: It refuses us, or what the environment consists of cannot travel.
    """
    with connected_ray(address, runtime_env=runtime_env(() if environment is None else own_modules(environment))):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        table = ray.nodes()
        alive: dict[str, dict[str, Any]] = {}
        seen: Counter[str] = Counter()
        for node in table:
            if node["Alive"]:
                at = node["NodeManagerAddress"]
                seen[at] += 1
                alive[at if seen[at] == 1 else f"{at}#{seen[at]}"] = node
        session, me = ray.get_runtime_context().get_session_name(), (machine_key(), os.getpid())

        def ask(function: Callable[..., Any], *given: Any, **named: Any) -> tuple[dict[str, Any], dict[str, str]]:
            task = ray.remote(num_cpus=0, max_retries=0)(function)
            places = {name: NodeAffinitySchedulingStrategy(each["NodeID"], soft=False) for name, each in alive.items()}
            asked = {name: task.options(scheduling_strategy=at).remote(*given, **named) for name, at in places.items()}
            return _answers(asked)

        answers, silent = ask(read_facts, sample_s=SAMPLE_S, session=session, asking=me)
        reasons: dict[str, str] = {}
        if environment is not None:
            made, failed = ask(why_no_environment, environment)
            reasons = {**made, **failed}
        lives = {node["NodeManagerAddress"] for node in alive.values()}
        return Joined(
            address=address,
            nodes=tuple(
                Node(
                    address=name,
                    num_cpus=int(alive[name]["Resources"].get("CPU", 0)),
                    num_gpus=alive[name]["Resources"].get("GPU", 0),
                    facts=facts,
                    why_no_environment=reasons.get(name),
                )
                for name, facts in answers.items()
            ),
            silent=silent,
            dead=tuple(sorted({node["NodeManagerAddress"] for node in table if not node["Alive"]} - lives)),
            num_free_cpus=ray.available_resources().get("CPU", 0),
        )


def _answers(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what came back by node, and why nothing came back from the others."""
    import ray

    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_TIMEOUT_S)
    answers: dict[str, Any] = {}
    silent: dict[str, str] = {}
    for name, reference in asked.items():
        if reference not in ready:
            silent[name] = f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
            ray.cancel(reference, force=True)
            continue
        try:
            answers[name] = ray.get(reference)
        except Exception as error:  # noqa: BLE001 (Ray wraps whatever happened there)
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            silent[name] = (lines[-1] if lines else type(error).__name__)[:200]
    return answers, silent
