"""`run_study`: folder, records, Ray, Tune and MLflow wired together. Ray is imported only once nothing can be wrong."""

import contextlib
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from study.cluster import joined_ray, local_shape, private_ray, resolve_address
from study.conductor import Conductor
from study.display import Display, PlainDisplay
from study.errors import Fault, RecordError, SpaceError, StudyError, TrackingError
from study.plan import ClusterShape, make_plan, num_cpus
from study.spec import StudySpec
from study.tracking.folder import FORMAT, StudyFolder, StudyIdentity
from study.tracking.ledger import Ledger, TrialRow, best_per_scale, fold
from study.tracking.mirror_process import MirrorProcess, MirrorReport
from study.tracking.provenance import provenance
from study.tracking.records import RecordLog, StudyClosed, TrialStarted, read_lines
from study.tracking.table import write_table
from study.tracking.tracking_uri import check_tracking_uri
from study.trial.environments import probe

DEFAULT_TRACKING_URI = "sqlite:///mlflow.db"
DRAIN_TIMEOUT_S = 60.0
"""How long the end of a study waits for MLflow to catch up; `study sync` does the rest."""
READY_TIMEOUT_S = 60.0
"""How long a first start waits for MLflow."""
EXIT_FINISHED, EXIT_SOME_FAILED, EXIT_MISTAKE, EXIT_STOPPED = 0, 1, 2, 75


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """What a driver's session came to."""

    folder: StudyFolder
    identity: StudyIdentity
    rows: tuple[TrialRow, ...]
    """Every trial on record, by its number."""
    best: dict[int, TrialRow]
    """The best trial of each scale."""
    closed: StudyClosed
    mirror: MirrorReport

    @property
    def exit_code(self) -> int:
        """0 all trials ended well, 1 some failed, 75 stopped and resumable."""
        if self.closed.reason != "complete":
            return EXIT_STOPPED
        return EXIT_SOME_FAILED if any(row.status == "failed" for row in self.rows) else EXIT_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Everything about a run that is not part of the study's question."""

    name: str
    """Folder of the study below `out`, and its name in MLflow."""
    out: Path = Path("studies")
    address: str | None = None
    """None for `RAY_ADDRESS` or a private Ray; `local`, `auto` or host:port."""
    tracking_uri: str | None = None
    """MLflow; None for `sqlite:///mlflow.db`, or on a resume for what the study began with."""
    resume: bool = False
    or_start: bool = False
    """With `resume`: start when there is nothing to resume."""
    time_budget_s: float | None = None
    verbose: bool = False
    space: str = "python"
    """Where the spec came from, for people."""
    space_text: str = ""
    """The space file as written; kept beside the records."""


def run_study(spec: StudySpec, options: RunOptions, *, display: Display | None = None) -> StudyResult:
    """Run or resume a study until its plan is complete, it is told to stop, or its time is up.

    Must be called from the main thread: SIGINT, SIGTERM and SIGUSR1 end the study cleanly while it runs.

    Raises:
        SpaceError: The environment cannot be made, or the name is taken.
        ClusterError: Ray cannot be reached, or a trial can never fit.
        TrackingError: MLflow does not answer at a first start.
        RecordError: The folder cannot be resumed.
    """
    deadline = None if options.time_budget_s is None else time.monotonic() + options.time_budget_s
    display = display or PlainDisplay()
    folder = StudyFolder(options.out / options.name)
    resumed = _check_name(folder, options)
    probe(spec.environment, options.space)
    identity = _resumed_identity(folder, spec, options) if resumed else _new_identity(spec, options)
    address = resolve_address(options.address)
    largest = max(num_cpus(spec, scale) for scale in spec.scales)
    if address is None:
        make_plan(spec, local_shape(largest_trial=largest))  # refuse before anything is written
    if not resumed:
        folder.create(identity, options.space_text)
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.locked())
        if not resumed:
            stack.push(lambda kind, error, trace: _forget_unstarted(folder, error))
        ledger = fold((line.record, line.time) for line in read_lines(folder.records))
        mirror = MirrorProcess()
        mirror.start(folder, identity.tracking_uri)
        stack.callback(mirror.finish, 5.0)  # where an error leads out; after a normal end there is nothing left to do
        stopping = stack.enter_context(_Signals())
        log = stack.enter_context(RecordLog(folder.records))
        display.note(f"Starting Ray ({address or 'private'}) …")
        conductor: Conductor | None = None
        alive = False
        while not alive:
            with _ray(address, largest, verbose=options.verbose) as shape:
                stopping.install()
                if conductor is None:
                    _await_mirror(mirror, display, insist=not resumed)
                    conductor = _conductor(spec, folder, identity, shape, log, ledger, deadline)
                    stopping.tell(conductor)
                with display.live(conductor):
                    alive = _tune(conductor, folder, stopping, display)
        closed = _close(conductor)
        report = mirror.finish(DRAIN_TIMEOUT_S)
    rows = tuple(conductor.ledger.rows[number] for number in sorted(conductor.ledger.rows))
    return StudyResult(
        folder=folder, identity=identity, rows=rows, best=best_per_scale(rows), closed=closed, mirror=report
    )


