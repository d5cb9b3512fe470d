"""`python -m study sync`: everything outside of the folder that shows a study is brought up to date. Imports no engine.

One place that is away does not keep the other from its part.
"""

import time

from filelock import FileLock, Timeout

from study.errors import StudyError, TrackingError
from study.harmless import mask_credentials
from study.mirrors.mirror_target import OPTUNA, TENSORBOARD, Target
from study.mirrors.mlflow_mirror import reason_of
from study.mirrors.mlflow_mirror import sync as sync_mlflow
from study.mirrors.tracking_uri import asked_uri, check_optuna_storage, check_tracking_uri
from study.records.folder import StudyFolder
from study.records.packing import unpacked
from study.records.state import check_files
from study.records.trust import is_made_here

TIMEOUT_S = 30.0
"""Seconds for which a place may be away."""
_PAUSE_S = 1.0


def sync_study(
    folder: StudyFolder,
    *,
    tracking_uri: str | None = None,
    optuna_storage: str | None = None,
    tensorboard: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> list[str]:
    """Bring MLflow, and Optuna's storage and event files where the study has them, up to date with the records.

    Where places are named, only those. What only the folder names is contacted for a study of this user's own.

    Args:
        folder: The study.
        tracking_uri: Another MLflow than the study's own, where the whole study is rebuilt.
        optuna_storage: Another Optuna storage, likewise.
        tensorboard: Event files for TensorBoard, also of a study that has none yet.
        timeout_s: Seconds without progress after which to give a place up.

    Returns:
        A sentence for each place.

    Raises:
        StudyError: A place does not answer, or the records cannot be trusted; the others have got what they lacked.
    """
    identity = folder.identity()
    check_files(unpacked(folder))
    named = tracking_uri is not None or optuna_storage is not None or tensorboard
    if not named and not is_made_here(folder.identity_file):
        tracking_uri = asked_uri(None)
        if tracking_uri is None:
            raise TrackingError(
                where=str(folder.path),
                rule="a study that was started elsewhere, moved or copied is shown where you say",
                got=f"an MLflow named by its folder alone ({mask_credentials(identity.tracking_uri)})",
                fix="Add --tracking-uri with that address if you trust it, or with another one.",
                code="sync-names-no-mlflow",
            )
        named = True
    storage = optuna_storage or identity.optuna_storage
    said: list[str] = []
    failed: list[StudyError] = []
    if tracking_uri is not None or not named:
        try:
            uri = None if tracking_uri is None else check_tracking_uri(tracking_uri)
            report = sync_mlflow(folder, tracking_uri=uri, timeout_s=timeout_s)
            said.append(f"MLflow is up to date: {report.records} records sent, {report.runs} trials there.")
        except StudyError as error:
            failed.append(error)
    if storage is not None and (optuna_storage is not None or not named):
        try:
            sent, there = sync_optuna(folder, check_optuna_storage(storage), timeout_s=timeout_s)
            said.append(f"Optuna's storage is up to date: {sent} trials sent, {there} there.")
        except StudyError as error:
            failed.append(error)
    if tensorboard or (folder.tensorboard.is_dir() and not named):
        try:
            read, there = _follow(TENSORBOARD, folder, str(folder.tensorboard), timeout_s)
            said.append(f"TensorBoard's event files are up to date: {read} records read, {there} trials there.")
        except StudyError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return said


def sync_optuna(folder: StudyFolder, storage: str, *, timeout_s: float = TIMEOUT_S) -> tuple[int, int]:
    """Enter into an Optuna storage the trials that it lacks; return their number, and that of all that are there.

    Raises:
        TrackingError: It does not answer, or another mirror is at work.
        RecordError: The records cannot be trusted, or the storage shows trials that are not on record.
    """
    return _follow(OPTUNA, folder, storage, timeout_s)


def _follow(target: Target, folder: StudyFolder, uri: str, timeout_s: float) -> tuple[int, int]:
    """Send a place what it lacks; return how much that was, and the number of trials that are there.

    Raises:
        TrackingError: It does not answer, or another mirror is at work.
        RecordError: The records cannot be trusted, or the place shows trials that are not on record.
    """
    where = f"{target.place} {mask_credentials(uri)}"
    try:
        held = FileLock(target.lock(folder, uri)).acquire(timeout=timeout_s)
    except Timeout as error:
        raise TrackingError(
            where=where,
            rule="only one mirror may send to it",
            got="another one at work",
            fix="None while the study runs, its own mirror keeps the place up to date; afterwards try again.",
            code="another-mirror-sends",
        ) from error
    with held:
        mirror, sent, deadline = target.open(folder, uri), 0, time.monotonic() + timeout_s
        while True:
            try:
                if not mirror.attached:
                    mirror.attach()
                while count := mirror.step():
                    sent, deadline = sent + count, time.monotonic() + timeout_s
                mirror.close()
                return sent, mirror.count_trials()
            except StudyError:
                raise
            except Exception as error:  # databases and disks raise every kind
                if time.monotonic() > deadline:
                    raise TrackingError(
                        where=where,
                        rule="must take the study's trials",
                        got=f"{reason_of(error)} for {timeout_s:g} s; {mirror.behind} are behind",
                        fix="See to it, then run the same command again.",
                        code="mirror-behind",
                    ) from error
                time.sleep(_PAUSE_S)
