"""What would make a study fail here, or its numbers wrong: facts of this machine or of a live Ray, and eight checks.

Memory is in MB (2**20 bytes). None stands for "the system does not tell". A check that crashes becomes a finding that
says so.
"""

import contextlib
import hashlib
import io
import os
import platform
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from study.errors import StudyError
from study.machine.cluster import ask_nodes, joined_ray, resolve_address
from study.machine.host import current_job, file_system_of, is_network, machine_key, memory_mb, this_node
from study.machine.load import NodeLoad, load_between, snapshot
from study.machine.shape import LOCAL, NodeShape
from study.mirrors.tracking_uri import DEFAULT_TRACKING_URI, ask_mlflow, asked_uri, check_tracking_uri, sqlite_path
from study.text import count, gigabytes, one_line

Level = Literal["ok", "warn", "fail"]
"""`fail`: a study cannot run here, or its numbers would be wrong and not say so. `warn`: it runs with a loss."""
MOST = 120
"""Characters of a list of nodes, or of other things, in one finding."""


class Finding(msgspec.Struct, frozen=True):
    """What a check says, in one line, and what to do."""

    level: Level
    found: str
    fix: str = ""
    check: str = ""


# --- what is looked at -----------------------------------------------------------------------------------------------

SAMPLE_S = 1.0
"""How long the load is watched."""
ANSWER_TIMEOUT_S = 60.0
"""How long a node may take: the first task there starts a process."""
PROJECT = "this project"
PACKAGES = ("ray", "torch", "jax", "numpy", "gymnasium", "optuna", "mlflow", "scipy", "envpool", "ale-py")
"""Packages whose version changes results, or that refuse to work with another one."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What one node says of itself."""

    shape: NodeShape
    """As a plan needs it."""
    versions: dict[str, str]
    """Of Python and of `PACKAGES`; a digest of this project's modules."""
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
    """Everything that the checks look at; `here` is this process and its machine, as a private Ray would have it."""

    here: Node
    tracking_uri: str = DEFAULT_TRACKING_URI
    out: Path = Path("studies")
    address: str = ""
    """Of the Ray that was joined; empty: none."""
    joined: tuple[Node, ...] = ()
    """Its nodes that answered."""
    silent: Mapping[str, str] = {}
    """Address of a node that did not -> why."""
    num_free_cpus: float = 0

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Where trials would run."""
        return self.joined if self.address else (self.here,)


def find_surroundings(*, address: str | None, tracking_uri: str | None, out: Path) -> Surroundings:
    """Ask this machine, or every node of a live Ray, with the options of `run`.

    Raises:
        ClusterError: No Ray that accepts us answers at the address.
    """
    joined = resolve_address(address)
    cluster = {} if joined is None else _ask_cluster(joined)
    here = read_node(sample_s=SAMPLE_S if joined is None else 0.0)
    uri = asked_uri(tracking_uri) or DEFAULT_TRACKING_URI
    return Surroundings(here=here, tracking_uri=uri, out=out, **cluster)


def _ask_cluster(address: str) -> dict[str, Any]:
    """Join a Ray, ask its nodes by tasks that reserve nothing there, leave it as it was. What Ray prints is dropped."""
    with contextlib.redirect_stdout(io.StringIO()), joined_ray(address, asks_nodes=False):
        import ray

        session, me = ray.get_runtime_context().get_session_name(), (machine_key(), os.getpid())
        asked = ask_nodes(read_node, timeout_s=ANSWER_TIMEOUT_S, sample_s=SAMPLE_S, session=session, asking=[me])
        nodes = [(shape, node) for shape, node in asked if not isinstance(node, str)]
        return {
            "address": address,
            "joined": tuple(msgspec.structs.replace(node, shape=replace(node.shape, **shape)) for shape, node in nodes),
            "silent": {shape["address"]: why for shape, why in asked if isinstance(why, str)},
            "num_free_cpus": ray.available_resources().get("CPU", 0),
        }


def read_node(*, sample_s: float, session: str = "", asking: Collection[tuple[str, int]] = ()) -> Node:
    """Return what this process sees of its machine in so many seconds, in a session of Ray, if in any.

    `asking` is the machine, by `machine_key`, and the process of the doctor, which is not foreign.
    """
    load = None
    if sample_s:
        own = [(machine_key(), os.getpid()), *asking]
        first = snapshot(session, own)
        time.sleep(sample_s)
        load = load_between(first, snapshot(session, own, last=True))
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
    content, root = hashlib.sha256(), Path(__file__).resolve().parents[1]
    for file in sorted(file for name in ("study", "analysis") for file in (root / name).rglob("*.py")):
        content.update(f"{file.relative_to(root)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    versions = {PROJECT: content.hexdigest()[:12], "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


# --- Ray and its token -----------------------------------------------------------------------------------------------


def check_ray(around: Surroundings) -> Iterator[Finding]:
    """Whether every node answers, and nobody holds its CPUs."""
    if not around.address:
        yield Finding("ok", "a private one on this machine, with a token of its own, started and ended with the study")
        return
    total = sum(node.shape.num_cpus for node in around.joined)
    if around.silent:
        said = one_line(", ".join(f"{address}: {why}" for address, why in around.silent.items()), MOST)
        found = f"{count(len(around.silent), 'node')} that Ray takes for alive did not answer ({said})"
        fix = "Install this project there, or look at the raylet's log and restart the node: trials would hang."
        yield Finding("fail", found, fix)
    if around.num_free_cpus < total:
        found = f"{total - around.num_free_cpus:g} of {total} CPUs are reserved by others in the same Ray"
        fix = "Wait for them to end, or start a Ray of your own: they take time from timed trials."
        yield Finding("warn", found, fix)
    yield Finding("ok", f"joined {around.address}, {count(len(around.joined), 'node')} answered; {total} CPUs")


def token_of(node: Node, around: Surroundings) -> Iterator[Finding]:
    """Whether a node asks for a token, as the driver does; a private Ray has one of its own."""
    mine, theirs = around.here.token_mode, node.token_mode
    if theirs != mine:
        found = f"RAY_AUTH_MODE is {theirs or 'not set'}, and {mine or 'not set'} for the driver"
        yield Finding("warn", found, "Set it to the same value everywhere: a node with another one is refused.")
    elif theirs != "token" and around.address and not node.shape.address.startswith("127."):
        fix = "Unless the network is yours alone, export RAY_AUTH_MODE=token for every `ray start` and for the study."
        yield Finding("warn", "whoever reaches its ports can run code as you, without a token", fix)
    yield Finding("ok", "no other machine can run code in this Ray without a token")


# --- on every node: packages, CPUs, memory, other work ---------------------------------------------------------------

RUNNER_MB = 250
"""Memory of an environment runner of a small environment, measured: most of it Ray, torch and RLlib."""
MEMORY_LIMIT = 0.95
"""Share of a node's memory from which on Ray kills workers (its `memory_usage_threshold`)."""
SHM_MB = 200
"""Free shared memory that Ray's object store needs at least; weights and batches pass through it."""
FOREIGN_CORES = 0.25
"""Cores that foreign processes may use: more than a machine's own housekeeping."""
STOLEN_SHARE = 0.01
"""Share of the cores that a hypervisor may withhold."""


