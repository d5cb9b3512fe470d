"""The lock of a study: one driver at a time, on one host or on many, and who it is.

The kernel's lock (flock on `.lock`) ends with the process that holds it, however that ends; but other hosts do not see
it on every file system. So `driver.json` says who holds the study. The next driver replaces that name only where the
other one is gone for certain: its lock would be seen here, or the scheduler says that its job is over. Silence is no
proof; there the person decides, with `--take-over`. Should two drivers meet all the same, `RecordLog` refuses to write
behind another one, so that the records stay whole.
"""

import contextlib
import fcntl
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from study.errors import RecordError
from study.harmless import mask_credentials
from study.machine.host import boot_id, mount_of
from study.machine.jobs import current_job

LOCK, OWNER = ".lock", "driver.json"
"""The two files, in the study's folder."""
_TRIES, _PAUSE_S = 5, 0.05
"""Another process holds the lock for an instant to look, or is about to write its name."""


class Owner(Struct, frozen=True, kw_only=True):
    """A driver, named so that a person can find it and a program can tell whether it is gone."""

    host: str
    boot: str
    """Identity of the running kernel, new at every start; containers have that of their host."""
    pid: int
    began: float
    """Start of the process in the kernel's ticks since the boot, which no change of the clock moves."""
    since: str
    """When it took the study."""
    command: str
    scheduler: str = ""
    """Of the batch job: `slurm`, `oar`, `pbs` or `kubernetes`; empty outside of one."""
    cluster: str = ""
    job: str = ""
    restart: int = 0
    """How often the scheduler has started this job again."""

    @classmethod
    def of_this_process(cls) -> "Owner":
        """Return this process, as it begins to hold a study."""
        job, pid = current_job(), os.getpid()
        return cls(
            host=socket.gethostname(),
            boot=boot_id(),
            pid=pid,
            began=_start_of(pid),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=shlex.join(map(mask_credentials, sys.argv))[:300],
            scheduler=job.scheduler if job else "",
            cluster=job.cluster if job else "",
            job=job.id if job else "",
            restart=job.restarts if job else 0,
        )

    def __str__(self) -> str:
        job = f", {self.scheduler.upper()} job {self.job}" if self.job else ""
        return f"pid {self.pid} on {self.host} (since {self.since}{job}): {self.command}"

    def is_gone(self, folder: Path, *, is_free: bool) -> bool:
        """Return whether this driver is gone for certain, as far as this process can tell.

        Args:
            folder: The study's.
            is_free: Whether the kernel has shown the lock to be free, as it cannot without flock.
        """
        if self.boot == boot_id():
            here = self.host == socket.gethostname()  # else in another container, with numbers of its own
            return is_free or (here and _start_of(self.pid) != self.began)
        if is_free and mount_of(folder).locks_reach_all_hosts:
            return True
        # A job's number means something to its own scheduler alone.
        job = current_job()
        if job is None or not self.job or (self.scheduler, self.cluster) != (job.scheduler, job.cluster):
            return False
        return job.restarts > self.restart if self.job == job.id else job.is_over(self.job)


def _start_of(pid: int) -> float:
    """Return the start of a process as `Owner.began` has it; -1 where there is none. Source: proc_pid_stat(5)."""
    try:
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return -1.0


def take(path: Path, *, looking: bool = False) -> tuple[int, bool] | None:
    """Lock a file; return its handle, and whether the kernel has locked it: some file systems have no locks.

    None: another process holds the lock, and not for an instant.

    Args:
        path: The file, which is made unless one only looks.
        looking: Share the lock, so that others who look are not in the way.

    Raises:
        OSError: The file cannot be opened.
    """
    access = os.O_RDONLY if looking else os.O_RDWR | os.O_CREAT
    handle = os.open(path, access | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
    for _ in range(1 if looking else _TRIES):
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if looking else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0 if looking else _PAUSE_S)
        except OSError:
            return handle, False
        else:
            if looking or os.fstat(handle).st_nlink:  # else its study was given up: others lock a file of this name
                return handle, True
            break
    os.close(handle)
    return None


@contextlib.contextmanager
def held(folder: Path, *, take_over: bool = False) -> Iterator[None]:
    """Hold the study in `folder` for this process.

    Args:
        folder: The study's folder.
        take_over: Whether the person knows that a driver of which this cannot be told is gone.

    Raises:
        RecordError: Another driver holds it, or may hold it; says which one and what to do. Or the folder cannot be
            written.
    """
    file, written = folder / OWNER, msgspec.json.encode(Owner.of_this_process()) + b"\n"
    with contextlib.ExitStack() as stack:
        try:
            if (taken := take(folder / LOCK)) is None:
                raise FileExistsError
            stack.callback(os.close, taken[0])
            owner = _owner(folder)
            runs = owner is not None and not owner.is_gone(folder, is_free=taken[1])
            # Of one that runs here nobody is wrong.
            if owner is not None and runs and (owner.boot == boot_id() or not take_over):
                raise FileExistsError
            file.unlink(missing_ok=True)
            with open(file, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as new:  # on NFS, one wins
                new.write(written)
        except FileExistsError:
            owner, rule = _owner(folder), "one driver at a time may work on a study"
            look = f" (there: ps -fp {owner.pid})" if owner is not None and owner.pid else ""
            fix = (
                f"Wait for it or end it{look}, or start your own study with --name. If it is gone, run the same "
                "command again with --take-over."
            )
            got = f"another driver, {owner or 'which is about to begin'}"
            raise RecordError(where=str(folder), rule=rule, got=got, fix=fix) from None
        except OSError as error:
            rule = f"must be a file of yours that can be written ({error.strerror})"
            fix = "Free some space, check the permissions of it and its folder, or remove what is in its place."
            raise RecordError(where=str(error.filename or file), rule=rule, fix=fix) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if file.read_bytes() == written:
                    file.unlink()


def at_work(folder: Path) -> str:
    """Return who holds a study, or may hold it as far as one can tell from here; empty where nobody does."""
    is_free, owner = True, _owner(folder)
    with contextlib.suppress(OSError):  # there is no lock, or one that may not be read
        if (taken := take(folder / LOCK, looking=True)) is None:
            return str(owner or "a driver that is about to begin")
        os.close(taken[0])
        is_free = taken[1]
    return "" if owner is None or owner.is_gone(folder, is_free=is_free) else str(owner)


def _owner(folder: Path) -> Owner | None:
    """Return who holds a study; somebody unknown where `driver.json` is damaged, and None where it is absent."""
    for _ in range(_TRIES):
        try:
            return msgspec.json.decode((folder / OWNER).read_bytes(), type=Owner)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            time.sleep(_PAUSE_S)  # another driver may be writing it
    return Owner(host="an unknown host", boot="", pid=0, began=0, since="?", command=f"{OWNER} is damaged")
