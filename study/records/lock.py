"""The lock of a study: one driver at a time, on one host or on many, and who it is. Imports no engine.

Two things make the lock. The kernel's (flock on `.lock`) ends with the process that holds it, however that ends; but it
is not felt by other hosts on every file system, and some have none. So `driver.json` says who holds the study, and is
made by one atomic step wherever files are shared; it outlives a killed driver, and the next one takes it over only when
that driver is gone for certain (`study.records.owner`). Should both fail, `RecordLog` still refuses to write behind
another driver.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from study.errors import RecordError
from study.hosts.mounts import mount_of
from study.records.owner import Owner, is_gone

LOCK, OWNER = ".lock", "driver.json"
"""The two files, in the study's folder."""
NAMES = (LOCK, OWNER)
_TRIES = 5
_PAUSE_S = 0.05
"""Between tries: somebody who only looks holds the lock for an instant."""
_HELD = frozenset((errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK))
_UNKNOWN = frozenset((errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP))
"""What file systems without flock answer."""


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


def at_work(folder: Path) -> str:
    """Return who holds a study, or may hold it as far as one can tell from here; empty where nobody does."""
    lock, text = _look(folder / LOCK), None
    with contextlib.suppress(RecordError):
        text = _text(folder / OWNER)
    if lock or text is None:
        return _words(text) if lock else ""
    theirs = _owner(text)
    if theirs is None:
        return ""  # damaged, and nobody holds the lock: the next driver decides
    gone = is_gone(theirs, Owner.of_this_process(), folder / LOCK, lock_is_free=lock is False)
    return "" if gone else str(theirs)


def is_locked(lock: Path) -> bool:
    """Return whether a process holds a lock file by flock, as far as this host feels it."""
    return _look(lock) is True


def _lock(folder: Path) -> tuple[int, bool]:
    """Return the open lock file, and whether the kernel has locked it; False where it cannot."""
    path = folder / LOCK
    for last in [False] * (_TRIES - 1) + [True]:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
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
            if last:
                os.close(handle)
                raise _refusal(folder, _words(_text(folder / OWNER))) from error
        os.close(handle)
        time.sleep(_PAUSE_S)
    raise _refusal(folder, "another driver, which gave the study up just now")


def _look(lock: Path) -> bool | None:
    """Return whether a process holds a lock file; None where the file system has no such locks.

    Asks the kernel's list first, which disturbs nobody; it does not know holders on other machines or in other
    containers, so a shared lock is then tried for an instant.
    """
    try:
        status = lock.stat()
    except OSError:
        return False
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        if any(place in line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line):
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


# --- driver.json -------------------------------------------------------------------------------------------------


def _claim(folder: Path, mine: Owner, *, lock_is_free: bool) -> None:
    """Write `driver.json`, in place of that of a driver that is gone for certain.

    Raises:
        RecordError: The driver that wrote it may be at work.
    """
    path = folder / OWNER
    for _ in range(_TRIES):
        if _create(path, mine.to_text()):
            return
        text = _text(path)
        if text is None:
            continue  # it ended just now
        theirs = _owner(text)
        if theirs is None and not (lock_is_free and mount_of(path).locks_reach_all_hosts):
            raise RecordError(
                f"{path}: must say who works on the study, got {text[:40]!r}. "
                "Fix: make sure that no driver works on it, on any host; then remove the file and try again."
            )
        if theirs is not None and not is_gone(theirs, mine, path, lock_is_free=lock_is_free):
            raise _uncertain(path, theirs, mine)
        _remove(path, text)
    raise _refusal(folder, _words(_text(path)))


def _create(path: Path, text: str) -> bool:
    """Make a file with its content in one step; False when it is there already.

    A hard link is atomic on NFS of every version, and nobody sees a file that is half written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(draft, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError:
        if draft.stat().st_nlink > 1:  # an answer of NFS that was lost on its way
            return True
        return _create_without_links(path, text)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _create_without_links(path: Path, text: str) -> bool:
    try:
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text)
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
    """Return what `driver.json` holds; None when it is not there."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unwritable(path, error) from error


def _owner(text: str) -> Owner | None:
    """Return the driver that a text names; None when it is damaged."""
    try:
        return Owner.of_text(text)
    except ValueError:
        return None


def _words(text: str | None) -> str:
    owner = None if text is None else _owner(text)
    return f"another driver, {owner}" if owner is not None else f"another driver ({OWNER} does not say which)"


# --- messages ----------------------------------------------------------------------------------------------------


def _refusal(folder: Path, who: str) -> RecordError:
    return RecordError(
        f"{folder}: one driver at a time may work on a study, got {who}. "
        "Fix: wait for it or end it, or start your own study with --name."
    )


def _uncertain(path: Path, theirs: Owner, mine: Owner) -> RecordError:
    return RecordError(
        f"{path.parent}: one driver at a time may work on a study, got another driver, {theirs}; from {mine.host} "
        f"nobody can tell whether it is at work. Fix: look there, as by "
        f"`ssh -- {shlex.quote(theirs.host)} ps -fp {theirs.pid}`; "
        f"if it is gone, remove {path} and run the same command again."
    )


def _unwritable(path: Path, error: OSError) -> RecordError:
    return RecordError(
        f"{path}: must be a file of yours that can be written ({error.strerror}). "
        "Fix: free some space, check the permissions of it and its folder, or remove what is in its place."
    )
