"""What `study.doctor` asks a node about itself, as plain JSON values. Standard library and psutil.

Memory is in MB (2**20 bytes). None stands for "the system does not tell".
"""

import hashlib
import os
import platform
import re
import shutil
import socket
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from study.machine.host import boot_id, cores_of, cpu_quota, machine_key, memory_mb, num_cores, usable_cpus
from study.machine.jobs import granted_cpus
from study.machine.load import OwnProcesses, load_between, snapshot
from study.machine.processes import open_ports

_PROJECT = Path(__file__).resolve().parents[2]


def read_facts(*, sample_s: float, session: str = "", asking: tuple[str, int] | None = None) -> dict[str, Any]:
    """Return the facts of this node, by the names of the functions below.

    Args:
        sample_s: Seconds to watch the load; 0 for not at all.
        session: Name of the Ray session that this node belongs to; empty outside of Ray.
        asking: Machine, by `machine_key`, and process of the doctor, which is not foreign.
    """
    # Ray sets OMP_NUM_THREADS in a worker that has not got it: what counts is what the raylet, its parent, has.
    variables = psutil.Process(os.getppid()).environ() if session else os.environ
    return {
        "boot_id": boot_id(),
        "software": _software(),
        "cpus": _cpus(),
        "memory_mb": memory_mb(),
        "shm_free_mb": shutil.disk_usage("/dev/shm").free // 2**20 if Path("/dev/shm").is_dir() else 0,
        "token": _token(),
        "threads_variable": variables.get("OMP_NUM_THREADS"),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "open_ports": open_ports(session) if session else [],
        "load": _load(sample_s, session, asking) if sample_s else None,
    }


def _software() -> dict[str, Any]:
    """Return Python, the version of every distribution by its normalised name, and a digest of this project."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():  # in the order of the path: the first one is imported
        if name := distribution.metadata["Name"]:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    folders = [_PROJECT / name for name in ("study", "analysis")]
    return {"python": platform.python_version(), "versions": versions, "source": digest_of(folders)}


def digest_of(folders: list[Path]) -> str:
    """Return twelve hexadecimal digits that stand for all modules of some packages."""
    content = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            content.update(f"{folder.name}/{file.relative_to(folder)}\0".encode())
            content.update(hashlib.sha256(file.read_bytes()).digest())
    return content.hexdigest()[:12]


def _cpus() -> dict[str, Any]:
    """Return the CPUs that processes may use here, by the kernel and by the batch system.

    `machine` counts logical CPUs, `allowed` those of the affinity; `cores` are the physical ones behind these, each by
    the list of its hyper-threads; `granted` is what the batch system gave, by the variable `granted_by`.
    """
    allowed, name = usable_cpus(), socket.gethostname()
    granted, granted_by = granted_cpus((name, name.partition(".")[0]))
    return {
        "machine": os.cpu_count() or len(allowed),
        "allowed": len(allowed),
        "quota": cpu_quota(),
        "cores": cores_of(allowed),
        "num_cores": num_cores(),
        "granted": granted,
        "granted_by": granted_by,
    }


def _token() -> dict[str, Any]:
    """Return `RAY_AUTH_MODE`, and the file that Ray would take a token from where others may read it.

    The token itself is never read. A file is private by its own mode or by that of a folder above it.
    """
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    exists = file.is_file()
    open_to_others = exists and all(folder.stat().st_mode & 0o011 for folder in file.resolve().parents)
    readable = open_to_others and file.stat().st_mode & 0o044
    return {"mode": os.environ.get("RAY_AUTH_MODE"), "exists": exists, "readable": str(file) if readable else None}


def _load(sample_s: float, session: str, asking: tuple[str, int] | None) -> dict[str, Any] | None:
    """Return what happens on this host's cores for a while besides this Ray and the doctor; None where it is unknown.

    Fields are those of `study.machine.load.NodeLoad`.
    """
    ours = OwnProcesses(session=session, driver=asking, trial={machine_key(): (os.getpid(),)})
    first = snapshot(ours)
    time.sleep(sample_s)
    load = load_between(first, snapshot(ours, last=True))
    if load is None:
        return {"seconds": sample_s, "foreign_cores": None, "stolen_cores": None, "largest": ""}
    return {name: getattr(load, name) for name in ("seconds", "foreign_cores", "stolen_cores", "largest")}
