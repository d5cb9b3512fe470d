"""What follows a study's records for all its mirrors: `sync` on request, and a process of its own beside a driver.

The driver calls neither MLflow nor a database: it writes records, and one process of its own sends them, with a thread
for each place, so that one that is away holds up no other. A place that is away is asked again, ever more rarely, and
then gets what it lacks. The process can hang or be killed without harm to the driver: the records hold all that is to
be sent, and a file for each mirror says how far it is and what is wrong.

`python -m study.mirrors.process FOLDER PARENT`. Standard input brings a line of JSON, the seconds that are left and the
study's answer; its end means that the driver is gone.
"""

import contextlib
import json
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from study.errors import RecordError, StudyError, TrackingError
from study.harmless import mask_credentials, printable
from study.machine.host import set_back
from study.mirrors.mirror import Mirror
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.optuna_storage import OptunaMirror
from study.mirrors.tensorboard import TensorBoardMirror
from study.mirrors.tracking_uri import passes, reason_of, refusal
from study.records.files import at_work, take
from study.records.folder import StudyFolder

_log = logging.getLogger(__name__)

KINDS: tuple[type[Mirror], ...] = (MlflowMirror, OptunaMirror, TensorBoardMirror)
"""Every kind of mirror."""
POLL_S = 1.0
"""Seconds between two readings of the records, and between two attempts where somebody waits for the end."""
LONGEST_DELAY_S = 15.0
"""Seconds between two attempts at a place that stays away."""
SYNC_TIMEOUT_S = 30.0
"""Seconds without progress after which `sync` gives up."""
READY_TIMEOUT_S = 180.0
"""How long a first start waits: to import MLflow and create a database's tables takes 4 s on an idle core."""
ORPHAN_DRAIN_S = 10.0
"""Seconds that a process whose driver is gone goes on, before it leaves the study to that of a resume."""
_LOCK = ".mirror.lock"
"""Locked while mirrors send: two of one place would double what they send."""
_GRACE_S = 2.0
"""Seconds beyond a deadline, before the process is killed."""
_LOOK_S = 0.2
"""Seconds between two checks of what may have changed."""
_NICENESS = 10
"""Recording must not take time from trials that are timed."""
_SOURCES = Path(__file__).resolve().parents[2]


def mirrors_of(folder: StudyFolder) -> list[Mirror]:
    """Return a mirror for each place that a study has."""
    return [mirror for kind in KINDS if (mirror := kind(folder)).address]


# --- the loop ---------------------------------------------------------------------------------------------------------


