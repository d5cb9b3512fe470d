"""The lock of a study: one driver at a time, on one host or on many, and who it is. Imports no engine.

The kernel's lock (flock on `.lock`) ends with the process that holds it, however that ends; but other hosts do not see
it on every file system. So `driver.json` says who holds the study. The next driver replaces that name only where the
other one is gone for certain: its process is not there, its lock would be seen here, or the scheduler says that
its job is over. Silence is no proof; there the person decides, with `--take-over`. Should two
drivers meet all the same, `RecordLog` refuses to write behind another one, so that the records stay whole.
"""

import contextlib
import errno
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
from study.machine.processes import pid_namespace, started_at, still_runs
from study.records.records import Moment, Whole

LOCK, OWNER = ".lock", "driver.json"
"""The two files, in the study's folder."""
_TRIES, _PAUSE_S = 5, 0.05
"""Another process holds the lock for an instant to look."""
_HELD = frozenset((errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK))
_UNKNOWN = frozenset((errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP))
"""What file systems without flock answer."""
_WAIT = "Wait for it or end it, or start your own study with --name."
_LONGEST_COMMAND = 300
"""Characters."""


class Owner(Struct, frozen=True, kw_only=True):
    """A process, named so that a person can find it and a program can tell whether it is gone."""

    host: str
    boot: str
    """Identity of the running kernel, new at every start; containers have that of their host."""
    namespace: str
    """Where `pid` counts: containers count for themselves."""
    pid: Whole
    began: Moment
    """Start of the process, seconds since the epoch."""
    user: str
    since: str
    """When it took the study."""
    command: str
    scheduler: str = ""
    """Of the batch job: `slurm`, `oar`, `pbs` or `kubernetes`; empty outside of one."""
    cluster: str = ""
    job: str = ""
    restart: Whole = 0
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
            namespace=pid_namespace(),
            pid=os.getpid(),
            began=started_at(),
            user=user,
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=shlex.join(map(mask_credentials, sys.argv))[:_LONGEST_COMMAND],
            restart=0 if job is None else job.restarts,
            **of_job,
        )

    def __str__(self) -> str:
        job = f", {self.scheduler.upper()} job {self.job}" if self.job else ""
        return f"pid {self.pid} on {self.host} ({self.user}, since {self.since}{job}): {self.command}"

    def runs_beside(self, other: "Owner") -> bool:
        """Return whether another process sees this one run."""
        is_seen = (self.boot, self.namespace) == (other.boot, other.namespace)
        return is_seen and still_runs(self.pid, self.began)

    def is_gone(self, seen_by: "Owner", path: Path, *, lock_is_free: bool) -> bool:
        """Return whether this process is gone for certain.

        Args:
            seen_by: The process that asks.
            path: A file of the study's folder.
            lock_is_free: Whether the kernel has shown the lock of the study to be free, as it cannot without flock.
        """
        if self.boot == seen_by.boot:
            if self.namespace != seen_by.namespace:
                return lock_is_free
            itself = self.pid == seen_by.pid and lock_is_free  # it could not remove its name
            return itself or not self.runs_beside(seen_by)
        if lock_is_free and mount_of(path).locks_reach_all_hosts:
            return True
        # A job's number means something to its own scheduler alone.
        if not self.job or (self.scheduler, self.cluster) != (seen_by.scheduler, seen_by.cluster):
            return False
        if self.job == seen_by.job:
            return seen_by.restart > self.restart
        job = current_job()
        return job is not None and job.is_over(self.job)


