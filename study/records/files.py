"""Files of a study folder, which may be somebody else's: what may be in it, how files are written, and who works there.

One driver at a time works on a study: it holds the kernel's lock (flock) on `.lock`, which ends with it; the file says
who it is. Where a file system shows no locks to other hosts, `RecordLog` refuses to write behind another driver.
"""

import contextlib
import fcntl
import os
import secrets
import shlex
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from study.errors import RecordError
from study.machine.host import current_job
from study.text import mask_credentials

DRAFT = ".draft"
"""How the names of files end that are being written; a kill leaves them."""
LOCK = ".lock"
_TRIES, _PAUSE_S = 5, 0.05
"""Another process holds the lock for an instant to look."""

# --- what may be in a folder, and how files are written ---------------------------------------------------------------


def check_plain(folder: Path) -> None:
    """Refuse a folder with anything but files and folders in it, at any depth; links may lead to the folder itself.

    Through a link in a stranger's folder a command would read or write any file of its user; a pipe lets it wait.
    """
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):  # a draft that was just renamed
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or path.name.startswith(".#")):  # Emacs' mark
                    got = "a symbolic link" if stat.S_ISLNK(mode) else "a pipe, a socket or a device"
                    fix = "Remove it, or put a copy of what it leads to in its place."
                    raise RecordError(where=str(path), rule="must be a file or a folder", got=got, fix=fix)


def check_own(folder: Path, *, way_out: str = "Copy the folder, and go on in the copy.") -> None:
    """Refuse a folder to be trusted that is another user's, or that others may write to, and such files in it.

    The user's own group, of the same number, is not others.
    """
    for place in (folder, *folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # a draft that another process has just removed
            status = place.stat()
            if status.st_uid != os.getuid():
                rule, got = f"must belong to you (uid {os.getuid()})", f"uid {status.st_uid}"
                raise RecordError(where=str(place), rule=rule, got=got, fix=way_out)
            others = stat.S_IWOTH if status.st_gid == os.getuid() else stat.S_IWOTH | stat.S_IWGRP
            if status.st_mode & others:
                fix = f"Run `chmod go-w {shlex.quote(str(place))}`."
                raise RecordError(where=str(place), rule="must not be writable by others", fix=fix)


@contextlib.contextmanager
def usable(place: Path, rule: str, fix: str) -> Iterator[None]:
    """Turn an error of the file system into one that says what must hold, such as `must be writable`."""
    try:
        yield
    except OSError as error:
        raise RecordError(where=str(place), rule=f"must be {rule} ({error.strerror})", fix=fix) from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path`, not what a link there leads to, for its owner alone: after any kill it is the old or the new."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}{DRAFT}")
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk: else a power cut may take a new or renamed file."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # of folders, some file systems know no fsync
            raise
    finally:
        os.close(handle)


# --- who works on a study ---------------------------------------------------------------------------------------------


def take(path: Path) -> int | None:
    """Lock a file, which is made, and return its handle; None where another process holds it, if locks work there."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, 0o600)
    for _ in range(_TRIES):
        if not _is_held(handle, fcntl.LOCK_EX):
            return handle
        time.sleep(_PAUSE_S)
    os.close(handle)
    return None


def _is_held(handle: int, kind: int) -> bool:
    """Try to lock an open file; return whether another process holds it."""
    with contextlib.suppress(OSError):  # there are no locks here
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def held(folder: Path, *, take_over: bool = False) -> Iterator[None]:
    """Hold the study in `folder` for this process; where another driver does, a `RecordError` says which.

    Where it is to `take_over`, the person knows that a driver of another host, whose lock a file server keeps, is gone.
    """
    file, job, here = folder / LOCK, current_job(), f" on {socket.gethostname()} ("
    batch = f", {job.scheduler.upper()} job {job.id}" if job else ""
    command = shlex.join(map(mask_credentials, sys.argv))[:300]
    fix = "Free some space, check the permissions of it and its folder, or remove what is in its place."
    with usable(file, "a file of yours that can be written", fix):
        if (handle := take(file)) is None and take_over and here not in _holder(folder):
            file.unlink()  # the lock on it counts no more
            handle = take(file)
        if handle is not None:
            os.truncate(handle, 0)
            os.pwrite(handle, f"pid {os.getpid()}{here}since {time.ctime()}{batch}): {command}".encode(), 0)
    if handle is None:
        rule, got = "one driver at a time may work on a study", f"another driver, {_holder(folder)}"
        fix = "Wait for it or end it, or start your own study with --name. If its host is gone, add --take-over."
        raise RecordError(where=str(folder), rule=rule, got=got, fix=fix)
    try:
        yield
    finally:
        os.close(handle)


def at_work(folder: Path) -> str:
    """Return who holds a study; empty where nobody does, as far as the file system shows the locks of other hosts."""
    with contextlib.suppress(OSError):  # there is no lock, or one that may not be read
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            return _holder(folder) if _is_held(handle, fcntl.LOCK_SH) else ""  # others who look are not in the way
        finally:
            os.close(handle)
    return ""


def _holder(folder: Path) -> str:
    """Return what the last driver that held a study has said of itself."""
    with contextlib.suppress(OSError):
        return (folder / LOCK).read_text(errors="replace") or "which is about to begin"
    return "of another user"