class Orders:
    """When to stop following; may change meanwhile.

    Attributes:
        asked: Whether somebody waits: an error that does not pass ends it, and progress renews the time.
        finishing: Whether to stop at the end of the records.
        patient: Whether to try again after an error; else a later mirror will.
        deadline: When to stop in any case, on the clock of `time.monotonic`.
    """

    def __init__(self, *, asked: bool = False) -> None:
        self.asked, self.finishing, self.patient, self.deadline = asked, False, True, math.inf
        self._changed = threading.Event()

    def finish(self, seconds: float, *, patient: bool = True) -> None:
        """Order a stop at the end of the records, after so many seconds at the latest."""
        self.finishing, self.patient, self.deadline = True, patient, time.monotonic() + seconds
        self._changed.set()

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the next order."""
        if self.finishing:
            time.sleep(max(min(seconds, self.deadline - time.monotonic()), 0.0))
        else:
            self._changed.wait(seconds)


def follow(mirror: Mirror, orders: Orders) -> int:
    """Send records to a place, and wait for further ones, until the orders say to stop; return how many were sent.

    `mirror.failure`, and the mirror's file in the study's folder, say what went wrong last.
    """
    total, failures, delay, done = 0, 0, 0.0, False
    with contextlib.closing(mirror):
        while not done and time.monotonic() < orders.deadline:
            orders.pause(delay)
            try:
                was_open, finishing = mirror.opened, orders.finishing
                sent = mirror.step()
                done = finishing and not sent
                is_over = done and not (orders.asked and at_work(mirror.folder.path))
                if is_over or not (was_open or finishing):
                    mirror.show_status(ended=is_over)
                mirror.failure, failures, delay, total = None, 0, 0.0 if sent else POLL_S, total + sent
                if orders.asked:
                    orders.finish(SYNC_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 (MLflow, databases and proxies raise every kind)
                delay = POLL_S if orders.finishing else min(2.0**failures, LONGEST_DELAY_S)
                failures += 1
                done = not orders.patient or isinstance(error, RecordError) or (orders.asked and not passes(error))
                mirror.failure = refusal(error, mirror.address, mirror.place)
                if (said := mask_credentials(str(mirror.failure))) != mirror.state.error:
                    _log.warning("%s", reason_of(error), exc_info=None if isinstance(error, StudyError) else error)
                    mirror.note(error=said)
    return total


def sync(mirror: Mirror) -> int:
    """Send to a place what it has not got, in the foreground; return the number of records.

    Raises:
        TrackingError: The place refuses, or has not answered for `SYNC_TIMEOUT_S` seconds; or a driver's own process
            sends to it.
        RecordError: The records cannot be trusted.
    """
    deadline = time.monotonic() + SYNC_TIMEOUT_S
    while (lock := take(mirror.folder.path / _LOCK)) is None:
        if time.monotonic() > deadline:
            where, rule = str(mirror.folder.path), "only one process may send the study to its places"
            fix = "None while the study runs, its own one keeps them up to date; afterwards try again."
            raise TrackingError(where=where, rule=rule, got="another one at work", fix=fix)
    try:
        orders = Orders(asked=True)
        orders.finish(SYNC_TIMEOUT_S)
        total = follow(mirror, orders)
    finally:
        os.close(lock)
    if mirror.failure is not None:
        raise mirror.failure
    return total


# --- the process, from the driver's side ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """How the mirroring of a study to a place ended."""

    name: str
    """Of the place, for people."""
    behind: int
    """Records that the place has not got, at most."""
    reason: str
    """Why; empty when nothing is missing."""

    @property
    def drained(self) -> bool:
        """Whether the place has got everything."""
        return self.behind == 0 and not self.reason


class MirrorProcess:
    """The mirrors of one study. They end with `finish`, and also when the driver ends in any other way.

    Attributes:
        mirrors: Every mirror, by the key of its kind.
    """

    def __init__(self, folder: StudyFolder) -> None:
        """Start the process; returns at once."""
        self.mirrors = {mirror.key: mirror for mirror in mirrors_of(folder)}
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = _start(folder)

    @property
    def pid(self) -> int | None:
        """The process id; None when it has ended."""
        return None if self._process is None else self._process.pid

    def wait_ready(self, key: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the study exists in a place, as experiment and run in MLflow: it has been written to.

        For a first start, where a wrong address should end the command. A resume need not insist: the process goes on
        trying by itself.

        Raises:
            TrackingError: It does not exist after `timeout_s` seconds; says what the process ran into.
        """
        mirror, error, deadline = self.mirrors[key], "", time.monotonic() + timeout_s
        while self._process is not None and time.monotonic() < deadline:
            if (state := mirror.state).pid == self.pid:
                error = state.error
                if not error:
                    return
                if "locked" not in error:  # another process lets go of a database's lock
                    break
            elif self._process.poll() is not None:
                break
            time.sleep(_LOOK_S)
        where, rule = f"{mirror.place} {mask_credentials(mirror.address)}", f"must answer within {timeout_s:g} s"
        fix = f"See {self._folder.mirror_log}, or give another address."
        raise TrackingError(error) if error else TrackingError(where=where, rule=rule, fix=fix)

    def finish(
        self, timeout_s: float, *, cut: Callable[[], float] = lambda: math.inf, answer: str = ""
    ) -> tuple[MirrorReport, ...]:
        """Let the process send what is left, for at most `timeout_s` seconds, and end it.

        A process that was killed, before or meanwhile, is replaced once.

        Args:
            timeout_s: How long to wait.
            cut: Returns when to end the process in any case, on the clock of `time.monotonic`; may change meanwhile.
            answer: What the study says, as Markdown, for the places that show it.
        """
        deadline = time.monotonic() + timeout_s
        for again in (False, True):
            if self._process is None:
                break
            self._process = process = _start(self._folder) if again else self._process
            assert process.stdin is not None  # opened as a pipe
            with contextlib.suppress(BrokenPipeError):  # a process that died does not read it
                order = [max(deadline - time.monotonic(), 0.0), answer]
                process.stdin.write(json.dumps(order).encode() + b"\n")
            while process.poll() is None and time.monotonic() < min(deadline + _GRACE_S, cut()):
                time.sleep(_LOOK_S / 4)
            process.kill()
            if process.wait() == 0 or time.monotonic() >= min(deadline, cut()):
                self._process = None
        reports = []
        for mirror in (type(each)(self._folder) for each in self.mirrors.values()):
            error = mirror.state.error or (f"it did not end within {timeout_s:g} s" if mirror.behind else "")
            reports.append(MirrorReport(name=mirror.name, behind=mirror.behind, reason=error))
        return tuple(reports)


