"""The process that keeps one mirror up to date while a driver works, from both of its sides. Imports no engine.

The driver calls neither MLflow nor a database. What it records, a process of its own sends, one for each place. It can
hang or be killed without harm to the driver: the records hold all that is to be sent.

`python -m study.mirrors.process FOLDER --mirror KEY --parent-pid PID --report-fd FD`. Standard input carries the
address as a line and later `{"finish_s": SECONDS}`; its end means that the driver is gone. JSON lines go back through
FD: `{"ready": true}`, `{"reason": …, "final": …, "error": …}` when the place is away, at last
`{"behind": N, "reason": …}`.
"""

import argparse
import contextlib
import functools
import json
import logging
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from study.errors import RecordError, StudyError, TrackingError
from study.harmless import mask_credentials, printable
from study.machine.processes import set_back
from study.mirrors.base import Follower, Mirror, MirrorReport, Orders
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.optuna_storage import OptunaMirror
from study.mirrors.tensorboard import TensorBoardMirror
from study.mirrors.tracking_uri import is_database_server
from study.records.folder import StudyFolder

MIRRORS: tuple[type[Mirror], ...] = (MlflowMirror, OptunaMirror, TensorBoardMirror)
"""Every kind of mirror."""
READY_TIMEOUT_S = 60.0
"""How long a first start waits: to import MLflow and create a database's tables takes 4 s on an idle core."""
ORPHAN_DRAIN_S = 10.0
"""Seconds that a mirror whose driver is gone goes on, before it leaves the study to that of a resume."""
_LIVES = 4
"""Processes that `finish` tries: one that dies at once whenever it is started must not be started for ever."""
_GRACE_S = 2.0
"""Seconds beyond a deadline, before the process is killed."""
_LOOK_S = 0.2
"""Seconds between two checks of a deadline that may have changed."""
_NICENESS = 10
"""Recording must not take time from trials that are timed."""
_STDIN = 0
_SOURCES = Path(__file__).resolve().parents[2]


# --- as the driver sees it -------------------------------------------------------------------------------------------