def packages_of(node: Node, around: Surroundings) -> Iterator[Finding]:
    """Whether a node has the packages of the driver; whether these fit together, `pip check` says."""
    here, there = around.here.versions, node.versions
    if others := [name for name in {**here, **there} if here.get(name) != there.get(name)]:
        found = ", ".join(f"{name} {there.get(name, 'missing')} instead of {here.get(name, 'none')}" for name in others)
        fix = "Install the same everywhere: this commit, this Python, and `pip install -r` what `pip freeze` says here."
        yield Finding("fail", found, fix)
    yield Finding("ok", "this project, Python and what changes results are the same everywhere")


def cpus_of(node: Node, around: Surroundings) -> Iterator[Finding]:
    """Whether Ray hands out CPUs that were not given to us, or hyper-threads, or starts processes that share them."""
    private, cores, taken = node.shape.address == LOCAL, node.shape.physical_cpus, node.shape.num_cpus
    what = f"{'a private Ray would hand' if private else 'Ray hands'} out {count(taken, 'CPU')}"
    given = taken if node.granted is None else node.granted
    fix = f"Start Ray there with --num-cpus={min(given, cores)}."
    if taken > given:
        fix = "Bind the study to its CPUs (`taskset`, `srun --cpu-bind=cores`)." if private else fix
        yield Finding("fail", f"{what}, {given} were allocated here by SLURM_CPUS_ON_NODE", fix)
    elif taken > cores:
        found = f"{what} for {count(cores, 'core')}: trials would share them, and their times say so"
        yield Finding("warn", found, fix)
    if node.threads not in (None, "1"):
        found = f"OMP_NUM_THREADS={node.threads}: processes that reserve one CPU may start {node.threads} threads each"
        yield Finding("warn", found, "Unset it where Ray is started.")
    if node.shape.niceness > 0:
        found = f"trials run at nice {node.shape.niceness}: every other process goes before them"
        fix = "Start the study without `nice`." if private else "Set RAY_worker_niceness=0 for `ray start` there."
        yield Finding("warn", found, fix)
    yield Finding("ok", f"{what} of {count(cores, 'core')} that this user may use")