def _ray(address: str | None, largest: int, *, verbose: bool) -> contextlib.AbstractContextManager[ClusterShape]:
    if address is None:
        return private_ray(num_cpus=local_shape(largest_trial=largest).num_cpus, verbose=verbose)
    return joined_ray(address, verbose=verbose)


def _check_name(folder: StudyFolder, options: RunOptions) -> bool:
    """Return whether a study is resumed.

    Raises:
        SpaceError: The name is taken, or there is nothing to resume.
    """
    exists = folder.exists()
    if exists and not options.resume:
        law = f"a new study needs a new name, got '{options.name}' ({folder.path} exists)."
        fault = Fault(place="--name", law=law, fix="Continue that study with --resume, or choose another --name.")
        raise SpaceError(options.space, [fault])
    if not exists and options.resume and not options.or_start:
        law = f"there must be a study to resume, got '{options.name}' ({folder.path} holds none)."
        fault = Fault(place="--resume", law=law, fix="Check --name and --out, or start it without --resume.")
        raise SpaceError(options.space, [fault])
    if exists:
        folder.check_owner()
    return exists


def _new_identity(spec: StudySpec, options: RunOptions) -> StudyIdentity:
    return StudyIdentity(
        format=FORMAT,
        study_id=uuid.uuid4().hex[:12],
        name=options.name,
        created=time.time(),
        tracking_uri=check_tracking_uri(options.tracking_uri or DEFAULT_TRACKING_URI),
        space=options.space,
        spec=spec.to_json(),
        digest=spec.digest(),
    )


def _resumed_identity(folder: StudyFolder, spec: StudySpec, options: RunOptions) -> StudyIdentity:
    identity = folder.identity()
    if identity.digest != spec.digest():
        different = ", ".join(_differences(identity.spec, spec.to_json())) or "defaults of another version"
        raise RecordError(
            f"{folder.path}: a resume needs the space that the study was started with, got other values of "
            f"{different}. Fix: resume with {folder.space_file}, or start a new study with --name."
        )
    if options.tracking_uri is not None:
        try:
            same = check_tracking_uri(options.tracking_uri) == identity.tracking_uri
        except TrackingError:  # an outage does not stop a resume
            same = options.tracking_uri == identity.tracking_uri
        if not same:
            raise RecordError(
                f"--tracking-uri: a study keeps the one it began with ({identity.tracking_uri}), got "
                f"{options.tracking_uri}. Fix: drop the option; `study sync {folder.path} --tracking-uri …` copies it."
            )
    return identity


def _differences(old: dict[str, Any], new: dict[str, Any], place: str = "") -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if place == "search" and key == "num_trials" or place == "" and key == "description":
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, key if not place else f"{place}.{key}")
        elif before != after:
            yield f"{place}.{key}" if place else key


