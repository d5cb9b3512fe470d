"""One host: its identity, the CPUs, GPUs and memory that a study can use there, its file systems and processes.

Standard library and psutil. A joined Ray runs `this_node` on every node of its cluster. Ray itself looks at neither
affinity nor version 2 cpusets, and counts hyper-threads as CPUs.
"""

import contextlib
import gc
import hashlib
import os
import platform
import re
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from study.errors import ClusterError
from study.machine.shape import LOCAL, NodeShape

_MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Limit and usage of a control group, of version 2 and of version 1."""
_KIB_PER_MB = 1024 / 1e6
_LONGEST_TMPDIR = 20
"""Bytes; with Ray's own names behind it, the path of a socket stays below 107, which is the most."""


def this_node(at_least: int = 0) -> NodeShape:
    """Return this host as the one node of a private Ray, which hands out `at_least` so many CPUs.

    With fewer cores a study runs too, and the timings of trials with more processes than cores say so.
    """
    cores, niceness = num_cores(), os.getpriority(os.PRIO_PROCESS, 0)
    about: dict[str, Any] = {"address": LOCAL, "num_gpus": count_gpus(), "niceness": niceness}
    return NodeShape(num_cpus=max(cores, at_least), physical_cpus=cores, memory_mb=memory_mb()[0], **about)


# --- identity --------------------------------------------------------------------------------------------------------


def machine_key() -> str:
    """Return what tells this host from all others: its name, which another one may have too, and its boot."""
    return f"{os.uname().nodename}/{read_text(Path('/proc/sys/kernel/random/boot_id'))}"


SCHEDULERS = {
    "slurm": "SLURM_JOB_ID",
    "oar": "OAR_JOB_ID",
    "pbs": "PBS_JOBID",
    "kubernetes": "KUBERNETES_SERVICE_HOST",
}
"""Scheduler -> the variable by which a process knows that it belongs to a job."""


class BatchJob(NamedTuple):
    """A batch job, seen from inside: one of `SCHEDULERS`, and its identifier there, the pod's name in Kubernetes."""

    scheduler: str
    id: str


def current_job() -> BatchJob | None:
    """Return the job that this process belongs to; None outside of one."""
    for scheduler, name in SCHEDULERS.items():
        if number := os.environ.get(name):
            return BatchJob(scheduler, os.environ.get("HOSTNAME", "") if scheduler == "kubernetes" else number)
    return None


