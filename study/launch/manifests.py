"""`launch ray-up` and `launch kuberay`: what those programs read, and what to type. Starts nothing."""

import getpass
import hashlib
import re
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from study.errors import LaunchError
from study.launch import containers, kuberay, ray_up, tunnels
from study.launch.command import Teller
from study.launch.manifest import Step, WrittenFiles
from study.launch.ports import LOWEST
from study.launch.ssh import parse_hosts
from study.planning.plan import make_plan
from study.planning.shape import ClusterShape, NodeShape
from study.space.spec import StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a person asked for of a program that starts Ray itself, checked."""

    name: str
    folder: Path
    space: Path
    spec: StudySpec
    arguments: tuple[str, ...]
    """Of `python -m study run`."""
    hosts: tuple[str, ...]
    ssh_key: Path | None
    head_ip: str | None
    jump: str | None
    image: str
    nodes: int
    cpus_per_node: int | None
    memory_gb: int | None
    walltime_s: int | None
    python: str
    activate: str
    interface: str
    port_base: int | None
    dashboard: bool
    use_head: bool
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What was written for another program, and what to type."""

    folder: Path
    texts: Mapping[str, str]
    """Name -> content, each for nobody else to read."""
    shown: str
    """The one to look at."""
    steps: tuple[Step, ...]
    dashboard: str = ""
    """`ssh -L` line for Ray's dashboard, where one is started."""


def ray_up_files(asked: Manifest) -> Files:
    """Return `cluster.yaml` for `ray up`, and the token that its hosts share.

    Raises:
        LaunchError: A host's name or another value is not plain.
    """
    hosts, me = parse_hosts(asked.hosts), getpass.getuser()
    ssh_user = hosts[0].name.rpartition("@")[0] or me
    bare = [replace(host, name=host.name.rpartition("@")[2]) for host in hosts]
    bare = [replace(host, num_cpus=asked.cpus_per_node or host.num_cpus) for host in bare]
    token = asked.folder / "ray.token"
    cluster = ray_up.RayUp(
        name=_plain(asked.name, of=f"{me} {ssh_user}"),  # its folder in /tmp is among those of other people
        study=asked.name,
        space_file=str(asked.space.resolve()),
        token_file=str(token),
        head=bare[0],
        head_ip=asked.head_ip or _address_of(bare[0].name),
        workers=tuple(bare[1:]),
        arguments=asked.arguments,
        ssh_user=ssh_user,
        ssh_key="" if asked.ssh_key is None else str(asked.ssh_key.resolve()),
        ssh_proxy=f"ssh -W %h:%p {asked.jump}" if asked.jump else "",
        python=asked.python,
        activate=asked.activate,
        interface=asked.interface,
        port_base=asked.port_base or LOWEST,
        dashboard=asked.dashboard,
        use_head=asked.use_head,
        wait_s=asked.wait_s,
    )
    file = asked.folder / "cluster.yaml"
    return Files(
        folder=asked.folder,
        texts={file.name: ray_up.render(cluster), token.name: secrets.token_urlsafe(32)},
        shown=file.name,
        steps=ray_up.commands(cluster, str(file)),
        dashboard=tunnels.dashboard_line(bare[0].name, cluster.dashboard_port, jump=asked.jump, user=cluster.ssh_user)
        if asked.dashboard
        else "",
    )


def kuberay_files(asked: Manifest) -> Files:
    """Return the RayJob, and the recipes of its container.

    Raises:
        LaunchError: A name or a number breaks Kubernetes' laws.
        ClusterError: A trial of the space can never fit into these pods.
    """
    assert asked.cpus_per_node is not None
    worker = kuberay.Pod(num_cpus=asked.cpus_per_node, memory_gb=asked.memory_gb or asked.cpus_per_node + 2)
    job = kuberay.KubeRay(
        name=_plain(asked.name),
        study=asked.name,
        space_text=asked.space.read_text(),
        image=asked.image,
        num_workers=asked.nodes,
        worker=worker,
        use_head=asked.use_head,
        arguments=asked.arguments,
        deadline_s=asked.walltime_s,
    )
    make_plan(asked.spec, _shape_of(job))
    file, recipe = asked.folder / "rayjob.yaml", asked.folder / "Containerfile"
    apptainer = asked.folder / "apptainer.def"
    return Files(
        folder=asked.folder,
        texts={
            file.name: kuberay.render(job),
            recipe.name: containers.render_containerfile(),
            apptainer.name: containers.render_apptainer(),
        },
        shown=file.name,
        steps=(
            *containers.containerfile_commands(str(recipe), asked.image),
            *kuberay.commands(job, str(file)),
            *containers.apptainer_commands(str(apptainer), f"{job.name}.sif"),
        ),
    )


def show_manifest(console: Console, files: Files, *, only_print: bool) -> int:
    """Show a manifest, or write it, and say what to type."""
    say = Teller(console)
    if only_print:
        sys.stdout.write(files.texts[files.shown])
    else:
        WrittenFiles(files.folder, files.texts)
        say(f"Wrote {', '.join(str(files.folder / name) for name in files.texts)}. Now type:")
    for step in files.steps:
        say(f"\n{step}")
    if files.dashboard:
        say(f"\nFrom your own machine, once it runs:\n  {files.dashboard}")
    return 0


def _shape_of(job: kuberay.KubeRay) -> ClusterShape:
    """Return the pods as the nodes that they will be."""
    pods = [(f"worker {index}", job.worker, job.worker.num_cpus) for index in range(1, job.num_workers + 1)]
    if job.use_head or not pods:
        pods.append(("head", job.head, job.head.num_cpus))
    return ClusterShape(
        nodes=tuple(
            NodeShape(address=name, num_cpus=cpus, physical_cpus=cpus, memory_mb=pod.memory_gb * 1024)
            for name, pod, cpus in pods
        )
    )


def _plain(name: str, *, of: str = "") -> str:
    """Return a name as Ray's autoscaler and Kubernetes take it: a letter first, then letters, digits, dashes.

    What is lost of it becomes six digits, so that no two studies get one name.

    Args:
        name: Of the study.
        of: Whose it is, where several people share the place.
    """
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower())
    plain = (plain if plain[:1].isalpha() else f"s-{plain}").strip("-")
    whole = f"{of} {name}".strip()
    if whole == plain and len(plain) <= ray_up.LONGEST_NAME:
        return plain
    mark = hashlib.sha256(whole.encode()).hexdigest()[:6]
    return f"{plain[: ray_up.LONGEST_NAME - len(mark) - 1].strip('-')}-{mark}"


def _address_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)  # 127.0.1.1 for a Debian machine's own name: refused where others must join
    except OSError as error:
        raise LaunchError(
            f"--hosts: the head's address must be known here, got '{host}' ({error.strerror}). Fix: give --head-ip."
        ) from error
