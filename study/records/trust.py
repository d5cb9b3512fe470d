"""Whether a study folder is its user's own: nobody else can have prepared or exchanged what is in it. No engine.

A resume goes on from what it finds: records, checkpoints, a tracking URI; `evaluate` plays a policy. None of that is
unpickled; with this check a stranger's folder is never taken for one's own work.

After unpacking a stranger's files belong to whoever unpacked them. So a study that is started leaves a signature of its
`study.json` and of that file's inode, under a key that is in the user's state folder: a received, copied or changed
folder has none that fits. Where the key cannot be kept, the folder counts as received.
"""

import contextlib
import grp
import hmac
import os
import pwd
import secrets
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from study.errors import RecordError
from study.records.files import sync, write_atomically

_COPY = "Copy the folder and resume the copy with --out."
SIGNATURE = ".made_here"
"""File of a study's folder."""
_KEY_BYTES = 32


def check_own(folder: Path, *, way_out: str = _COPY) -> None:
    """Refuse a folder that others own or may write to, in a place where anybody could exchange it.

    Looks at the folder and every file directly in it, and at every folder above, of the path as given and of where
    symbolic links in it lead. Folders above may belong to others, as a project's do, if not everybody may write there.

    Raises:
        RecordError: Names the first place that is not trusted, and the way out.
    """
    if (place := open_place(folder)) is not None:
        raise _open_to("everybody", "o-w", place)
    _check(folder, folder.stat(), way_out)
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # a draft that another driver has just removed
            if entry.is_symlink():
                _check_owner(Path(entry.path), entry.stat(follow_symlinks=False), way_out)
            if Path(entry.path).exists():
                _check(Path(entry.path), entry.stat(), way_out)


def sign(identity_file: Path) -> None:
    """Leave the signature of a study of this user's beside its identity; where there can be no key, leave none."""
    if (signature := _signature(identity_file)) is not None:
        write_atomically(identity_file.with_name(SIGNATURE), signature)


def is_made_here(identity_file: Path) -> bool:
    """Return whether this user started the study, in this folder and with this identity."""
    try:
        left = identity_file.with_name(SIGNATURE).read_bytes()[:100].decode("ascii", "replace").strip()
    except OSError:
        return False
    expected = _signature(identity_file) if left.isascii() else None
    return expected is not None and hmac.compare_digest(left, expected)


def check_modules(identity_file: Path, own_code: Iterable[str], way_out: str) -> None:
    """Refuse to run a module or a script because a folder from elsewhere names it.

    Raises:
        RecordError: There is something, and the study was not started here.
    """
    named = next(iter(own_code), None)
    if named is not None and not is_made_here(identity_file):
        rule = "a module must not be imported because a folder that was received, moved or copied names it"
        got, fix = repr(named), f"Read that module, then {way_out}."
        raise RecordError(where=str(identity_file.parent), rule=rule, got=got, fix=fix, code="module-of-a-stranger")


def _signature(identity_file: Path) -> str | None:
    """Return what only this user can have written beside this very file; None where there can be no key."""
    try:
        key, content = _key(), identity_file.read_bytes()
        inode = identity_file.stat().st_ino
    except (OSError, RuntimeError):  # no home, or none that can be written
        return None
    return hmac.digest(key, f"{inode}:".encode() + content, "sha256").hex()


def _key() -> bytes:
    """Return the user's key; the first call makes it."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(state) / "runner-scaling-study" / "key"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = file.with_name(f".key.{secrets.token_hex(8)}")
        write_atomically(draft, secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):  # another process was faster: there must be one key
            os.link(draft, file)
        draft.unlink()
        sync(file.parent)
    status = file.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{file} is not this user's alone")
    return file.read_bytes()


def open_place(folder: Path) -> Path | None:
    """Return the folder, or the first one above it, in which everybody may exchange what is there, if there is one."""
    modes = ((place, place.stat().st_mode) for place in (folder, *_above(folder)))
    return next((place for place, mode in modes if mode & stat.S_IWOTH and not mode & stat.S_ISVTX), None)


def group_may_write(status: os.stat_result) -> bool:
    """Return whether others may write to a file or folder since its group is not this user's own."""
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private(status.st_gid)


def _check_owner(place: Path, status: os.stat_result, way_out: str) -> None:
    if status.st_uid != os.getuid():
        rule, got = f"must belong to you (uid {os.getuid()})", f"uid {status.st_uid}"
        raise RecordError(where=str(place), rule=rule, got=got, fix=way_out, code="belongs-to-another-user")


def _check(place: Path, status: os.stat_result, way_out: str) -> None:
    _check_owner(place, status, way_out)
    if status.st_mode & stat.S_IWOTH:
        raise _open_to("everybody", "o-w", place)
    if group_may_write(status):
        raise _open_to("your group", "g-w", place)


def _open_to(whom: str, mode: str, place: Path) -> RecordError:
    fix = f"Run `chmod {mode} {shlex.quote(str(place))}`."
    return RecordError(where=str(place), rule=f"must not be writable by {whom}", fix=fix, code="writable-by-others")


def _is_private(gid: int) -> bool:
    """Return whether a group is this user's own, as many systems give one to each: its name is the user's."""
    try:
        return grp.getgrgid(gid).gr_name == pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a system that does not know them
        return False


def _above(folder: Path) -> Iterator[Path]:
    """Yield every folder above, by the path as given and by the one without links."""
    yield from folder.absolute().parents
    yield from folder.resolve().parents