def memory_of(node: Node, around: Surroundings) -> Iterator[Finding]:
    """Whether the runners that fit by CPUs fit by memory too. That a space's trials do is said by the plan."""
    total, free, need = node.shape.memory_mb, node.available_mb, node.shape.num_cpus * RUNNER_MB
    found = f"{gigabytes(need)} needed if every CPU gets a runner, {gigabytes(free)} of {gigabytes(total)} available"
    if need > MEMORY_LIMIT * total:
        fix = "Use fewer CPUs per node (--num-cpus) or smaller scales: Ray would kill the runners."
        yield Finding("fail", found, fix)
    elif need > free - (1 - MEMORY_LIMIT) * total:
        yield Finding("warn", found, "End what holds the memory: Ray kills workers when 95 % of it are in use.")
    if node.shm_free_mb < SHM_MB:
        shm = f"{gigabytes(node.shm_free_mb)} of /dev/shm are free: Ray would keep its objects on disk"
        yield Finding("warn", shm, "Make /dev/shm larger (`docker run --shm-size`), or remove what others left there.")
    yield Finding("ok", found)


def other_work_on(node: Node, around: Surroundings) -> Iterator[Finding]:
    """Whether anything but a study takes CPU time: foreign processes, or a hypervisor."""
    load, cores = node.load, node.shape.physical_cpus
    if load is None:
        found = "the system's clocks (/proc/stat) are not those of the CPUs: other work cannot be seen"
        yield Finding("warn", found, "Look at the load on the host of this container.")
        return
    if load.foreign_cores > FOREIGN_CORES:
        most = load.largest or "processes that cannot be seen from here"
        found = f"other processes use {load.foreign_cores:.1f} of {count(cores, 'core')} (most by {most})"
        fix = "End them, or take an exclusive node: they slow trials down, and the timings do not always show it."
        yield Finding("warn", found, fix)
    if load.stolen_cores > STOLEN_SHARE * cores:
        found = f"the hypervisor took {load.stolen_cores / cores:.0%} of the CPU time"
        yield Finding("warn", found, "Repeat timings at other hours, or use dedicated hardware.")
    yield Finding("ok", f"quiet: less than {FOREIGN_CORES:g} cores used by others over {load.seconds:.1f} s")


# --- where results are kept --------------------------------------------------------------------------------------

LITTLE_MB, ENOUGH_MB = 100, 1024
"""Free space: records, checkpoints and the database of a small study, and of a large one."""