def cpu_model() -> str:
    """Return the name of the processor, or the architecture where the system does not name it."""
    found = re.search(r"^model name\s*:\s*(.*)$", read_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def read_text(file: Path) -> str:
    """Return the text of a file without blanks around it; empty when it cannot be read."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


# --- CPUs and GPUs ---------------------------------------------------------------------------------------------------


def num_cores() -> int:
    """Return the cores that a study can use here: those of this process's affinity, or fewer by quotas; at least 1."""
    cores, quota = len(cores_of(usable_cpus())), cpu_quota()
    return cores if quota is None else min(cores, max(int(quota), 1))


def usable_cpus() -> list[int]:
    """Return the logical CPUs of this process's affinity, which the cpusets of control groups are part of."""
    return sorted(os.sched_getaffinity(0))


def cores_of(cpus: Iterable[int], root: Path = Path("/sys/devices/system/cpu")) -> list[str]:
    """Return the distinct cores of logical CPUs, each by its hyper-threads, `["0,4", "1,5"]`, or by itself."""
    return sorted({read_text(root / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in cpus})


def cpu_quota() -> float | None:
    """Return the CPUs of the tightest quota around this process; None where there is none."""
    quotas = []
    for group in control_groups("cpu"):
        old = [read_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        words = read_text(group / "cpu.max").split() or old
        if all(word.isdigit() and int(word) for word in words):  # `max` and -1 are no quota
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def control_groups(
    controller: str, membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Iterator[Path]:
    """Yield the folders of the control groups around this process that `controller` limits, innermost first.

    Inside a container the process may be named as the host sees it: then only the root of what is mounted is there.
    """
    for line in read_text(membership).splitlines():
        number, controllers, group = line.split(":", 2)
        unified = number == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        mounted = (root / "unified", root) if unified else (root / controllers, root / controller)
        top = next((place for place in mounted if place.is_dir()), root)
        inner = top / group.lstrip("/")
        while True:
            if inner.is_dir():
                yield inner
            if inner in (top, inner.parent):
                break
            inner = inner.parent


def count_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Return the NVIDIA GPUs that this process may use, without importing torch; 0 where there is no driver."""
    count = len(list(driver.iterdir())) if driver.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count
    return min(count, len([device for device in visible.split(",") if device.strip() not in ("", "-1", "NoDevFiles")]))


# --- memory ----------------------------------------------------------------------------------------------------------


def memory_mb() -> tuple[int, int]:
    """Return what processes here may use, all and available, in MB of 2**20 bytes, of the tightest control group."""
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for group in control_groups("memory"):
        for limit_file, usage_file in _MEMORY_FILES:
            limit, usage = read_text(group / limit_file), read_text(group / usage_file)
            # Version 1 gives a number beyond all machines where there is no limit.
            if limit.isdigit() and usage.isdigit() and int(limit) < machine.total:
                free = int(limit) - int(usage) + _file_cache(group)
                total, available = min(total, int(limit)), min(available, max(free, 0))
    return total // 2**20, available // 2**20


def _file_cache(group: Path) -> int:
    """Return the bytes of cached files in a control group, which the kernel frees when it needs them."""
    values = dict(line.split()[:2] for line in read_text(group / "memory.stat").splitlines())
    return int(values.get("inactive_file", 0))


def forget_trial() -> None:
    """Free what a process's last trial left, and forget its peak; between two trials, where nothing is timed.

    What stays, mostly modules, is left out of later searches for garbage, of 0.3 s in the midst of a timed phase.
    """
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()
    with contextlib.suppress(OSError):  # not Linux: then it stays that of all trials so far
        Path("/proc/self/clear_refs").write_text("5")


def read_peak_rss_mb() -> float:
    """Return the largest resident size of this process so far, in MB (10**6 bytes)."""
    if found := re.search(r"^VmHWM:\s*(\d+)", read_text(Path("/proc/self/status")), re.MULTILINE):
        return int(found[1]) * _KIB_PER_MB
    # Second choice: on Linux a process inherits this one from the process that started it.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB_PER_MB


# --- file systems ----------------------------------------------------------------------------------------------------

_NETWORK = (
    *("nfs", "cifs", "smb", "9p", "afs", "lustre", "gpfs", "beegfs", "fhgfs", "ceph", "glusterfs", "orangefs", "pvfs"),
    *("panfs", "wekafs", "dvs", "sshfs", "s3", "juicefs", "rclone"),
)
"""How the types of file systems begin that other machines serve, behind `fuse.` where a program does so. Not virtiofs,
which is the disk of many a container in a virtual machine."""


def file_system_of(path: Path) -> str:
    """Return the type of the file system that a path is on, such as `ext4`; empty where the system does not tell."""
    place = path.resolve()
    try:
        around = [each for each in psutil.disk_partitions(all=True) if place.is_relative_to(each.mountpoint)]
    except OSError:
        return ""
    around.sort(key=lambda each: len(Path(each.mountpoint).parts))  # of several on one point the last is on top
    return around[-1].fstype if around else ""


def is_network(file_system: str) -> bool:
    """Return whether other machines serve a type of file system."""
    return file_system.removeprefix("fuse.").startswith(_NETWORK)


@contextlib.contextmanager
def own_folder(kind: str) -> Iterator[Path]:
    """Make a folder of this process, for it alone to use, in TMPDIR, or in /tmp where that is too long for sockets.

    It is removed at the end, and with it those that killed processes of this user and host have left, and what still
    runs in them: Ray's agents outlive their raylet for minutes (2.60). Its name begins with its kind, of which a
    process has at most one, and tells hosts and users apart, which may share the folder above it.

    Raises:
        ClusterError: It cannot be made, or something else has its name.
    """
    root = tempfile.gettempdir() if len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_TMPDIR else "/tmp"
    owner = hashlib.sha256(f"{os.getuid()}@{socket.gethostname()}".encode()).hexdigest()[:4]
    folder = Path(root, f"{kind}-{owner}-{os.getpid()}")
    for place in Path(root).glob(f"{kind}-{owner}-*"):
        pid = place.name.rpartition("-")[2]
        if pid.isdecimal() and (place == folder or not psutil.pid_exists(int(pid))):
            _clear(place)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        rule, fix = "must be a folder that can be made", "Choose another folder for temporary files with TMPDIR."
        raise ClusterError(where=str(folder), rule=rule, got=error.strerror or "", fix=fix) from error
    try:
        yield folder
    finally:
        _clear(folder)


def _clear(folder: Path) -> None:
    """Remove a folder and the processes of this user that have it on their command line."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        uids, words = process.info["uids"], process.info["cmdline"] or ()
        if uids and uids.real == os.getuid() and any(f"{folder}/" in word for word in words):
            with contextlib.suppress(psutil.Error):
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)


# --- processes --------------------------------------------------------------------------------------------------------

_OWN_AUTOGROUP = Path("/proc/self/autogroup")


def children_of(pid: int) -> set[int]:
    """Return the ids of a process's children from the kernel's list; to look at all processes takes seconds."""
    texts = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended, or the kernel does not tell
            texts.append(file.read_text())
    return {int(word) for text in texts for word in text.split()}


def set_back(niceness: int) -> None:
    """Give every thread of this process a nice value, and its session where the kernel divides CPUs among sessions.

    Source: sched(7), "The autogroup feature": a session gets its value from its leader.
    """
    for thread in psutil.Process().threads():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread.id, niceness)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # a kernel without autogroups, or another process has just set one
            _OWN_AUTOGROUP.write_text(str(niceness))
