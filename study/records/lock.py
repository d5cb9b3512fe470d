"""The lock of a study: one driver at a time, on one host or on many, and who it is.

The kernel's lock (flock on `.lock`) ends with the process that holds it, however that ends; but other hosts do not see
it on every file system. So `driver.json` says who holds the study. The next driver replaces that name only where the
other one is gone for certain: its lock would be seen here, or the scheduler says that its job is over. Silence is no
proof; there the person decides, with `--take-over`. Should two drivers meet all the same, `RecordLog` refuses to write
behind another one, so that the records stay whole.
"""

import contextlib
import fcntl
import getpass
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
from study.machine.processes import started_at, still_runs

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
    """Start of the process, seconds since the epoch."""
    user: str
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
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container without this user
            user = f"uid {os.getuid()}"
        job = current_job()
        of_job = {} if job is None else {"scheduler": job.scheduler, "cluster": job.cluster, "job": job.id}
        return cls(
            host=socket.gethostname(),
            boot=boot_id(),
            pid=os.getpid(),
            began=started_at(),
            user=user,
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=shlex.join(map(mask_credentials, sys.argv))[:300],
            restart=0 if job is None else job.restarts,
            **of_job,
        )

    def __str__(self) -> str:
        job = f", {self.scheduler.upper()} job {self.job}" if self.job else ""
        return f"pid {self.pid} on {self.host} ({self.user}, since {self.since}{job}): {self.command}"

    def is_gone(self, path: Path, *, is_free: bool) -> bool:
        """Return whether this driver is gone for certain, as far as this process can tell.

        Args:
            path: A file of the study's folder.
            is_free: Whether the kernel has shown the lock to be free, as it cannot without flock.
        """
        if self.boot == boot_id():
            here, itself = self.host == socket.gethostname(), self.pid == os.getpid()  # else in another container
            return (here and not still_runs(self.pid, self.began)) or (is_free and (itself or not here))
        if is_free and mount_of(path).locks_reach_all_hosts:
            return True
        # A job's number means something to its own scheduler alone.
        job = current_job()
        if job is None or not self.job or (self.scheduler, self.cluster) != (job.scheduler, job.cluster):
            return False
        return job.restarts > self.restart if self.job == job.id else job.is_over(self.job)


def take(path: Path) -> tuple[int, bool] | None:
    """Make and lock a file; return its handle, and whether the kernel has locked it: some file systems have no locks.

    None: another process holds the lock, and not for an instant.

    Raises:
        OSError: The file cannot be opened for writing.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
    for _ in range(_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError:
            return handle, False
        else:
            if os.fstat(handle).st_nlink:  # else its study was given up, and others lock a new file of this name
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
                raise _refusal(folder)
            stack.callback(os.close, taken[0])
            owner, is_free = _owner(folder), taken[1]
            if owner is not None and not owner.is_gone(file, is_free=is_free):
                is_seen = owner.boot == boot_id()  # and runs: nobody is wrong about that
                if is_seen or not take_over:
                    raise _refusal(folder)
            file.unlink(missing_ok=True)
            with open(file, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as new:  # on NFS, one wins
                new.write(written)
        except FileExistsError:
            raise _refusal(folder) from None
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
    is_free: bool | None = True  # None: the file system has no locks
    with contextlib.suppress(OSError):
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            is_free = False
        except OSError:
            is_free = None
        finally:
            os.close(handle)
    owner = _owner(folder)
    if is_free is False:
        return str(owner or "a driver that is about to begin")
    return "" if owner is None or owner.is_gone(folder / LOCK, is_free=is_free is True) else str(owner)


def _owner(folder: Path) -> Owner | None:
    """Return who holds a study; somebody unknown where `driver.json` is damaged, and None where it is absent."""
    for _ in range(_TRIES):
        try:
            return msgspec.json.decode((folder / OWNER).read_bytes(), type=Owner)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            time.sleep(_PAUSE_S)  # another driver may be writing it
    return Owner(host="an unknown host", boot="", pid=0, began=0, user="?", since="?", command=f"{OWNER} is damaged")


def _refusal(folder: Path) -> RecordError:
    owner = _owner(folder)
    look = f" (there: ps -fp {owner.pid})" if owner is not None and owner.pid else ""
    fix = (
        f"Wait for it or end it{look}, or start your own study with --name. If it is gone, run the same command again "
        "with --take-over."
    )
    rule, got = "one driver at a time may work on a study", f"another driver, {owner or 'which is about to begin'}"
    return RecordError(where=str(folder), rule=rule, got=got, fix=fix)
