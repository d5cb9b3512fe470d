"""What follows a study's records for all its mirrors: `sync` on request, and a process of its own beside a driver.

A place that is away is asked again and again, and then gets what it lacks. The process can hang or be killed without
harm to the driver: the records hold all that is to be sent, and a file for each mirror says how far it is.

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
import time
from collections.abc import Callable
from pathlib import Path

from study.errors import ClusterError, RecordError, StudyError
from study.machine.host import set_back
from study.mirrors.mirror import Mirror, OptunaMirror, TensorBoardMirror
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.tracking_uri import reason_of, refusal
from study.records.files import at_work, take, usable
from study.records.folder import StudyFolder
from study.text import mask_credentials, printable

_log = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two readings of the records, and between two attempts where somebody waits for the end."""
RETRY_S = 5.0
"""Seconds between two attempts at a place that is away."""
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
    """Return a mirror for each place that a study has; the files in its folder come first, as they never wait."""
    mirrors = (TensorBoardMirror(folder), OptunaMirror(folder), MlflowMirror(folder))
    return [mirror for mirror in mirrors if mirror.address]


def advance(mirror: Mirror, *, finishing: bool, ended: bool) -> None:
    """Send the next records to a place, or note why it does not take them and when to try again.

    Where it is `finishing`, the end of the records is the end of the work, and the study is shown as `ended`, if it is.
    """
    try:
        sent = mirror.step()
        mirror.done = finishing and not sent
        if mirror.done and ended:
            mirror.end()
        mirror.failure = None
        mirror.due = time.monotonic() + (0.0 if sent else POLL_S)
    except Exception as error:  # noqa: BLE001 (MLflow, databases and proxies raise every kind)
        mirror.opened, mirror.done = False, isinstance(error, RecordError)
        mirror.failure = refusal(error, f"{mirror.name} {mirror.address}")
        mirror.due = time.monotonic() + (POLL_S if finishing else RETRY_S)
        if (said := mask_credentials(str(mirror.failure))) != mirror.state.error:
            _log.warning("%s", reason_of(error), exc_info=None if isinstance(error, StudyError) else error)
            mirror.note(error=said)


def sync(mirror: Mirror) -> int:
    """Send to a place what it has not got, in the foreground; return the number of records that it lacked.

    Raises:
        ClusterError: The place is away or refuses, or a driver's own process sends to it.
        RecordError: The records cannot be trusted.
    """
    folder, lacked = mirror.folder.path, mirror.behind
    if (lock := take(folder / _LOCK)) is None:
        rule = "only one process may send the study to its places"
        fix = "None while the study runs, its own one keeps them up to date; afterwards try again."
        raise ClusterError(where=str(folder), rule=rule, got="another one at work", fix=fix)
    try:
        while not mirror.done:
            advance(mirror, finishing=True, ended=not at_work(folder))
            if mirror.failure is not None:
                raise mirror.failure
    finally:
        os.close(lock)
    return lacked


# --- the process, from the driver's side ------------------------------------------------------------------------------


class MirrorProcess:
    """The mirrors of one study. They end with `finish`, and when the driver ends in any other way."""

    def __init__(self, folder: StudyFolder) -> None:
        """Start the process; returns at once."""
        self._folder, self._mirrors = folder, mirrors_of(folder)
        self._process: subprocess.Popen[bytes] | None = _start(folder)

    @property
    def pid(self) -> int | None:
        """The process id; None when it has ended."""
        return None if self._process is None else self._process.pid

    def wait_ready(self) -> None:
        """Wait until the study exists in every place: at a first start, a wrong address should end the command.

        Raises:
            ClusterError: It does not after `READY_TIMEOUT_S`; says what the process ran into.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        for mirror in self._mirrors:
            while (state := mirror.state).pid != self.pid or state.error:
                error = state.error if state.pid == self.pid else ""
                if error and "locked" not in error:  # another process lets go of a database's lock
                    raise ClusterError(error)
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    where = f"{mirror.name} {mask_credentials(mirror.address)}"
                    rule = f"must answer within {READY_TIMEOUT_S:g} s"
                    fix = f"See {self._folder.mirror_log}, or give another address."
                    raise ClusterError(where=where, rule=rule, got=error, fix=fix)
                time.sleep(_LOOK_S)

    def finish(self, timeout_s: float, *, cut: Callable[[], float] = lambda: math.inf, answer: str = "") -> list[str]:
        """Let the process send what is left, for at most `timeout_s` seconds; return what each place lacks, and why.

        A process that was killed, before or meanwhile, is replaced once. `cut` returns when to end it in any case, on
        the clock of `time.monotonic`; it may change meanwhile. `answer` is Markdown for the places that show it.
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
        states = [(mirror.name, mirror.behind, mirror.state.error) for mirror in self._mirrors]
        late = f"it did not end within {timeout_s:g} s"
        return [f"{name} lacks up to {lacked} records ({why or late})" for name, lacked, why in states if why or lacked]


def _start(folder: StudyFolder) -> "subprocess.Popen[bytes]":
    path = os.pathsep.join(filter(None, [str(_SOURCES), os.environ.get("PYTHONPATH")]))
    fix = "Check its permissions, or remove what is in its place."
    with usable(folder.mirror_log, "a file that can be written", fix), folder.mirror_log.open("ab") as log:
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
    """Run the process for a study's folder, until its driver, a process id, says so or ends."""
    # Ctrl-C and a scheduler's SIGTERM reach every process of a job. The driver answers them, and its last
    # records must still be sent; when it dies without a word, the end of standard input ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    to_log = logging.StreamHandler(sys.stderr)
    to_log.setFormatter(_WithoutCredentials("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[to_log])
    logging.getLogger("study").setLevel(logging.INFO)
    sys.modules["torch"] = None  # type: ignore[assignment]  # tensorboardX would load it: seconds, and 200 MB
    mirrors = mirrors_of(StudyFolder(Path(folder)))
    while take(Path(folder) / _LOCK) is None:
        pass  # the process of an earlier driver has yet to let go
    wait_s = _turn(mirrors, finishing=False)
    set_back(_NICENESS)  # not before: on a loaded machine a process that is set back imports MLflow for minutes
    with open(0, "rb", buffering=0) as stdin:
        # A process forked from the driver can hold our standard input open, whence the look at the parent.
        while not select.select([stdin], [], [], min(wait_s, _LOOK_S))[0] and os.getppid() == int(parent):
            wait_s = _turn(mirrors, finishing=False)
        order = stdin.readline() if os.getppid() == int(parent) else b""
    seconds, answer = json.loads(order) if order else (ORPHAN_DRAIN_S, "")
    signal.alarm(math.ceil(seconds + _GRACE_S))  # which ends this process, whatever it waits for
    set_back(0)  # no trial runs any more
    for mirror in mirrors:
        mirror.answer, mirror.due = answer, 0.0
    wait_s = 0.0
    while not all(mirror.done or (mirror.failure and not order) for mirror in mirrors):
        time.sleep(wait_s)
        wait_s = _turn(mirrors, finishing=True)


def _turn(mirrors: list[Mirror], *, finishing: bool) -> float:
    """Advance the mirrors that are due; return the seconds until the next one is."""
    for mirror in mirrors:
        if not mirror.done and mirror.due <= time.monotonic():
            advance(mirror, finishing=finishing, ended=True)
    now = time.monotonic()
    return max(min((mirror.due for mirror in mirrors if not mirror.done), default=now + _LOOK_S) - now, 0.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
