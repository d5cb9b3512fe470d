"""What one node tells about itself, as plain values. Standard library and psutil only: Ray brings psutil.

The functions of this module and its neighbours `probe_*` travel to the nodes by value, so that a node without this
project, or with another version of it, answers too. What cannot be read becomes a fault with its reason.
"""

import hashlib
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from study.hosts.control_groups import control_groups, memory_limits, read_number
from study.hosts.probe_cpus import read_cpus, read_frequency
from study.hosts.probe_load import own_ray, read_load, read_ray

MB = 2**20
PROJECT = ("study", "analysis")
"""The packages that every node must have in the same version."""


def look(*, sample_s: float, mine: Sequence[int] = (), boot_id: str = "") -> dict[str, Any]:
    """Return the facts of this node and the faults met: `{"facts": Facts, "faults": {fact: reason}}`.

    Args:
        sample_s: Seconds to watch the load; 0 for not at all.
        mine: Processes that belong to whoever asks, on the machine `boot_id`.
        boot_id: That machine.
    """
    ours = mine if read_host()["boot_id"] == boot_id else ()
    readers: dict[str, Callable[[], Any]] = {
        "host": read_host,
        "software": read_software,
        "cpus": lambda: read_cpus(_names_of_host()),
        "memory": read_memory,
        "shm": lambda: read_space("/dev/shm"),
        "temporary": lambda: read_space(_temporary_folder()),
        "limits": read_limits,
        "authentication": read_authentication,
        "threads_variable": read_threads_variable,
        "ray": read_ray,
        "load": lambda: read_load(sample_s, ours) if sample_s else None,
        "frequency": read_frequency,
    }
    facts: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, read in readers.items():
        try:
            facts[name] = read()
        except Exception as error:  # noqa: BLE001 (whatever it is, the person is told, and the rest is still read)
            faults[name] = f"{type(error).__name__}: {error}"
    return {"facts": facts, "faults": faults}


def read_clock() -> float:
    """Return this node's time in seconds since the epoch."""
    return time.time()


def read_host() -> dict[str, Any]:
    """Return which machine this is."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    models = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "hostname": socket.gethostname(),
        "boot_id": boot.read_text().strip() if boot.exists() else socket.gethostname(),
        "cpu_model": models[0] if models else platform.machine(),
    }


def _names_of_host() -> tuple[str, ...]:
    name = socket.gethostname()
    return (name, name.partition(".")[0])


def read_software() -> dict[str, Any]:
    """Return Python, every distribution, and a digest of this project as it would be imported here."""
    versions: dict[str, str] = {}
    for distribution in metadata.distributions():  # in the order of the path: the first one is imported
        name = distribution.metadata["Name"]
        if name:
            versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    folders = [folder for name in PROJECT if (folder := _folder_of(name)) is not None]
    return {
        "python": platform.python_version(),
        "prefix": sys.prefix,
        "versions": versions,
        "source": digest_of(folders) if len(folders) == len(PROJECT) else None,
        "source_folder": str(folders[0]) if folders else None,
    }


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


def read_memory() -> dict[str, Any]:
    """Return the memory of the machine, or of the tightest control group around this process."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for group, limit, usage in memory_limits():
        if limit < machine.total:
            total, available = min(total, limit), min(available, max(limit - usage + _cache(group), 0))
    return {"total_mb": total // MB, "available_mb": available // MB}


def _cache(group: Path) -> int:
    """Return the bytes that a control group gives back when it needs them."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split()[:2] for line in lines)
    return int(values.get("inactive_file", 0))


def read_space(folder: str) -> dict[str, Any]:
    """Return size, free space and type of the file system of a folder."""
    usage = shutil.disk_usage(folder)
    return {
        "folder": folder,
        "type": filesystem_of(Path(folder)),
        "total_mb": usage.total // MB,
        "free_mb": usage.free // MB,
    }


def filesystem_of(path: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that a path is on, such as `ext4` or `nfs4`; empty when unknown."""
    place = path.resolve()
    best, found = -1, ""
    for line in table.read_text().splitlines():
        before, _, after = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split()[4]))
        if (point == place or point in place.parents) and len(point.parts) >= best:  # the last mount is on top
            best, found = len(point.parts), after.split()[0]
    return found


def _temporary_folder() -> str:
    ray = own_ray()
    return ray.options["temp_dir"] if ray is not None else tempfile.gettempdir()


def read_limits() -> dict[str, Any]:
    """Return the limits on open files and on threads."""
    soft, hard = (
        sys.maxsize if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    rooms = sorted(thread_rooms())
    room, limit = rooms[0] if rooms else (None, "")
    return {"open_files": soft, "open_files_hard": hard, "thread_room": room, "thread_limit": limit}


def thread_rooms() -> list[tuple[int, str]]:
    """Return what each limit on threads leaves to this user, with its name."""
    rooms = []
    for group in control_groups("pids"):
        limit, used = read_number(group / "pids.max"), read_number(group / "pids.current")
        if limit is not None and used is not None:
            rooms.append((max(limit - used, 0), f"{group}/pids.max"))
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and os.getuid() != 0:  # the kernel does not hold root to it
        rooms.append((max(processes - _threads_of_user(), 0), "ulimit -u"))
    return rooms


def _threads_of_user() -> int:
    wanted = os.getuid()
    found = psutil.process_iter(["uids", "num_threads"])
    return sum(one.info["num_threads"] or 0 for one in found if one.info["uids"] and one.info["uids"].real == wanted)


def read_authentication() -> dict[str, Any]:
    """Return where Ray would take a token from, and who can read it. The token itself is never read."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    exists = file.is_file()
    return {
        "mode": os.environ.get("RAY_AUTH_MODE"),
        "token_in_environment": "RAY_AUTH_TOKEN" in os.environ,
        "token_file": str(file) if exists else None,
        "token_readers": readers_of(file) if exists else "",
    }


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


def read_threads_variable() -> str | None:
    """Return `OMP_NUM_THREADS` as workers inherit it: Ray sets it in a worker that has not got it."""
    ray = own_ray()
    if ray is None:
        return os.environ.get("OMP_NUM_THREADS")
    return psutil.Process(ray.pid).environ().get("OMP_NUM_THREADS")
