"""Reading and writing below a folder that somebody else may have filled: nothing in it leads out of it. No engine.

A study folder can be a stranger's archive. Through a symbolic link in it, a command would write to any file of its
user, or copy any file of theirs into a packed study; a pipe in a file's place would let a command wait for ever.
"""

import contextlib
import errno
import grp
import os
import pwd
import secrets
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from study.errors import RecordError

PRIVATE, SHARED = 0o600, 0o666
"""Modes of new files: for their owner alone, and as the person's umask has it."""
_EDITORS = ".#"
"""How Emacs names the link that it leaves beside a file while somebody edits it; nothing here reads such names."""
_NEVER_SYNCED = (errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of file systems that do not support fsync of a folder."""
_NO_LINK = "must not be a symbolic link"
_WAY_OUT = "Remove it, or put a copy of what it leads to in its place."


def check_plain(folder: Path, *, levels: int = 2) -> None:
    """Refuse a folder that holds anything but files and folders, down to `levels` below it; -1 is any depth.

    The folder itself may be reached through links: the person named it.

    Raises:
        RecordError: Names the first link, pipe, socket or device.
    """
    for entry in _entries(folder):
        _check_entry(entry)
        if levels != 1 and entry.is_dir(follow_symlinks=False):
            check_plain(Path(entry.path), levels=levels - 1)


def check_own(folder: Path, *, way_out: str = "Copy the folder, and go on in the copy.") -> None:
    """Refuse a folder that is another user's, or that others may write to, by its owner and mode and its files'.

    A resume, `sync` and `evaluate` trust what they find there.

    Raises:
        RecordError: Names the first file or folder.
    """
    for place in (folder, *folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # a draft that another process has just removed
            status = place.stat()
            if status.st_uid != os.getuid():
                rule, got = f"must belong to you (uid {os.getuid()})", f"uid {status.st_uid}"
                raise RecordError(where=str(place), rule=rule, got=got, fix=way_out)
            if _others_may_write(status):
                rule, fix = "must not be writable by others", f"Run `chmod go-w {shlex.quote(str(place))}`."
                raise RecordError(where=str(place), rule=rule, fix=fix)


def check_size(file: Path, largest: int) -> None:
    """Refuse a file of more than `largest` bytes; a missing one has none.

    Raises:
        RecordError: It has more.
    """
    size = file.stat().st_size if file.exists() else 0
    if size > largest:
        rule = f"must have at most {largest:,} bytes"
        raise RecordError(where=str(file), rule=rule, got=f"{size:,}", fix="Remove it.")


def below(root: Path, name: str) -> Path:
    """Return `root/name`, which no link on the way leads elsewhere.

    Args:
        root: A folder, by whatever way the person named it.
        name: A relative path.

    Raises:
        RecordError: A part of the path below `root` is a link.
    """
    path = root
    for part in PurePosixPath(name).parts:
        path = path / part
        if path.is_symlink():
            raise RecordError(where=str(path), rule=_NO_LINK, fix=_WAY_OUT)
    return path


def write_below(root: Path, name: str, content: str | bytes) -> Path:
    """Write the file `root/name`, its folders too, and return it; what is there is replaced.

    Raises:
        RecordError: A part of the path below `root` is a link.
        OSError: It cannot be written.
    """
    path = below(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content, mode=SHARED, durable=False)
    return path


def write_atomically(path: Path, content: str | bytes, *, mode: int = PRIVATE, durable: bool = True) -> None:
    """Replace `path` by `content`: a reader, or a kill, sees the old content or the new, never a part.

    A link at `path` is replaced as well, not followed.

    Args:
        path: The file.
        content: What it holds from then on.
        mode: Of the file, before the umask.
        durable: Whether the content, and its name in the folder, must be on the disk before this returns, so that a
            power cut leaves both.

    Raises:
        OSError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync(path: Path) -> None:
    """Put a file, or the names in a folder, on the disk: else a power cut may take a new or renamed file.

    Raises:
        OSError: The disk fails.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NEVER_SYNCED or not path.is_dir():
            raise
    finally:
        os.close(handle)


def _others_may_write(status: os.stat_result) -> bool:
    """Return whether everybody or a group may write; the user's own group, of the same name, does not count."""
    try:
        own_group = grp.getgrgid(status.st_gid).gr_name == pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a system that does not know them
        own_group = False
    return bool(status.st_mode & (stat.S_IWOTH if own_group else stat.S_IWOTH | stat.S_IWGRP))


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith(_EDITORS))
    except (FileNotFoundError, NotADirectoryError):  # none, or a driver has just removed it
        return
    except OSError as error:
        where, rule = str(folder), f"must be readable ({error.strerror})"
        raise RecordError(where=where, rule=rule, fix="Check its permissions.") from error


def _check_entry(entry: "os.DirEntry[str]") -> None:
    if entry.is_symlink():
        raise RecordError(where=entry.path, rule=_NO_LINK, fix=_WAY_OUT)
    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
        return
    with contextlib.suppress(FileNotFoundError):  # a draft that was just renamed
        mode = entry.stat(follow_symlinks=False).st_mode
        kinds = {"a pipe": stat.S_ISFIFO, "a socket": stat.S_ISSOCK}
        kind = next((name for name, is_kind in kinds.items() if is_kind(mode)), "a device")
        raise RecordError(where=entry.path, rule="must be a file or a folder", got=kind, fix="Remove it.")