def take(path: Path) -> tuple[int, bool] | None:
    """Make and lock a file, without waiting; return its handle, and whether the kernel has locked it.

    Not locked is a file on a file system without such locks. None: another process holds the lock.

    Raises:
        OSError: The file cannot be opened for writing.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:  # else its study was given up, and others lock a new file of this name
            return handle, True
    except OSError as error:
        if error.errno in _UNKNOWN:
            return handle, False
        if error.errno not in _HELD:
            os.close(handle)
            raise
    os.close(handle)
    return None


@contextlib.contextmanager
def held(folder: Path, *, take_over: bool = False) -> Iterator[Owner]:
    """Hold the study in `folder` for this process.

    Args:
        folder: The study's folder.
        take_over: Whether the person knows that a driver of which this cannot be told is gone.

    Raises:
        RecordError: Another driver holds it, or may hold it; says which one and what to do. Or the folder cannot be
            written.
    """
    try:
        for _ in range(_TRIES):
            if (taken := take(folder / LOCK)) is not None:
                break
            time.sleep(_PAUSE_S)
        else:
            raise _refusal(folder, _WAIT)
    except OSError as error:
        raise _unwritable(folder / LOCK, error) from error
    handle, lock_is_free = taken
    mine, file = Owner.of_this_process(), folder / OWNER
    try:
        try:
            if fix := _may_be_held(folder, mine, lock_is_free=lock_is_free, take_over=take_over):
                raise _refusal(folder, fix)
            written = msgspec.json.encode(mine) + b"\n"
            file.unlink(missing_ok=True)
            with open(
                file, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)
            ) as new:  # one wins, on NFS too
                new.write(written)
        except FileExistsError:
            raise _refusal(folder, _WAIT) from None
        except OSError as error:
            raise _unwritable(file, error) from error
        try:
            yield mine
        finally:
            with contextlib.suppress(OSError):
                if file.read_bytes() == written:
                    file.unlink()
    finally:
        os.close(handle)


def check_free(folder: Path) -> None:
    """Refuse a study whose lock another driver holds; for a refusal in time, since this keeps no lock.

    Raises:
        RecordError: Says which driver; or its name cannot be read.
    """
    for _ in range(_TRIES):
        if not is_locked(folder / LOCK):
            return
        time.sleep(_PAUSE_S)
    raise _refusal(folder, _WAIT)


def at_work(folder: Path) -> str:
    """Return who holds a study, or may hold it as far as one can tell from here; empty where nobody does."""
    locked, name = is_locked(folder / LOCK), _owner(folder)
    if locked or not isinstance(name, Owner):
        return _words(name) if locked else ""  # a damaged name, and nobody holds the lock: the next driver decides
    gone = name.is_gone(Owner.of_this_process(), folder / LOCK, lock_is_free=locked is False)
    return "" if gone else str(name)


def is_locked(lock: Path) -> bool | None:
    """Return whether a process holds a lock file; None where the file system has no such locks."""
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in _HELD else None
    finally:
        os.close(handle)
    return False


def _may_be_held(folder: Path, mine: Owner, *, lock_is_free: bool, take_over: bool) -> str:
    """Return what to do about the driver that `driver.json` names; empty where it is gone for certain, or none is."""
    name = _owner(folder)
    if take_over:  # but not from a process that is seen to run
        seen = isinstance(name, Owner) and name.runs_beside(mine)
        return _WAIT if seen else ""
    if name is None or (isinstance(name, str) and lock_is_free and mount_of(folder / OWNER).locks_reach_all_hosts):
        return ""
    sure = "run the same command again with --take-over."
    if isinstance(name, str):
        return f"Make sure that no driver works on it, on any host; then {sure}"
    if name.is_gone(mine, folder / OWNER, lock_is_free=lock_is_free):
        return ""
    return f"Look there, as by `ssh -- {shlex.quote(name.host)} ps -fp {name.pid}`; if it is gone, {sure}"


def _owner(folder: Path) -> Owner | str | None:
    """Return who holds a study; what `driver.json` holds instead where that is no name, and None where it is absent."""
    try:
        for _ in range(_TRIES):
            raw = (folder / OWNER).read_bytes()
            with contextlib.suppress(ValueError, RecursionError):
                return msgspec.json.decode(raw, type=Owner)
            time.sleep(_PAUSE_S)  # another driver may be writing it
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    return repr(raw[:40])


def _words(name: Owner | str | None) -> str:
    return f"another driver, {name}" if isinstance(name, Owner) else f"another driver ({OWNER} does not say which)"


def _refusal(folder: Path, fix: str) -> RecordError:
    rule, got = "one driver at a time may work on a study", _words(_owner(folder))
    return RecordError(where=str(folder), rule=rule, got=got, fix=fix)


def _unwritable(path: Path, error: OSError) -> RecordError:
    rule = f"must be a file of yours that can be written ({error.strerror})"
    fix = "Free some space, check the permissions of it and its folder, or remove what is in its place."
    return RecordError(where=str(path), rule=rule, fix=fix)
