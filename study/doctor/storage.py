"""Whether the folder of studies can be written, locked and trusted. Looks at the file system of the driver.

A write is tried for real, in a hidden folder that is removed at once: permissions lie on network file systems, and a
quota speaks up only then.
"""

import contextlib
import fcntl
import os
import shlex
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from study.doctor.finding import Check, Verdict, fail, ok, warn
from study.doctor.limits import is_network
from study.doctor.surroundings import Surroundings
from study.hosts.probe import MB, filesystem_of
from study.records.trust import group_may_write, open_place

LITTLE_MB, ENOUGH_MB = 100, 1024
"""Free space: records, checkpoints and the database of a small study, and of a large one."""
TRIED_BYTES = 256 * 1024
JOB_VARIABLES = ("SLURM_JOB_ID", "OAR_JOB_ID", "PBS_JOBID")


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return place


def writable(around: Surroundings) -> Verdict:
    """Whether a study's folder can be made, written and locked."""
    place = nearest(around.out)
    where = str(place) if place == around.out.absolute() else f"{place} (where {around.out} would be made)"
    if not place.is_dir():
        return fail(f"{place} is not a folder", "Choose another folder with --out.")
    try:
        with _tried(place) as folder:
            _write(folder / "content")
            _lock(folder / "lock")
    except OSError as error:
        return fail(
            f"{where} cannot be written: {error.strerror}", "Choose another folder with --out, or mend this one."
        )
    return ok(f"{where} can be written and locked")


@contextlib.contextmanager
def _tried(place: Path) -> Iterator[Path]:
    """Make a folder for a moment."""
    folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(file: Path) -> None:
    with file.open("wb") as opened:
        opened.write(os.urandom(TRIED_BYTES))
        opened.flush()
        os.fsync(opened.fileno())


def _lock(file: Path) -> None:
    """Lock a file as a study's driver does; some network file systems cannot, or do nothing."""
    with file.open("w") as mine, file.open("w") as another:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        raise OSError(0, "locks do not lock there, so that two drivers could corrupt one study")


def shared(around: Surroundings) -> Verdict:
    """Whether the folder is on a network file system, and whether it should be."""
    place = nearest(around.out)
    kind = filesystem_of(place)
    job = next((name for name in JOB_VARIABLES if name in os.environ), None)
    if is_network(kind):
        return ok(f"{place} is on {kind}, seen by other machines; records and locks are made for that")
    if job is not None:
        return warn(
            f"{place} is on a disk of {socket.gethostname()} ({kind or 'unknown'}), and this is a batch job: when it "
            "is requeued on another node, the study is not there",
            "Choose a folder on shared storage with --out.",
        )
    return ok(f"{place} is on a disk of this machine ({kind or 'unknown'})")


def free_space(around: Surroundings) -> Verdict:
    """Whether records will find room."""
    place = nearest(around.out)
    status = os.statvfs(place)
    free_mb = status.f_bavail * status.f_frsize // MB
    found = f"{free_mb / 1024:.1f} GB are free for {place}"
    if status.f_files and not status.f_favail:
        return fail(f"no more files can be made on the file system of {place} (inodes)", "Remove some files.")
    if free_mb < LITTLE_MB:
        return fail(found, "Free some space: a study whose records cannot be written stops.")
    return warn(found, "Free some space, or choose another --out.") if free_mb < ENOUGH_MB else ok(found)


def trusted(around: Surroundings) -> Verdict:
    """Whether others could put a study there that you would resume."""
    place = nearest(around.out)
    status = place.stat()
    if (exposed := open_place(place)) is not None:
        return warn(
            f"everybody may write to {exposed}: a study below it could be exchanged, and is not resumed",
            f"chmod o-w {shlex.quote(str(exposed))}.",
        )
    if group_may_write(status) and not status.st_mode & stat.S_ISVTX:
        return warn(
            f"its group may write to {place}: a study that you resume from there could be somebody else's",
            f"chmod g-w {shlex.quote(str(place))}.",
        )
    return ok(f"nobody else may replace what is in {place}")


CHECKS = (
    Check("storage", "writable", writable),
    Check("storage", "shared", shared),
    Check("storage", "free space", free_space),
    Check("storage", "trusted", trusted),
)