def _start(folder: StudyFolder) -> "subprocess.Popen[bytes]":
    try:
        log = folder.mirror_log.open("ab")
    except OSError as error:
        where, rule = str(folder.mirror_log), f"must be a file that can be written ({error.strerror})"
        fix = "Check its permissions, or remove what is in its place."
        raise RecordError(where=where, rule=rule, fix=fix) from error
    path = os.pathsep.join(filter(None, [str(_SOURCES), os.environ.get("PYTHONPATH")]))
    with log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "study.mirrors.process", str(folder.path), str(os.getpid())],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal does not reach it
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )


# --- in the process ---------------------------------------------------------------------------------------------------


class _WithoutCredentials(logging.Formatter):
    """Masks passwords and control characters: MLflow's exceptions name the whole URI, and quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or the lines of a traceback."""
        return printable(mask_credentials(super().format(record)))


def main(folder: str, parent: str) -> None:
    """Run the process.

    Args:
        folder: The study's.
        parent: The id of the driver's process.
    """
    # Ctrl-C and a scheduler's SIGTERM reach every process of a job. The driver answers them, and its last
    # records must still be sent; when it dies without a word, the end of standard input ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    to_log = logging.StreamHandler(sys.stderr)
    to_log.setFormatter(_WithoutCredentials("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[to_log])
    logging.getLogger("study").setLevel(logging.INFO)
    sys.modules["torch"] = None  # type: ignore[assignment]  # tensorboardX would load it: seconds, and 200 MB
    set_back(_NICENESS)
    orders, mirrors = Orders(), mirrors_of(StudyFolder(Path(folder)))
    threading.Thread(target=_listen, args=(int(parent), orders, mirrors), daemon=True).start()
    while take(Path(folder) / _LOCK) is None:  # the process of an earlier driver has not let go of it
        pass
    threads = [threading.Thread(target=follow, args=(mirror, orders), daemon=True) for mirror in mirrors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _listen(parent: int, orders: Orders, mirrors: list[Mirror]) -> None:
    """Wait for the driver's order, or for its end; end this process once the time that is left is over."""
    order = b""
    with open(0, "rb", buffering=0) as stdin:
        while os.getppid() == parent:  # a process forked from the driver can hold our standard input open
            if select.select([stdin], [], [], _LOOK_S)[0]:
                order = stdin.readline()
                break
    seconds, answer = json.loads(order) if order else (ORPHAN_DRAIN_S, "")
    for mirror in mirrors:
        mirror.answer = answer
    orders.finish(seconds, patient=bool(order))
    set_back(0)  # no trial runs any more
    time.sleep(seconds + _GRACE_S)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
