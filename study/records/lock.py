"""The lock of a study: one driver at a time, on one host or on many, and who it is. Imports no engine.

Two things make the lock. The kernel's lock (flock on `.lock`) ends with the process that holds it, however that ends;
but other hosts do not see it on every file system, and some file systems have none. So `driver.json` says who holds the
study. One atomic step makes it, wherever files are shared. It outlives a killed driver, and the next driver replaces it
only when the other one is gone for certain: its process is not there, its machine has started anew, its lock would be
seen here, or the scheduler says that its job is over. Silence is no proof: a process that is stopped, or cut off from
the network, comes back and goes on writing. Should all this fail, `RecordLog` still refuses to write behind another
driver.
"""

import contextlib
import errno
import fcntl
import getpass
import json
import os
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from study.errors import RecordError
from study.harmless import mask_credentials
from study.machine.host import boot_id, is_locked_by_kernel, machine_id, mount_of
from study.machine.jobs import current_job
from study.machine.processes import pid_namespace, started_at, still_runs
from study.records.shapes import Whole, read

LOCK, OWNER = ".lock", "driver.json"
"""The two files, in the study's folder."""
_TRIES = 5
_PAUSE_S = 0.05
"""Between tries: another process holds the lock for an instant to look, or is writing its name."""
_HELD = frozenset((errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK))
_UNKNOWN = frozenset((errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP))
"""What file systems without flock answer."""
_LONGEST_COMMAND = 300
"""Characters."""


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
    pid: Whole
    began: float
    """Start of the process, seconds since the epoch."""
    user: str
    since: str
    """When it took the study."""
    command: str
    scheduler: str
    """Of the batch job: `slurm`, `oar`, `pbs` or `kubernetes`; empty outside of one."""
    cluster: str
    job: str
    restart: Whole
    """How often the scheduler has started this job again."""
    token: str
    """Random: each time that a study is held has its own."""

    @classmethod
    def of_this_process(cls) -> Self:
        """Return this process, as it begins to hold a study."""
        job = current_job()
        return cls(
            host=socket.gethostname(),
            machine=machine_id(),
            boot=boot_id(),
            namespace=pid_namespace(),
            pid=os.getpid(),
            began=started_at(),
            user=_user(),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=shlex.join(map(mask_credentials, sys.argv))[:_LONGEST_COMMAND],
            scheduler=job.scheduler if job is not None else "",
            cluster=job.cluster if job is not None else "",
            job=job.id if job is not None else "",
            restart=job.restarts if job is not None else 0,
            token=secrets.token_hex(8),
        )

    @classmethod
    def of_text(cls, text: str) -> Self | None:
        """Return the owner that `to_text` wrote; None for anything else."""
        try:
            return read(cls, json.loads(text))
        except (AttributeError, TypeError, ValueError, RecursionError):
            return None

    def to_text(self) -> str:
        """Return JSON, of one line."""
        return json.dumps(asdict(self)) + "\n"

    def __str__(self) -> str:
        job = f", {self.scheduler.upper()} job {self.job}" if self.job else ""
        return f"pid {self.pid} on {self.host} ({self.user}, since {self.since}{job}): {self.command}"

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
            return itself or not still_runs(self.pid, self.began)
        if self.host == seen_by.host and self.machine and self.machine == seen_by.machine:
            return True  # this machine has started anew since
        return (lock_is_free and mount_of(path).locks_reach_all_hosts) or self._job_is_over(seen_by)

    def _job_is_over(self, seen_by: "Owner") -> bool:
        """Return whether the scheduler that runs the other process says that this one's job is over.

        A job's number means something to its own scheduler alone: so both must belong to a job of the same.
        """
        if not self.job or (self.scheduler, self.cluster) != (seen_by.scheduler, seen_by.cluster):
            return False
        if self.job == seen_by.job:
            return seen_by.restart > self.restart
        job = current_job()
        return job is not None and job.is_over(self.job)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without this user
        return f"uid {os.getuid()}"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Owner]:
    """Hold the study in `folder` for this process.

    Raises:
        RecordError: Another driver holds it, or may hold it; says which one and what to do. Or the folder cannot be
            written.
    """
    try:
        handle, is_locked_here = _lock(folder)
    except OSError as error:
        raise _unwritable(folder / LOCK, error) from error
    try:
        mine = Owner.of_this_process()
        try:
            _claim(folder, mine, lock_is_free=is_locked_here)
        except OSError as error:
            raise _unwritable(folder / OWNER, error) from error
        try:
            yield mine
        finally:
            with contextlib.suppress(OSError):
                if _text(folder / OWNER) == mine.to_text():
                    (folder / OWNER).unlink()
    finally:
        os.close(handle)


