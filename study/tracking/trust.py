"""Whether a study folder is its user's own: nobody else can have prepared or exchanged what is in it. No engine.

A resume goes on from what it finds: Optuna's journal, checkpoints beside it, a tracking URI; `evaluate` plays a policy.
None of that is unpickled; the check keeps it so that a stranger's folder is never taken for one's own work.
"""

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from study.errors import RecordError

_COPY = "copy the folder and resume the copy with --out"


def check_own(folder: Path, *, way_out: str = _COPY) -> None:
    """Refuse a folder that others own or may write to, in a place where anybody could exchange it.

    Looks at the folder and every file directly in it, and at every folder above, of the path as given and of where
    symbolic links in it lead. Folders above may belong to others, as a project's do, if not everybody may write there.

    Args:
        folder: What is about to be trusted.
        way_out: What to do about another user's files.

    Raises:
        RecordError: Names the first place that is not trusted, and the way out.
    """
    if (place := open_place(folder)) is not None:
        raise RecordError(f"{place}: must not be writable by everybody. Fix: chmod o-w '{place}'.")
    _check(folder, folder.stat(), way_out)
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):  # a draft that another driver has just removed
            if entry.is_symlink():
                _check_owner(Path(entry.path), entry.stat(follow_symlinks=False), way_out)
            if Path(entry.path).exists():
                _check(Path(entry.path), entry.stat(), way_out)


def open_place(folder: Path) -> Path | None:
    """Return the folder, or the first one above it, in which everybody may exchange what is there, if there is one."""
    modes = ((place, place.stat().st_mode) for place in (folder, *_above(folder)))
    return next((place for place, mode in modes if mode & stat.S_IWOTH and not mode & stat.S_ISVTX), None)


def group_may_write(status: os.stat_result) -> bool:
    """Return whether others may write to a file or folder since its group is not this user's own."""
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private(status.st_gid)


def _check_owner(place: Path, status: os.stat_result, way_out: str) -> None:
    if status.st_uid != os.getuid():
        raise RecordError(f"{place}: must belong to you (uid {os.getuid()}), got uid {status.st_uid}. Fix: {way_out}.")


def _check(place: Path, status: os.stat_result, way_out: str) -> None:
    _check_owner(place, status, way_out)
    if status.st_mode & stat.S_IWOTH:
        raise RecordError(f"{place}: must not be writable by everybody. Fix: chmod o-w '{place}'.")
    if group_may_write(status):
        raise RecordError(f"{place}: must not be writable by your group. Fix: chmod g-w '{place}'.")


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
