"""Who is at work on a study, and whether that process is gone for certain. Reads /proc, asks a scheduler; no engine.

An owner is called gone on proof alone: its process is not there, its machine has started anew, its lock would be felt
here, or the scheduler says that its job is over. Silence is no proof: a process that is stopped, or cut off from the
network, comes back and goes on writing.
"""

import getpass
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import psutil

from study.harmless import mask_credentials
from study.records.shapes import misfit

_LONGEST_COMMAND = 300
"""Characters."""
_SAME_START_S = 2.0
"""The start of a process is reckoned from the boot, and the boot from a clock that may be set."""
_SCHEDULER_TIMEOUT_S = 10.0
_LOCAL = frozenset(
    ("apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")
)
"""File systems that one kernel alone writes to."""
_SHARED: Mapping[str, str] = MappingProxyType(
    {"nfs": "local_lock=none", "nfs4": "local_lock=none", "lustre": "flock", "gpfs": "", "ceph": ""}
)
"""File systems whose locks all hosts feel, if they are mounted with the option; see nfs(5), mount.lustre(8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, named so that a person can find it and a program can tell whether it is gone."""

    host: str
    machine: str
    """Identity of the installed system; the machines of a cluster may share one."""
    boot: str
    """Identity of the running kernel, new at every start; containers have that of their host."""
    namespace: str
    """Where `pid` counts: containers count for themselves."""
    pid: int
    began: float
    """Start of the process, seconds since the epoch."""
    user: str
    since: str
    """When it took the study."""
    command: str
    scheduler: str
    """`slurm` or `oar`; empty outside of a job."""
    cluster: str
    job: str
    restart: int
    """How often the scheduler has started this job again."""
    token: str
    """Random: no other holding has it."""

    @classmethod
    def of_this_process(cls) -> Self:
        """Return this process, as it begins to hold a study."""
        scheduler, cluster, job, restart = _job(os.environ)
        return cls(
            host=socket.gethostname(),
            machine=_read(Path("/etc/machine-id")),
            boot=_read(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname(),
            namespace=_namespace(),
            pid=os.getpid(),
            began=psutil.Process().create_time(),
            user=_user(),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=shlex.join(map(mask_credentials, sys.argv))[:_LONGEST_COMMAND],
            scheduler=scheduler,
            cluster=cluster,
            job=job,
            restart=restart,
            token=secrets.token_hex(8),
        )

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the owner that `to_text` wrote.

        Raises:
            ValueError: It did not write this.
        """
        try:
            content = json.loads(text)
            if (wrong := misfit(cls, content)) is not None:
                raise ValueError(wrong)
            return cls(**content)
        except (AttributeError, TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def to_text(self) -> str:
        """Return JSON, of one line."""
        return json.dumps(asdict(self)) + "\n"

    def __str__(self) -> str:
        job = f", {self.scheduler.upper()} job {self.job}" if self.job else ""
        return f"pid {self.pid} on {self.host} ({self.user}, since {self.since}{job}): {self.command}"


def is_gone(theirs: Owner, mine: Owner, path: Path, *, lock_is_free: bool) -> bool:
    """Return whether a process that held the study is gone for certain.

    Args:
        theirs: What it left behind.
        mine: The process that asks.
        path: A file of the study's folder.
        lock_is_free: Whether the kernel has shown the lock of the study to be free, as it cannot without flock.
    """
    if theirs.boot == mine.boot:
        countable = theirs.namespace == mine.namespace
        if countable and theirs.pid == mine.pid and lock_is_free:
            return True  # this process, which could not remove its name
        return not _runs(theirs) if countable else lock_is_free
    if theirs.host == mine.host and theirs.machine and theirs.machine == mine.machine:
        return True  # this machine has started anew since
    return (lock_is_free and locks_reach_all_hosts(path)) or _job_is_over(theirs, mine)


def locks_reach_all_hosts(path: Path) -> bool:
    """Return whether a lock by flock on a file beside `path` is felt wherever that file can be written.

    NFS can be mounted with locks that only one host knows, Lustre too, and most file systems in user space have no
    others: there a free lock says nothing of other hosts.
    """
    kind, options = _mount_of(path)
    if kind in _LOCAL:
        return True
    needed = _SHARED.get(kind)
    return needed is not None and "nolock" not in options and (not needed or needed in options)


def _mount_of(path: Path) -> tuple[str, list[str]]:
    """Return type and options of the file system that holds `path`; an unknown one has no name."""
    place = path.resolve()
    best, kind, options = -1, "", ""
    for mount in psutil.disk_partitions(all=True):
        point = Path(mount.mountpoint)
        if (point == place or point in place.parents) and len(point.parts) >= best:  # the last one lies on top
            best, kind, options = len(point.parts), mount.fstype, mount.opts
    return kind, options.split(",")


def _runs(owner: Owner) -> bool:
    try:
        return abs(psutil.Process(owner.pid).create_time() - owner.began) < _SAME_START_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


# --- jobs of a scheduler -----------------------------------------------------------------------------------------


def _job(environment: Mapping[str, str]) -> tuple[str, str, str, int]:
    """Return scheduler, cluster, job and restarts of the job that this process belongs to."""
    if job := environment.get("SLURM_JOB_ID"):
        restart = environment.get("SLURM_RESTART_COUNT", "0")
        return "slurm", environment.get("SLURM_CLUSTER_NAME", ""), job, int(restart) if restart.isdigit() else 0
    if job := environment.get("OAR_JOB_ID"):
        return "oar", "", job, 0
    return "", "", "", 0


def _job_is_over(theirs: Owner, mine: Owner) -> bool:
    """Return whether the scheduler that runs this process says that the other one's job is over.

    A job's number means something to its own scheduler alone: so both must belong to a job of the same.
    """
    if not theirs.job or (theirs.scheduler, theirs.cluster) != (mine.scheduler, mine.cluster):
        return False
    if theirs.job == mine.job:
        return mine.restart > theirs.restart
    command, is_over = _SCHEDULERS[theirs.scheduler]
    try:
        answer = subprocess.run(
            [*command, theirs.job], capture_output=True, text=True, timeout=_SCHEDULER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return is_over(answer.returncode, answer.stdout, answer.stderr)


def slurm_says_over(code: int, out: str, err: str) -> bool:
    """Return whether `squeue --noheader --format=%T --jobs N` says that no process of the job is left."""
    if code:
        return "invalid job id" in err.lower()  # forgotten, some minutes after its end
    left = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "RESIZING", "STAGE_OUT"}
    return not left & set(out.split())


def oar_says_over(code: int, out: str, err: str) -> bool:
    """Return whether `oarstat -s -j N`, which prints `N: State`, says that the job is over."""
    return code == 0 and out.rpartition(":")[2].strip() in ("Terminated", "Error")


_SCHEDULERS: Mapping[str, tuple[list[str], Callable[[int, str, str], bool]]] = MappingProxyType(
    {
        "slurm": (["squeue", "--noheader", "--format=%T", "--jobs"], slurm_says_over),
        "oar": (["oarstat", "-s", "-j"], oar_says_over),
    }
)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without this user
        return f"uid {os.getuid()}"
