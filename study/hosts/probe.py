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

from study.hosts.jobs import granted_cpus
from study.hosts.load import OwnProcesses, load_between, snapshot
from study.hosts.machine import (
    MemoryFacts,
    boot_id,
    cores_of,
    cpu_model,
    cpu_quota,
    machine_key,
    num_cores,
    read_memory,
    usable_cpus,
)
from study.hosts.mounts import DiskFacts, read_disk, short_temporary_folder
from study.hosts.processes import Raylet, open_ports, own_raylet

PROJECT = ("study", "analysis")
"""The packages that every node must have in the same version."""


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


def read_open_files() -> list[int]:
    """Return how many files a process may open: the soft limit, and the hard one up to which it may raise it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits]


class TokenFacts(TypedDict):
    """Ray's token authentication as a process there finds it."""

    mode: str | None
    """`RAY_AUTH_MODE`; None when it is not set."""
    token_file: str | None
    """The file that Ray would take a token from; None without one."""
    is_private: bool
    """Whether its owner alone can read that file: by its mode, which Ray leaves open, or by that of a folder above."""


def read_token() -> TokenFacts:
    """Return where Ray would take a token from, and who may read it. The token itself is never read."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    exists = file.is_file()
    return TokenFacts(
        mode=os.environ.get("RAY_AUTH_MODE"),
        token_file=str(file) if exists else None,
        is_private=not exists or _is_private(file),
    )


def _is_private(file: Path) -> bool:
    closed = any(not folder.stat().st_mode & 0o011 for folder in file.resolve().parents)
    return closed or not file.stat().st_mode & 0o044


class RayFacts(TypedDict):
    """The Ray that a task runs in."""

    plasma_directory: str
    open_ports: list[str]
    """Where its processes listen beyond the loopback interface."""


class LoadFacts(TypedDict):
    """What else happens on the cores that we may use; fields as of `study.hosts.load.NodeLoad`."""

    seconds: float
    foreign_cores: float | None
    stolen_cores: float | None
    largest: str


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
    if load is None:
        return LoadFacts(seconds=sample_s, foreign_cores=None, stolen_cores=None, largest="")
    return LoadFacts(
        seconds=load.seconds, foreign_cores=load.foreign_cores, stolen_cores=load.stolen_cores, largest=load.largest
    )


class NodeFacts(TypedDict):
    """Everything; what could not be read is missing, and named among the faults."""

    boot_id: str
    """The same for all that runs under one kernel."""
    cpu_model: str
    software: SoftwareFacts
    cpus: CpuFacts
    memory: MemoryFacts
    shm: DiskFacts
    temporary: DiskFacts
    open_files: list[int]
    """Soft and hard limit."""
    token: TokenFacts
    threads_variable: str | None
    """`OMP_NUM_THREADS` as Ray's workers inherit it; None: not set."""
    niceness: int
    """Of the process that answers: a worker of Ray's, or the doctor, as the driver of a private Ray would have it."""
    ray: RayFacts | None
    """None outside of Ray."""
    load: LoadFacts | None
    """None: not watched."""


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
        "boot_id": boot_id,
        "cpu_model": cpu_model,
        "software": read_software,
        "cpus": read_cpus,
        "memory": read_memory,
        "shm": lambda: read_disk("/dev/shm"),
        "temporary": lambda: read_disk(short_temporary_folder() if ray is None else ray.options["temp_dir"]),
        "open_files": read_open_files,
        "token": read_token,
        # Ray sets it in a worker that has not got it.
        "threads_variable": lambda: (os.environ if ray is None else psutil.Process(ray.pid).environ()).get(
            "OMP_NUM_THREADS"
        ),
        "niceness": lambda: os.getpriority(os.PRIO_PROCESS, 0),
        "ray": lambda: (
            None
            if ray is None
            else RayFacts(
                plasma_directory=ray.options.get("plasma_directory", ""),
                open_ports=open_ports(ray.options["session_dir"]),
            )
        ),
        "load": lambda: read_load(sample_s, own, ray) if sample_s else None,
    }
    facts: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, read in readers.items():
        try:
            facts[name] = read()
        except Exception as error:  # noqa: BLE001 (the person sees it, and the rest is still read)
            faults[name] = f"{type(error).__name__}: {error}"
    return {"facts": facts, "faults": faults}
