"""Files of a study folder, which may be somebody else's: what may be in it, and how files are written.

Through a symbolic link in a stranger's folder, a command would write to any file of its user, or copy any file of
theirs into a packed study; a pipe in a file's place would let a command wait for ever. So nothing but files and folders
may be in it, and a resume trusts it only where it is the user's own.
"""

import contextlib
import grp
import os
import pwd
import secrets
import shlex
import stat
from pathlib import Path, PurePosixPath

from study.errors import RecordError

DRAFT = ".draft"
"""How the names of files end that are being written; a kill leaves them."""
_WAY_OUT = "Remove it, or put a copy of what it leads to in its place."


def check_plain(folder: Path) -> None:
    """Refuse a folder that holds anything but files and folders, at any depth; it may itself be reached through links.

    Raises:
        RecordError: Names the first link, pipe, socket or device.
    """
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):  # a draft that was just renamed
                mode = path.lstat().st_mode
                if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or path.name.startswith(".#"):  # Emacs' mark of an editor
                    continue
                got = "a symbolic link" if stat.S_ISLNK(mode) else "a pipe, a socket or a device"
                raise RecordError(where=str(path), rule="must be a file or a folder", got=got, fix=_WAY_OUT)


def check_own(folder: Path, *, way_out: str = "Copy the folder, and go on in the copy.") -> None:
    """Refuse a folder that is another user's, or that others may write to, by its owner and mode and its files'.

    A resume, `sync` and `evaluate` trust what they find there. The user's own group, of the same name, is not others.

    Raises:
        RecordError: Names the first file or folder.
    """
    for place in (folder, *folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # a draft that another process has just removed
            status, others = place.stat(), stat.S_IWOTH | stat.S_IWGRP
            if status.st_uid != os.getuid():
                rule, got = f"must belong to you (uid {os.getuid()})", f"uid {status.st_uid}"
                raise RecordError(where=str(place), rule=rule, got=got, fix=way_out)
            with contextlib.suppress(KeyError):  # a system that does not know the user or the group
                if grp.getgrgid(status.st_gid).gr_name == pwd.getpwuid(os.getuid()).pw_name:
                    others = stat.S_IWOTH
            if status.st_mode & others:
                fix = f"Run `chmod go-w {shlex.quote(str(place))}`."
                raise RecordError(where=str(place), rule="must not be writable by others", fix=fix)


def below(root: Path, name: str) -> Path:
    """Return `root/name`, which no link on the way leads elsewhere; `root` itself may be reached through links.

    Raises:
        RecordError: A part of the path below `root` is a link.
    """
    path = root
    for part in PurePosixPath(name).parts:
        path = path / part
        if path.is_symlink():
            raise RecordError(where=str(path), rule="must not be a symbolic link", fix=_WAY_OUT)
    return path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path`, not what a link there leads to, for its owner alone: after any kill it is the old or the new.

    Raises:
        OSError: It cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}{DRAFT}")
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
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
    """Put a file, or the names in a folder, on the disk: else a power cut may take a new or renamed file.

    Raises:
        OSError: The disk fails.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # of folders, some file systems know no fsync
            raise
    finally:
        os.close(handle)
