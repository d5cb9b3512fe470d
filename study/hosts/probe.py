"""Everything that `study.doctor` asks a node about itself, as plain values. Standard library and psutil.

The functions of this package travel to the nodes by value, so that a node without this project, or with another version
of it, answers too: facts are plain dictionaries of JSON values. Memory and disk are in MB (2**20 bytes). None stands
for "the system does not tell", unless a field says otherwise. What cannot be read becomes a fault with its reason.
"""

import hashlib
import importlib.util
import os
import platform
import re
import resource
import socket
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

import psutil

from study.hosts.control_groups import control_groups, cpu_quota, read_number
from study.hosts.cpus import FrequencyFacts, cores_of, cpu_model, num_cores, read_frequency, usable_cpus
from study.hosts.identity import boot_id, machine_key
from study.hosts.jobs import granted_cpus
from study.hosts.load import OwnProcesses, load_between, read_pressure_share, snapshot
from study.hosts.memory import MemoryFacts, read_memory
from study.hosts.mounts import DiskFacts, read_disk, short_temporary_folder
from study.hosts.processes import Raylet, open_ports, own_raylet, reach_of_nice, threads_of_user

PROJECT = ("study", "analysis")
"""The packages that every node must have in the same version."""


class IdentityFacts(TypedDict):
    """Which machine."""

    boot_id: str
    """The same for all that runs under one kernel."""
    cpu_model: str


class SoftwareFacts(TypedDict):
    """Python and the distributions there."""

    python: str
    versions: dict[str, str]
    """By normalised name."""
    source: str | None
    """Digest of this project's modules; None where they cannot be imported."""
    source_folder: str | None


def read_software() -> SoftwareFacts:
    """Return Python, every distribution, and a digest of this project as it would be imported here."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():  # in the order of the path: the first one is imported
        name = distribution.metadata["Name"]
        if name:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    folders = [folder for name in PROJECT if (folder := _folder_of(name)) is not None]
    return SoftwareFacts(
        python=platform.python_version(),
        versions=versions,
        source=digest_of(folders) if len(folders) == len(PROJECT) else None,
        source_folder=str(folders[0]) if folders else None,
    )


def _folder_of(package: str) -> Path | None:
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(found.origin).parent if found is not None and found.origin else None


def digest_of(folders: Sequence[Path]) -> str:
    """Return twelve hexadecimal digits that stand for all modules of some packages."""
    content = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            content.update(f"{folder.name}/{file.relative_to(folder)}\0".encode())
            content.update(hashlib.sha256(file.read_bytes()).digest())
    return content.hexdigest()[:12]


class CpuFacts(TypedDict):
    """CPUs that processes there may use."""

    machine: int
    """Logical CPUs of the machine."""
    allowed: int
    """Logical CPUs of this process's affinity."""
    quota: float | None
    """CPUs of the tightest quota of the control groups; None without one."""
    cores: list[str]
    """The physical cores behind the allowed CPUs, each by the list of its hyper-threads."""
    num_cores: int
    """How many of them a study uses."""
    granted: int | None
    """CPUs that the batch system gave on this node; None outside of a job."""
    granted_by: str
    """The variable that says so."""


def read_cpus() -> CpuFacts:
    """Return the CPUs that processes may use here, by the kernel and by the batch system."""
    allowed, name = usable_cpus(), socket.gethostname()
    granted, granted_by = granted_cpus((name, name.partition(".")[0]))
    return CpuFacts(
        machine=os.cpu_count() or len(allowed),
        allowed=len(allowed),
        quota=cpu_quota(),
        cores=cores_of(allowed),
        num_cores=num_cores(),
        granted=granted,
        granted_by=granted_by,
    )


class LimitFacts(TypedDict):
    """Limits of the system on what a user has."""

    open_files: int
    """Soft limit."""
    open_files_hard: int
    thread_room: int | None
    """Threads that this user may still start; None: no limit."""
    thread_limit: str
    """Which limit that is."""