def _forget_unstarted(folder: StudyFolder, error: BaseException | None) -> bool:
    """Remove the folder of a first start that recorded nothing, so that the same command can be tried again."""
    if error is not None and next(read_lines(folder.records), None) is None:
        shutil.rmtree(folder.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.path.parent.rmdir()  # only if it is empty
    return False


def _await_mirror(mirror: MirrorProcess, display: Display, *, insist: bool) -> None:
    try:
        mirror.wait_ready(READY_TIMEOUT_S if insist else 5.0)
    except TrackingError as error:
        if insist:
            raise
        display.note(f"MLflow does not answer; the study goes on and MLflow will catch up. ({error})")


def _conductor(
    spec: StudySpec,
    folder: StudyFolder,
    identity: StudyIdentity,
    shape: ClusterShape,
    log: RecordLog,
    ledger: Ledger,
    deadline: float | None,
) -> Conductor:
    return Conductor(
        spec=spec,
        plan=make_plan(spec, shape),
        folder=folder,
        log=log,
        ledger=ledger,
        study_id=identity.study_id,
        provenance=provenance(),
        deadline=deadline,
    )


def _tune(conductor: Conductor, folder: StudyFolder, stopping: "_Signals", display: Display) -> bool:
    """Run the conductor's trials under Ray Tune; return False when Tune died and trials are left to run.

    Tune gives up altogether when Ray kills a trial's process for lack of memory. The trials that ran then are taken
    back, and the caller starts Ray anew, which frees all that they held.
    """
    if conductor.exhausted:
        return True
    try:
        _tuner(conductor, folder, stopping, display).fit()
    except Exception as error:  # noqa: BLE001 (whatever Tune dies of, the records are whole and go on)
        reason = f"Ray Tune died: {next(iter(str(error).splitlines()), type(error).__name__)[:300]}."
        display.note(reason)
        conductor.engine_died(reason)
    else:
        if conductor.num_left and conductor.stop is None and not conductor.exhausted:
            conductor.engine_died("Ray Tune ended early.")
    return conductor.exhausted


def _tuner(conductor: Conductor, folder: StudyFolder, stopping: "_Signals", display: Display) -> Any:
    from ray import tune

    from study.search.searcher import StudyCallback, StudySearcher, StudyStopper
    from study.trial.trainable import StudyTrial

    spec = conductor.spec.to_json()

    def to_config(started: TrialStarted) -> dict[str, Any]:
        return {
            "spec": spec,
            "setting": started.setting,
            "seed": started.seed,
            "iterations": started.iterations,
            "trial": started.trial,
            "attempt": started.attempt,
        }

    callback = StudyCallback(conductor, on_setup=stopping.install, on_change=display.update)
    shutil.rmtree(folder.tune, ignore_errors=True)  # of an earlier driver; never read
    return tune.Tuner(
        StudyTrial,
        tune_config=tune.TuneConfig(
            search_alg=StudySearcher(conductor, to_config),
            num_samples=conductor.num_left,
            trial_dirname_creator=_trial_name,
            trial_name_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=folder.tune.name,
            storage_path=str(folder.path.resolve()),
            stop=StudyStopper(conductor),
            callbacks=[callback],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=0),
            verbose=0,
        ),
    )


def _close(conductor: Conductor) -> StudyClosed:
    """End the session; where even that cannot be written (a full disk), say so in the result."""
    try:
        closed = conductor.close()
        write_table(conductor.folder.table, conductor.ledger.rows.values())
    except (RecordError, OSError) as error:
        return StudyClosed(session=conductor.ledger.sessions, reason="error", detail=str(error))
    return closed


def _trial_name(trial: Any) -> str:
    return f"trial_{trial.config['trial']:05d}_{trial.config['attempt']}"


class _Signals:
    """Turns SIGINT, SIGTERM and SIGUSR1 into a clean end; a second SIGINT or SIGTERM ends the process at once."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self._conductor: Conductor | None = None
        self._received: str | None = None
        self._before: dict[int, Any] = {}

    def tell(self, conductor: Conductor) -> None:
        """Pass signals on to the conductor, also one that came before it existed."""
        self._conductor = conductor
        if self._received is not None:
            conductor.end_early("stopped", f"received {self._received}")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None and number != signal.SIGUSR1:
            raise KeyboardInterrupt
        self._received = signal.Signals(number).name
        if self._conductor is not None:
            self._conductor.end_early("stopped", f"received {self._received}")
        else:
            sys.stderr.write(f"Received {self._received}; ending once Ray is up. Again to end at once.\n")

    def install(self) -> None:
        """Take the signals, again where Ray or Tune took them: both install handlers of their own."""
        if threading.current_thread() is threading.main_thread():
            for number in self.NUMBERS:
                signal.signal(number, self._handle)

    def __enter__(self) -> "_Signals":
        self._before = {number: signal.getsignal(number) for number in self.NUMBERS}
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)
