"""Asks this machine, and every node of a live Ray, about itself. Imports Ray inside functions only.

A node is asked by a task that reserves nothing there; what the task runs travels with it.
"""

import contextlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import study.hosts
from study.cluster.address import resolve_address
from study.cluster.connection import connected_ray, private_shape
from study.cluster.shipping import OwnModule, own_modules, runtime_env
from study.doctor.results import JoinedCluster, NodeReport, Surroundings
from study.errors import ClusterError, SpaceError, StudyError
from study.hosts.machine import boot_id
from study.hosts.probe import read_node
from study.mirrors.tracking_uri import DEFAULT_TRACKING_URI, asked_uri
from study.planning.shape import LOCAL
from study.space.sections import EnvironmentSpec
from study.space.spec import StudySpec
from study.trial.engine.envs.probing import probe

SAMPLE_S = 1.0
"""How long the load is watched."""
ANSWER_TIMEOUT_S = 60.0
"""How long a node may take: the first task there starts a process."""


def find_surroundings(
    *, address: str | None = None, tracking_uri: str | None = None, out: Path = Path("studies"), spec: StudySpec | None
) -> Surroundings:
    """Ask this machine, or every node of a live Ray. What Ray prints about its nodes is dropped: the results say it.

    Args:
        address: Ray to join, as of `run`; None for `RAY_ADDRESS` or this machine.
        tracking_uri: MLflow; None for what `run` uses by default.
        out: Folder that holds the studies.
        spec: A space: then its environment is made on every node.
    """
    cluster, refusal = None, None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            joined = resolve_address(address)
            cluster = None if joined is None else ask_cluster(joined, None if spec is None else spec.environment)
    except StudyError as error:
        refusal = error
    except Exception as error:  # noqa: BLE001 (whatever Ray raises is a result too)
        refusal = ClusterError(
            where=f"--address {address}" if address else "RAY_ADDRESS",
            rule="its nodes must answer",
            got=f"{type(error).__name__}: {error}",
            fix="Look at `ray status`.",
        )
    return Surroundings(
        here=ask_here(spec, sample_s=0.0 if cluster is not None else SAMPLE_S),
        tracking_uri=asked_uri(tracking_uri) or DEFAULT_TRACKING_URI,
        out=out,
        spec=spec,
        cluster=cluster,
        refusal=refusal,
    )


def ask_here(spec: StudySpec | None, *, sample_s: float) -> NodeReport:
    """Return what this process and its machine tell, with the CPUs that a private Ray would hand out."""
    answer = read_node(sample_s=sample_s)
    num_cpus = answer["facts"].get("cpus", {}).get("num_cores", 0)
    why = None
    if spec is not None:
        with contextlib.suppress(Exception):  # the plan's own check says that
            num_cpus = private_shape(spec).num_cpus
        why = why_no_environment(spec.environment)
    return NodeReport(address=LOCAL, **answer, num_cpus=num_cpus, environment=why)


def why_no_environment(spec: EnvironmentSpec) -> str:
    """Return why an environment cannot be made in this process; empty when it can."""
    try:
        probe(spec, "environment")
    except SpaceError as error:
        return " ".join(fault.problem for fault in error.faults)
    return ""


def ask_cluster(address: str, environment: EnvironmentSpec | None) -> JoinedCluster:
    """Join a Ray, ask its nodes, leave it as it was.

    Raises:
        ClusterError: It refuses us, or what the environment consists of cannot travel.
    """
    with connected_ray(address, runtime_env=runtime_env(_own_modules(environment))):
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        table = ray.nodes()
        labels = _labels([node for node in table if node["Alive"]])
        places = {name: NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for name, node in labels.items()}
        task = ray.remote(num_cpus=0, max_retries=0)
        with _travelling():
            me = {"asking": [os.getpid()], "asking_boot_id": boot_id()}
            read = task(read_node)
            asked = {
                name: read.options(scheduling_strategy=at).remote(sample_s=SAMPLE_S, **me)
                for name, at in places.items()
            }
            answers, silent = _gather(asked)
            reasons = _ask_for_environment(environment, {name: places[name] for name in answers}, task)
        nodes = tuple(
            NodeReport(
                address=name,
                **answer,
                num_cpus=int(labels[name]["Resources"].get("CPU", 0)),
                num_gpus=labels[name]["Resources"].get("GPU", 0),
                environment=reasons.get(name),
            )
            for name, answer in answers.items()
        )
        lives = {node["NodeManagerAddress"] for node in labels.values()}
        dead = {node["NodeManagerAddress"] for node in table if not node["Alive"]} - lives
        return JoinedCluster(
            address=address,
            nodes=nodes,
            silent=silent,
            dead=tuple(sorted(dead)),
            num_free_cpus=ray.available_resources().get("CPU", 0),
        )


def _own_modules(environment: EnvironmentSpec | None) -> tuple[OwnModule, ...]:
    """Return what a study would take to the nodes; what an environment imports is known once it was made here."""
    if environment is None or not own_modules(environment) or why_no_environment(environment):
        return ()
    return own_modules(environment)


def _labels(nodes: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return nodes by their address; several on one address are numbered."""
    seen: Counter[str] = Counter()
    named = {}
    for node in nodes:
        address = node["NodeManagerAddress"]
        seen[address] += 1
        named[address if seen[address] == 1 else f"{address}#{seen[address]}"] = node
    return named


@contextlib.contextmanager
def _travelling() -> Iterator[None]:
    """Let what the nodes run travel by value, so that they need neither this project nor this version of it."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(study.hosts)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(study.hosts)


def _gather(asked: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
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


def _ask_for_environment(spec: EnvironmentSpec | None, places: Mapping[str, Any], task: Any) -> dict[str, str]:
    """Return by node why the space's environment cannot be made there; here the project itself is needed."""
    if spec is None:
        return {}
    why = task(why_no_environment)
    asked = {name: why.options(scheduling_strategy=at).remote(spec) for name, at in places.items()}
    answers, silent = _gather(asked)
    return {**answers, **silent}
