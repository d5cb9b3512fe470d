"""Whether the folder of studies can be written and locked. Looks at the file system of the driver.

A write is tried for real, in a hidden folder that is removed at once: on network file systems the permissions do not
tell, and a quota shows only then.
"""

import fcntl
import os
import socket
import tempfile
from pathlib import Path

from study.doctor.results import CheckResult, fail, ok, warn
from study.doctor.surroundings import Surroundings
from study.hosts.jobs import current_job
from study.hosts.mounts import mount_of
from study.text import gigabytes

LITTLE_MB, ENOUGH_MB = 100, 1024
"""Free space: records, checkpoints and the database of a small study, and of a large one."""
TRIED_BYTES = 256 * 1024


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists and may be looked at."""
    place = folder.absolute()
    while not os.path.exists(place):  # noqa: PTH110 (Path's own raises where a folder above is closed)
        place = place.parent
    return place


def folder(around: Surroundings) -> CheckResult:
    """Whether a study's folder can be made, written and locked, and outlives a job."""
    place = nearest(around.out)
    where = str(place) if place == around.out.absolute() else f"{place} (where {around.out} would be made)"
    if not place.is_dir():
        return fail(f"{place} is not a folder", "Choose another folder with --out.")
    try:
        _try(place)
    except OSError as error:
        fix = "Choose another folder with --out, or repair this one."
        return fail(f"{where} cannot be written: {error.strerror}", fix)
    return _lost_with_job(place) or ok(f"{where} can be written and locked")


def _try(place: Path) -> None:
    """Write a file below a folder and lock it as a study's driver does, and remove both.

    Raises:
        OSError: That cannot be done. Some network file systems cannot lock, or do nothing.
    """
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place, ignore_cleanup_errors=True) as tried:
        file = Path(tried) / "file"
        with file.open("wb") as mine, file.open("rb") as another:
            mine.write(os.urandom(TRIED_BYTES))
            mine.flush()
            os.fsync(mine.fileno())
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
    raise OSError(0, "locks do not lock there, so that two drivers could corrupt one study")


def _lost_with_job(place: Path) -> CheckResult | None:
    """Return the result when a batch job that starts again on another node would not find its study.

    In Kubernetes that is what lies in the container's own file system: a volume that is claimed follows the pod.
    """
    mount, job = mount_of(place), current_job()
    if mount.is_network or job is None or (job.scheduler == "kubernetes" and mount.kind != "overlay"):
        return None
    return warn(
        f"{place} is on a disk of {socket.gethostname()} ({mount.kind or 'unknown'}), and this is a batch job: when it "
        "is requeued on another node, the study is not there",
        "Choose a folder on shared storage with --out.",
    )


def free_space(around: Surroundings) -> CheckResult:
    """Whether there is room for records."""
    place = nearest(around.out)
    status = os.statvfs(place)
    if status.f_files and not status.f_favail:
        return fail(f"no more files can be made on the file system of {place} (inodes)", "Remove some files.")
    free_mb = status.f_bavail * status.f_frsize // 2**20
    found = f"{gigabytes(free_mb)} are free for {place}"
    if free_mb < LITTLE_MB:
        return fail(found, "Free some space: a study whose records cannot be written stops.")
    return warn(found, "Free some space, or choose another --out.") if free_mb < ENOUGH_MB else ok(found)