class MirrorProcess:
    """One mirror of one study. It ends with `finish`, and also when the driver ends in any other way.

    Attributes:
        name: Of the place, for people.
        address: Of the place.
    """

    def __init__(self, kind: type[Mirror], folder: StudyFolder, address: str) -> None:
        """Start the process; `address` has been checked, as by `Mirror.check`. Returns at once."""
        self.name, self.address = kind.name, address
        self._kind, self._folder = kind, folder
        self._child: _Child | None = _Child(folder, address, kind)
        self._asked = False
        """Whether the process has the order to finish."""
        self._report = MirrorReport(name=kind.name, behind=0, reason="")

    @property
    def pid(self) -> int | None:
        """The process id; None when there is no process."""
        return None if self._child is None else self._child.pid

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the study exists in the place, as experiment and parent run in MLflow.

        For a first start, where a wrong address should end the command. A resume need not insist: the process
        goes on trying by itself.

        Raises:
            TrackingError: They do not exist after `timeout_s` seconds; says what the process ran into.
        """
        deadline, reason, error = time.monotonic() + timeout_s, f"no answer within {timeout_s:g} s", None
        while self._child is not None and (message := self._child.next_message(lambda: deadline)) is not None:
            if message.get("ready"):
                return
            reason, error = message.get("reason") or reason, message.get("error")
            if message.get("final"):
                break
        if error is not None:  # that of this project, with its parts
            raise TrackingError(**error)
        where, rule = f"{self._kind.place} {mask_credentials(self.address)}", f"{self.name} must accept the study"
        fix = f"Start or correct it, or give another {self._kind.option}."
        raise TrackingError(where=where, rule=rule, got=reason, fix=fix)

    def ask_to_finish(self, timeout_s: float) -> None:
        """Tell the process to send what is left within `timeout_s` seconds; `finish` waits for it."""
        if self._child is not None:
            self._asked = True
            self._child.write(json.dumps({"finish_s": timeout_s}))

    def finish(self, timeout_s: float, *, cut: Callable[[], float] = lambda: math.inf) -> MirrorReport:
        """Let the process send what is left, for at most `timeout_s` seconds, and end it.

        A process that was killed, before or meanwhile, is replaced. A second call returns the same report.

        Args:
            timeout_s: How long to wait.
            cut: Returns when to end the process in any case, on the clock of `time.monotonic`; may change meanwhile.
        """
        if self._child is None:
            return self._report
        deadline = time.monotonic() + timeout_s
        reason = f"the mirror did not end within {timeout_s:g} s"

        def over() -> float:
            return min(deadline + _GRACE_S, cut())

        for life in range(_LIVES):
            if life > 0:
                self._child.dispose(over())
                self._child = _Child(self._folder, self.address, self._kind)
            if life > 0 or not self._asked:
                self._child.write(json.dumps({"finish_s": max(deadline - time.monotonic(), 0.0)}))
            while (message := self._child.next_message(over)) is not None and "behind" not in message:
                reason = message.get("reason", reason)
            # Silence before the deadline is the end of a killed process, which the kernel may not show as ended yet.
            if message is not None or time.monotonic() >= min(deadline, cut()):
                break
        self._child.dispose(cut())
        self._child = None
        if message is None:
            message = {"behind": self._kind(self._folder, self.address).behind, "reason": reason}
        self._report = MirrorReport(name=self.name, behind=message["behind"], reason=message["reason"])
        return self._report


class _Child:
    """The process and its two pipes: orders go to its standard input, messages come back."""

    def __init__(self, folder: StudyFolder, uri: str, kind: type[Mirror]) -> None:
        log = _open_log(folder.mirror_log)
        self._messages, report_fd = os.pipe()
        self._unread = b""
        command = [sys.executable, "-P", "-m", "study.mirrors.process", str(folder.path)]
        options = ["--mirror", kind.key, "--parent-pid", str(os.getpid()), "--report-fd", str(report_fd)]
        path = os.pathsep.join(filter(None, [str(_SOURCES), os.environ.get("PYTHONPATH")]))
        with log:
            self._process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[report_fd],
                start_new_session=True,  # Ctrl-C in the terminal does not reach it
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        os.close(report_fd)
        self.write(uri)  # not as an argument: it can hold a password

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, line: str) -> None:
        """Send one line; a process that died does not read it, and its silence tells."""
        assert self._process.stdin is not None  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def next_message(self, deadline: Callable[[], float]) -> dict[str, Any] | None:
        """Return the next message; None at the deadline, which may change meanwhile, or when the process has ended."""
        while b"\n" not in self._unread:
            left = deadline() - time.monotonic()
            if left <= 0:
                return None
            if not select.select([self._messages], [], [], min(left, _LOOK_S))[0]:
                continue
            if not (block := os.read(self._messages, 65536)):
                return None
            self._unread += block
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def dispose(self, until: float = math.inf) -> None:
        """End the process, if it does not end by itself now, and close the pipes."""
        assert self._process.stdin is not None  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(max(min(_GRACE_S, until - time.monotonic()), 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._messages)


def _open_log(path: Path) -> IO[bytes]:
    try:
        return path.open("ab")
    except OSError as error:
        rule = f"must be a file that can be written ({error.strerror})"
        fix = "Check its permissions, or remove what is in its place."
        raise RecordError(where=str(path), rule=rule, fix=fix) from error


# --- in the process ---------------------------------------------------------------------------------------------------


class _Driver(Orders):
    """The process that started this one: its orders, and whether it is alive."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._deadline: float | None = None
        self.gone = False

    @property
    def finishing(self) -> bool:
        return self._deadline is not None

    @property
    def expired(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    @property
    def study_over(self) -> bool:
        return True  # the driver waits for the end of this process

    def gives_up(self, error: Exception) -> bool:
        return self.gone  # a resume will go on

    def wait(self, seconds: float) -> None:
        if self._deadline is not None:
            time.sleep(max(min(seconds, self._deadline - time.monotonic()), 0))
        elif select.select([_STDIN], [], [], seconds)[0]:
            self._obey(os.read(_STDIN, 4096))
        elif os.getppid() != self._pid:  # a process forked from the driver can hold our standard input open
            self._obey(b"")

    def _obey(self, order: bytes) -> None:
        self.gone = not order
        seconds = json.loads(order)["finish_s"] if order else ORPHAN_DRAIN_S
        self._deadline = time.monotonic() + seconds
        set_back(0)  # no trial runs any more


def _is_final(error: Exception, uri: str) -> bool:
    """Return whether a database on a server has refused us, or Python lacks its driver: waiting helps in neither case.

    An SQLite database may be locked for a moment, and a tracking server was asked by the driver.
    """
    from sqlalchemy.exc import SQLAlchemyError

    return is_database_server(uri) and isinstance(error, TrackingError | SQLAlchemyError)


def _parts(error: Exception) -> dict[str, str] | None:
    """Return the parts of an error of this project, without credentials; None for any other."""
    if not isinstance(error, StudyError):
        return None
    return {name: mask_credentials(getattr(error, name)) for name in ("where", "rule", "got", "fix")}


class _WithoutCredentials(logging.Formatter):
    """Masks passwords and control characters: MLflow's exceptions name the whole URI, and quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or the lines of a traceback."""
        return printable(mask_credentials(super().format(record)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process."""
    kinds = {kind.key: kind for kind in MIRRORS}
    parser = argparse.ArgumentParser(prog="python -m study.mirrors.process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mirror", choices=sorted(kinds), required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--report-fd", type=int, required=True)
    options = parser.parse_args(arguments)
    # Ctrl-C and a scheduler's SIGTERM reach every process of a job. The driver answers them, and its last
    # records must still be sent; when it dies without a word, the end of standard input ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(options.report_fd, False)
    to_log = logging.StreamHandler(sys.stderr)
    to_log.setFormatter(_WithoutCredentials("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[to_log])
    logging.getLogger("study").setLevel(logging.INFO)
    with open(_STDIN, "rb", buffering=0, closefd=False) as stdin:
        uri = stdin.readline().decode().strip()

    def tell(**message: Any) -> None:
        """Send one line to the driver, if it is there and listens: this process never waits for it."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(options.report_fd, json.dumps(message).encode() + b"\n")

    driver = _Driver(options.parent_pid)

    @functools.cache
    def step_back() -> None:
        """Let trials go first from now on: once MLflow is imported, or where that has to wait and trials may run."""
        if not driver.finishing:
            os.nice(_NICENESS)
            set_back(_NICENESS)

    def ready() -> None:
        tell(ready=True)
        step_back()

    def away(reason: str, error: Exception) -> None:
        tell(reason=reason, final=_is_final(error, uri), error=_parts(error))
        step_back()

    mirror = kinds[options.mirror](StudyFolder(options.folder), uri)
    report = Follower(mirror, driver, on_ready=ready, on_away=away).run()
    tell(behind=report.behind, reason=report.reason)


if __name__ == "__main__":
    main()
