"""Whether a study's results can be kept: its folder, which is tried, and MLflow, which is asked a real question.

On network file systems the permissions do not tell, and a quota shows only in a write: one is tried, in a hidden folder
that is removed at once. Nothing is written to MLflow: a server is asked as a client asks; of a database only the tables
are looked at, since MLflow's own client would make or change them. Imports MLflow inside functions.
"""

import fcntl
import logging
import os
import socket
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from study.doctor.results import CheckResult, Surroundings, fail, ok, warn
from study.harmless import mask_credentials
from study.hosts.jobs import current_job
from study.hosts.mounts import mount_of
from study.mirrors.tracking_uri import ask_mlflow, check_tracking_uri, sqlite_path
from study.mlflow_private import schemas
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


# --- MLflow ----------------------------------------------------------------------------------------------------------


def mlflow_answers(around: Surroundings) -> CheckResult:
    """Whether MLflow's own client gets an answer to a real question; a server's `/health` says nothing about that."""
    ask_mlflow(uri := check_tracking_uri(around.tracking_uri))  # its errors become the result
    path = sqlite_path(uri)
    if uri.startswith("http"):
        return ok("search_experiments was answered")
    return _database(uri, path) if path is None or path.exists() else ok(f"{path} will be made by the first study")


def _database(uri: str, path: Path | None) -> CheckResult:
    """Judge whether a database is MLflow's, and of this version."""
    import sqlalchemy

    logging.getLogger("alembic").setLevel(logging.WARNING)
    readable = uri if path is None else f"sqlite:///file:{quote(str(path))}?mode=ro&uri=true"
    try:
        engine = sqlalchemy.create_engine(readable)
    except ImportError as error:
        return fail(f"its database driver is missing: {error}", "Install it beside MLflow with pip.")
    try:
        tables = set(sqlalchemy.inspect(engine).get_table_names())
        if not tables:
            return ok("an empty database; the first study makes MLflow's tables")
        if "experiments" not in tables:
            return fail(
                f"this database is not MLflow's, got tables {', '.join(sorted(tables)[:4])}",
                "Name another one with --tracking-uri.",
            )
        schema, expected = schemas(engine)
    except sqlalchemy.exc.SQLAlchemyError as error:
        fix = "Check that the database runs, its address, user and password."
        return fail(f"the database does not answer: {_short(error)}", fix if path is None else "Restore or remove it.")
    finally:
        engine.dispose()
    if schema != expected:
        return fail(
            f"its tables are of another MLflow (schema {schema}; {metadata.version('mlflow')} needs {expected})",
            "Back it up, then run `mlflow db upgrade <uri>`; or use the newer MLflow.",
        )
    return ok("MLflow's tables of this version answer")


def _short(error: Exception) -> str:
    return mask_credentials(" ".join(str(error).split()))[:220]


def mlflow_file_system(around: Surroundings) -> CheckResult | None:
    """Whether an SQLite database is where its locks work."""
    path = sqlite_path(around.tracking_uri)
    if path is None:
        return None
    mount = mount_of(nearest(path))
    if mount.is_network:
        return warn(
            f"{path} is an SQLite database on {mount.kind}, whose locks it cannot rely on: two writers corrupt it",
            "Keep it on a local disk (--tracking-uri sqlite:////tmp/…), or use an MLflow server or PostgreSQL.",
        )
    return ok(f"the SQLite database is on a local disk ({mount.kind or 'unknown'})")