def check_storage(around: Surroundings) -> Iterator[Finding]:
    """Whether a study's folder can be made, outlives a job, and has room."""
    place = _nearest(around.out)
    where = str(place) if place == around.out.absolute() else f"{place} (where {around.out} would be made)"
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        found = f"{where} is no folder that can be written"
        yield Finding("fail", found, "Choose another folder with --out, or repair this one.")
        return
    kind, job = file_system_of(place), current_job()
    if job is not None and job.scheduler != "kubernetes" and not is_network(kind):  # a claim follows its pod
        found = f"{place} is on a disk of {socket.gethostname()} ({kind or 'unknown'}), and this is a batch job"
        fix = "Choose a folder on shared storage with --out: requeued on another node, the job would not find it."
        yield Finding("warn", found, fix)
    free_mb = shutil.disk_usage(place).free // 2**20
    found = f"{gigabytes(free_mb)} are free for {place}"
    if free_mb < LITTLE_MB:
        yield Finding("fail", found, "Free some space: a study whose records cannot be written stops.")
    elif free_mb < ENOUGH_MB:
        yield Finding("warn", found, "Free some space, or choose another --out.")
    yield Finding("ok", f"{where} can be written; {found}")


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists and may be looked at."""
    place = folder.absolute()
    while not os.path.exists(place):  # noqa: PTH110 (Path's own raises where a folder above is closed)
        place = place.parent
    return place


def check_mlflow(around: Surroundings) -> Iterator[Finding]:
    """Whether MLflow can be used as the start of a study would, and an SQLite database is where its locks work."""
    ask_mlflow(uri := check_tracking_uri(around.tracking_uri))  # its errors become the finding
    path = sqlite_path(uri)
    if path is not None and is_network(kind := file_system_of(_nearest(path))):
        found = f"{path} is an SQLite database on {kind}, whose locks it cannot rely on: two writers corrupt it"
        fix = "Keep it on a local disk (--tracking-uri sqlite:////tmp/…), or use an MLflow server or PostgreSQL."
        yield Finding("warn", found, fix)
    yield Finding("ok", "it answers" if path is None or path.exists() else f"{path} will be made by the first study")


# --- all of them -----------------------------------------------------------------------------------------------------

CHECKS: Mapping[str, Callable[[Surroundings], Iterable[Finding]]] = {
    "ray": check_ray,
    "token": lambda around: _on_every_node(around, token_of),
    "packages": lambda around: _on_every_node(around, packages_of),
    "CPUs": lambda around: _on_every_node(around, cpus_of),
    "memory": lambda around: _on_every_node(around, memory_of),
    "other work": lambda around: _on_every_node(around, other_work_on),
    "storage": check_storage,
    "mlflow": check_mlflow,
}
"""In the order in which they are shown."""


def judge(around: Surroundings) -> Iterator[Finding]:
    """Yield what is wrong by each check, as soon as it is known; where nothing is, one line that says so."""
    for name, check in CHECKS.items():
        found: list[Finding] = []
        try:
            found.extend(check(around))
        except StudyError as error:
            problem = one_line(str(replace(error.fault, fix=""))).rstrip(".")
            found.append(Finding("fail", problem, error.fix or "See the message."))
        except Exception as error:  # noqa: BLE001 (a check that crashes is a finding)
            got = f"this check itself failed, {type(error).__name__}: {one_line(str(error), 200)}"
            found.append(Finding("fail", got, "Look at it by hand, and report this line."))
        for each in [each for each in found if each.level != "ok"] or found[:1]:
            yield msgspec.structs.replace(each, check=name)


def _on_every_node(around: Surroundings, ask: Callable[[Node, Surroundings], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what is found on the nodes, one finding for all that say the same."""
    where: defaultdict[Finding, list[str]] = defaultdict(list)
    for node in around.nodes:
        for each in ask(node, around):
            where[each].append(node.shape.address)
    for each, addresses in where.items():
        everywhere = len(addresses) == len(around.nodes)
        names = (
            "" if addresses == [LOCAL] else "all nodes: " if everywhere else f"{one_line(', '.join(addresses), MOST)}: "
        )
        yield msgspec.structs.replace(each, found=names + each.found)