def check_free(folder: Path) -> None:
    """Refuse a study whose lock another driver holds; for a refusal in time, since this takes no lock.

    Raises:
        RecordError: Says which driver; or its name cannot be read.
    """
    for _ in range(_TRIES):
        if not is_locked(folder / LOCK):
            return
        time.sleep(_PAUSE_S)
    try:
        who = _words(_text(folder / OWNER))
    except OSError as error:
        raise _unwritable(folder / OWNER, error) from error
    raise _refusal(folder, who)


def at_work(folder: Path) -> str:
    """Return who holds a study, or may hold it as far as one can tell from here; empty where nobody does."""
    locked, text = is_locked(folder / LOCK), None
    with contextlib.suppress(OSError):
        text = _text(folder / OWNER)
    if locked or text is None:
        return _words(text) if locked else ""
    theirs = Owner.of_text(text)
    if theirs is None:
        return ""  # damaged, and nobody holds the lock: the next driver decides
    gone = theirs.is_gone(Owner.of_this_process(), folder / LOCK, lock_is_free=locked is False)
    return "" if gone else str(theirs)


def _lock(folder: Path) -> tuple[int, bool]:
    """Return the open lock file, and whether the kernel has locked it; False where it cannot."""
    for _ in range(_TRIES):
        if (taken := take(folder / LOCK)) is not None:
            return taken
        time.sleep(_PAUSE_S)
    raise _refusal(folder, _words(_text(folder / OWNER)))


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


def is_locked(lock: Path) -> bool | None:
    """Return whether a process holds a lock file; None where the file system has no such locks.

    Asks the kernel's list first, which disturbs nobody; it does not know holders on other machines or in other
    containers, so a shared lock is then tried for an instant.
    """
    if is_locked_by_kernel(lock):
        return True
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


def _claim(folder: Path, mine: Owner, *, lock_is_free: bool) -> None:
    """Write `driver.json`, in place of that of a driver that is gone for certain.

    Raises:
        RecordError: The driver that wrote it may be at work.
    """
    path = folder / OWNER
    for last in [False] * (_TRIES - 1) + [True]:
        if _create(path, mine.to_text()):
            return
        text = _text(path)
        if text is None:
            continue  # it ended just now
        theirs = Owner.of_text(text)
        if theirs is None:
            if not last:
                time.sleep(_PAUSE_S)  # another driver may be writing it
                continue
            if not (lock_is_free and mount_of(path).locks_reach_all_hosts):
                rule = "must say who works on the study"
                fix = "Make sure that no driver works on it, on any host; then remove the file and try again."
                raise RecordError(where=str(path), rule=rule, got=repr(text[:40]), fix=fix)
        elif not theirs.is_gone(mine, path, lock_is_free=lock_is_free):
            raise _uncertain(path, theirs, mine)
        _remove(path, text)
    if not _create(path, mine.to_text()):
        raise _refusal(folder, _words(_text(path)))


def _create(path: Path, text: str) -> bool:
    """Make a file with this content; False when it is there already. Making it is atomic on NFS too."""
    try:
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                path.unlink()
                raise
    except FileExistsError:
        return False
    return True


def _remove(path: Path, text: str) -> None:
    """Remove the file of a driver that is gone; not that of one who has taken its place meanwhile."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    if _text(aside) != text:
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    aside.unlink()


def _text(path: Path) -> str | None:
    """Return what `driver.json` holds; None when it is not there.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None


def _words(text: str | None) -> str:
    owner = None if text is None else Owner.of_text(text)
    return f"another driver, {owner}" if owner is not None else f"another driver ({OWNER} does not say which)"


def _refusal(folder: Path, who: str) -> RecordError:
    fix = "Wait for it or end it, or start your own study with --name."
    return RecordError(where=str(folder), rule="one driver at a time may work on a study", got=who, fix=fix)


def _uncertain(path: Path, theirs: Owner, mine: Owner) -> RecordError:
    look = f"`ssh -- {shlex.quote(theirs.host)} ps -fp {theirs.pid}`"
    where, got = str(path.parent), f"another driver, {theirs}; whether it is at work cannot be told from {mine.host}"
    fix = f"Look there, as by {look}; if it is gone, remove {path} and run the same command again."
    return RecordError(where=where, rule="one driver at a time may work on a study", got=got, fix=fix)


def _unwritable(path: Path, error: OSError) -> RecordError:
    rule = f"must be a file of yours that can be written ({error.strerror})"
    fix = "Free some space, check the permissions of it and its folder, or remove what is in its place."
    return RecordError(where=str(path), rule=rule, fix=fix)