def read_limits() -> LimitFacts:
    """Return the limits on open files and on threads."""
    soft, hard = (
        sys.maxsize if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    room, limit = min(_thread_rooms(), default=(None, ""))
    return LimitFacts(open_files=soft, open_files_hard=hard, thread_room=room, thread_limit=limit)


def _thread_rooms() -> list[tuple[int, str]]:
    """Return what each limit on threads leaves to this user, with its name."""
    rooms = []
    for group in control_groups("pids"):
        limit, used = read_number(group / "pids.max"), read_number(group / "pids.current")
        if limit is not None and used is not None:
            rooms.append((max(limit - used, 0), f"{group}/pids.max"))
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and os.getuid() != 0:  # the kernel does not hold root to it
        rooms.append((max(processes - threads_of_user(), 0), "ulimit -u"))
    return rooms


class TokenFacts(TypedDict):
    """Ray's token authentication as a process there finds it."""

    mode: str | None
    """`RAY_AUTH_MODE`; None when it is not set."""
    token_file: str | None
    """The file that Ray would take a token from; None without one."""
    token_readers: str
    """Who beside its owner can read it: `everybody`, `its group` or nobody (empty)."""


def read_token() -> TokenFacts:
    """Return where Ray would take a token from, and who can read it. The token itself is never read."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    exists = file.is_file()
    return TokenFacts(
        mode=os.environ.get("RAY_AUTH_MODE"),
        token_file=str(file) if exists else None,
        token_readers=readers_of(file) if exists else "",
    )


def readers_of(file: Path) -> str:
    """Return who beside its owner can read a file: `everybody`, `its group` or nobody (empty).

    That takes the right to read the file and to pass through every folder above it.
    """
    status = file.stat()
    everybody, group = bool(status.st_mode & 0o004), bool(status.st_mode & 0o040)
    for folder in file.resolve().parents:
        above = folder.stat()
        passes = bool(above.st_mode & 0o001)
        group = group and (bool(above.st_mode & 0o010) if above.st_gid == status.st_gid else passes)
        everybody = everybody and passes
    return "everybody" if everybody else "its group" if group else ""


def _threads_variable(ray: Raylet | None) -> str | None:
    """Return `OMP_NUM_THREADS` as workers inherit it: Ray sets it in a worker that has not got it."""
    variables = os.environ if ray is None else psutil.Process(ray.pid).environ()
    return variables.get("OMP_NUM_THREADS")


class RayFacts(TypedDict):
    """The Ray that a task runs in."""

    plasma_directory: str
    open_ports: list[str]
    """Where its processes listen beyond the loopback interface."""


class PriorityFacts(TypedDict):
    """What decides which process gets a CPU that several want."""

    niceness: int
    """Of the process that answers: a worker of Ray's, or the doctor, as the driver of a private Ray would have it."""
    reach: str
    """The group inside of which nice values count (`reach_of_nice`)."""


class LoadFacts(TypedDict):
    """What else happens on the cores that we may use; fields as of `study.hosts.load.NodeLoad`."""

    seconds: float
    foreign_cores: float | None
    stolen_cores: float | None
    largest: str
    pressure: float | None
    """Share of the last ten seconds in which some task waited for a CPU."""


def read_load(sample_s: float, own: Sequence[int], ray: Raylet | None) -> LoadFacts:
    """Return what happens on this machine's CPUs for a while besides this Ray and the doctor.

    Args:
        sample_s: Seconds to watch.
        own: Processes of the doctor; those that they have started count with them.
        ray: The Ray that this task runs in.
    """
    session = "" if ray is None else ray.options["session_dir"]
    ours = OwnProcesses(session=session, driver=None, trial={machine_key(): tuple(own)})
    first = snapshot(ours)
    time.sleep(sample_s)
    load = load_between(first, snapshot(ours, last=True))
    return LoadFacts(
        seconds=sample_s if load is None else load.seconds,
        foreign_cores=None if load is None else load.foreign_cores,
        stolen_cores=None if load is None else load.stolen_cores,
        largest="" if load is None else load.largest,
        pressure=read_pressure_share(),
    )


class NodeFacts(TypedDict):
    """Everything; what could not be read is missing, and named among the faults."""

    identity: IdentityFacts
    software: SoftwareFacts
    cpus: CpuFacts
    memory: MemoryFacts
    shm: DiskFacts
    temporary: DiskFacts
    limits: LimitFacts
    token: TokenFacts
    threads_variable: str | None
    """`OMP_NUM_THREADS` as Ray's workers inherit it; None: not set."""
    priority: PriorityFacts
    ray: RayFacts | None
    """None outside of Ray."""
    load: LoadFacts | None
    """None: not watched."""
    frequency: FrequencyFacts


def read_node(*, sample_s: float, asking: Sequence[int] = (), asking_boot_id: str = "") -> dict[str, Any]:
    """Return the facts of this node and the faults met: `{"facts": NodeFacts, "faults": {fact: reason}}`.

    Args:
        sample_s: Seconds to watch the load; 0 for not at all.
        asking: Processes of the doctor, which are not foreign.
        asking_boot_id: `boot_id()` of the machine of these processes.
    """
    ray = own_raylet()
    own = (os.getpid(), *(asking if boot_id() == asking_boot_id else ()))
    readers: dict[str, Callable[[], Any]] = {
        "identity": lambda: IdentityFacts(boot_id=boot_id(), cpu_model=cpu_model()),
        "software": read_software,
        "cpus": read_cpus,
        "memory": read_memory,
        "shm": lambda: read_disk("/dev/shm"),
        "temporary": lambda: read_disk(short_temporary_folder() if ray is None else ray.options["temp_dir"]),
        "limits": read_limits,
        "token": read_token,
        "threads_variable": lambda: _threads_variable(ray),
        "priority": lambda: PriorityFacts(niceness=os.getpriority(os.PRIO_PROCESS, 0), reach=reach_of_nice()),
        "ray": lambda: (
            None
            if ray is None
            else RayFacts(
                plasma_directory=ray.options.get("plasma_directory", ""),
                open_ports=open_ports(ray.options["session_dir"]),
            )
        ),
        "load": lambda: read_load(sample_s, own, ray) if sample_s else None,
        "frequency": read_frequency,
    }
    facts: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, read in readers.items():
        try:
            facts[name] = read()
        except Exception as error:  # noqa: BLE001 (the person sees it, and the rest is still read)
            faults[name] = f"{type(error).__name__}: {error}"
    return {"facts": facts, "faults": faults}
