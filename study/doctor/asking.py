"""What the doctor looks at: this machine, or every node of a live Ray, asked once.

Memory is in MB (2**20 bytes). None stands for "the system does not tell".
"""

import contextlib
import hashlib
import io
import os
import platform
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import psutil

from study.designs.registry import private_shape
from study.errors import ClusterError, StudyError
from study.machine.cluster import ask_nodes, joined_ray, resolve_address
from study.machine.host import machine_key, memory_mb, this_node
from study.machine.load import NodeLoad, OwnProcesses, load_between, snapshot
from study.machine.shape import ClusterShape, NodeShape
from study.mirrors.tracking_uri import DEFAULT_TRACKING_URI, asked_uri
from study.space.spec import StudySpec

SAMPLE_S = 1.0
"""How long the load is watched."""
ANSWER_TIMEOUT_S = 60.0
"""How long a node may take: the first task there starts a process."""
PROJECT = "this project"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What one node says of itself."""

    shape: NodeShape
    """As a plan needs it."""
    versions: dict[str, str]
    """Of every distribution, by its normalised name; of Python; a digest of this project's modules."""
    granted: int | None
    """CPUs that SLURM gave; None outside of a job."""
    available_mb: int
    shm_free_mb: int
    token_mode: str | None
    """`RAY_AUTH_MODE`."""
    threads: str | None
    """`OMP_NUM_THREADS`."""
    load: NodeLoad | None


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the checks look at."""

    here: Node
    """This process and its machine, as a private Ray would have it."""
    tracking_uri: str = DEFAULT_TRACKING_URI
    out: Path = Path("studies")
    spec: StudySpec | None = None
    refusal: StudyError | None = None
    """Why a cluster could not be joined."""
    address: str = ""
    """Of the Ray that was joined; empty: none."""
    joined: tuple[Node, ...] = ()
    """Its nodes that answered."""
    silent: Mapping[str, str] = {}
    """Address of a node that did not -> why."""
    dead: tuple[str, ...] = ()
    """Addresses where a node died and none lives."""
    num_free_cpus: float = 0

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Where trials would run."""
        return self.joined if self.address else (self.here,)

    def shape(self) -> ClusterShape:
        """Return the cluster as a plan needs it."""
        return ClusterShape(nodes=tuple(node.shape for node in self.nodes))


def find_surroundings(
    *, address: str | None, tracking_uri: str | None, out: Path, spec: StudySpec | None
) -> Surroundings:
    """Ask this machine, or every node of a live Ray. What Ray prints about its nodes is dropped: the findings say it.

    Args:
        address: Ray to join, as of `run`; None for `RAY_ADDRESS` or this machine.
        tracking_uri: MLflow; None for what `run` uses by default.
        out: Folder that holds the studies.
        spec: A space: then it is asked whether its trials fit.
    """
    cluster: dict[str, Any] = {}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            if (found := resolve_address(address)) is not None:
                cluster = _ask_cluster(found)
    except StudyError as error:
        cluster = {"refusal": error}
    except Exception as error:  # noqa: BLE001 (whatever Ray raises is a finding too)
        where, got = f"--address {address}" if address else "RAY_ADDRESS", f"{type(error).__name__}: {error}"
        fix = "Look at `ray status`."
        cluster = {"refusal": ClusterError(where=where, rule="its nodes must answer", got=got, fix=fix)}
    here = read_node(sample_s=0.0 if "address" in cluster else SAMPLE_S)
    if spec is not None:
        with contextlib.suppress(StudyError):  # the plan's own check says that
            here = msgspec.structs.replace(here, shape=private_shape(spec).nodes[0])
    uri = asked_uri(tracking_uri) or DEFAULT_TRACKING_URI
    return Surroundings(here=here, tracking_uri=uri, out=out, spec=spec, **cluster)


def _ask_cluster(address: str) -> dict[str, Any]:
    """Join a Ray, ask its nodes by tasks that reserve nothing there, leave it as it was.

    Raises:
        ClusterError: It refuses us.
    """
    with joined_ray(address, asks_nodes=False):
        import ray

        session, me = ray.get_runtime_context().get_session_name(), (machine_key(), os.getpid())
        nodes, silent = [], {}
        asked = {"sample_s": SAMPLE_S, "session": session, "asking": me}
        for shape, node in ask_nodes(read_node, timeout_s=ANSWER_TIMEOUT_S, **asked):
            if isinstance(node, str):
                silent[shape["address"]] = node
            else:
                nodes.append(msgspec.structs.replace(node, shape=replace(node.shape, **shape)))
        table = ray.nodes()
        lives = {node["NodeManagerAddress"] for node in table if node["Alive"]}
        return {
            "address": address,
            "joined": tuple(nodes),
            "silent": silent,
            "dead": tuple(sorted({node["NodeManagerAddress"] for node in table} - lives)),
            "num_free_cpus": ray.available_resources().get("CPU", 0),
        }


def read_node(*, sample_s: float, session: str = "", asking: tuple[str, int] | None = None) -> Node:
    """Return what this process sees of its machine.

    Args:
        sample_s: Seconds to watch the load; 0 for not at all.
        session: Name of the Ray session that this node belongs to; empty outside of Ray.
        asking: Machine, by `machine_key`, and process of the doctor, which is not foreign.
    """
    load = None
    if sample_s:
        ours = OwnProcesses(session=session, driver=asking, trial={machine_key(): (os.getpid(),)})
        first = snapshot(ours)
        time.sleep(sample_s)
        load = load_between(first, snapshot(ours, last=True))
    # Ray sets OMP_NUM_THREADS in a worker that has not got it: what counts is what the raylet, its parent, has.
    variables = psutil.Process(os.getppid()).environ() if session else os.environ
    granted = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return Node(
        shape=this_node(),
        versions=_versions(),
        granted=int(granted) if granted.isdigit() else None,
        available_mb=memory_mb()[1],
        shm_free_mb=shutil.disk_usage("/dev/shm").free // 2**20 if Path("/dev/shm").is_dir() else 0,
        token_mode=os.environ.get("RAY_AUTH_MODE"),
        threads=variables.get("OMP_NUM_THREADS"),
        load=load,
    )


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():  # in the order of the path: the first one is imported
        if name := distribution.metadata["Name"]:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    content = hashlib.sha256()
    for folder in (Path(__file__).resolve().parents[2] / name for name in ("study", "analysis")):
        for file in sorted(folder.rglob("*.py")):
            content.update(f"{folder.name}/{file.relative_to(folder)}\0".encode())
            content.update(hashlib.sha256(file.read_bytes()).digest())
    return {PROJECT: content.hexdigest()[:12], "python": platform.python_version(), **versions}
