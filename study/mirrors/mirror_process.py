"""A mirror as the driver sees it: a process to start, to wait for once, and to finish. Imports no MLflow, no Optuna.

The driver calls neither MLflow nor a database. What it records, the process `study.mirrors.mirror_worker` sends; one
process for each place. It can hang or be killed without harm to the driver: the records hold all that is to be sent.
"""

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from study.errors import RecordError, TrackingError
from study.harmless import mask_credentials
from study.mirrors.mirror_target import MLFLOW, Target
from study.records.folder import StudyFolder

READY_TIMEOUT_S = 60.0
"""Importing MLflow and creating a database's tables takes 4 s on an idle core; a loaded one gets the rest."""
FINISH_TIMEOUT_S = 30.0
_LIVES = 4
"""Processes that `finish` tries: one that dies at once whenever it is started must not be started for ever."""
_GRACE_S = 2.0
"""Seconds beyond a deadline, before the process is killed."""
_LOOK_S = 0.2
"""Seconds between two looks at a deadline that may have changed."""
_SOURCES = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorReport:
    """How the mirroring of a study ended."""

    behind: int
    """What the place has not got, in its units: records for MLflow, trials for Optuna's storage."""
    reason: str
    """Why; empty when nothing is missing."""

    @property
    def drained(self) -> bool:
        """Whether the place has got everything."""
        return self.behind == 0 and not self.reason


class MirrorProcess:
    """One mirror of one study. It ends with `finish`, and also when the driver ends in any other way."""

    def __init__(self, target: Target = MLFLOW) -> None:
        self._target = target
        self._child: _Child | None = None
        self._asked = False
        """Whether the process has been told to finish."""
        self._report = MirrorReport(behind=0, reason="")

    def start(self, folder: StudyFolder, uri: str) -> None:
        """Start the process; `uri` has been checked, as by `check_tracking_uri`. Returns at once."""
        if self._child is not None:
            self._child.dispose()
        self._folder, self._uri, self._asked = folder, uri, False
        self._child = _Child(folder, uri, self._target)

    @property
    def name(self) -> str:
        """Name of the place, for people."""
        return self._target.name

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
        deadline, reason = time.monotonic() + timeout_s, f"no answer within {timeout_s:g} s"
        while self._child is not None and (message := self._child.next_message(lambda: deadline)) is not None:
            if message.get("ready"):
                return
            reason = message.get("reason") or reason
            if message.get("final"):
                break
        if "Fix:" in reason:  # a message of ours, whole
            raise TrackingError(reason)
        raise TrackingError(
            f"{self._target.place} {mask_credentials(self._uri)}: {self._target.name} must accept the study, got "
            f"{reason}. Fix: start or correct it, or give another {self._target.option}."
        )

    def ask_to_finish(self, timeout_s: float) -> None:
        """Tell the process to send what is left within `timeout_s` seconds; `finish` waits for it."""
        if self._child is not None:
            self._asked = True
            self._child.write(json.dumps({"finish_s": timeout_s}))

    def finish(
        self, timeout_s: float = FINISH_TIMEOUT_S, *, cut: Callable[[], float] = lambda: math.inf
    ) -> MirrorReport:
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
                self._child = _Child(self._folder, self._uri, self._target)
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
            message = {"behind": self._target.count_behind(self._folder, self._uri), "reason": reason}
        self._report = MirrorReport(behind=message["behind"], reason=message["reason"])
        return self._report


class _Child:
    """The process and its two pipes: orders go to its standard input, messages come back."""

    def __init__(self, folder: StudyFolder, uri: str, target: Target) -> None:
        log = _open_log(folder.mirror_log)
        self._messages, report_fd = os.pipe()
        self._unread = b""
        command = [sys.executable, "-P", "-m", "study.mirrors.mirror_worker", str(folder.path)]
        options = ["--target", target.key, "--parent-pid", str(os.getpid()), "--report-fd", str(report_fd)]
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
        raise RecordError(
            f"{path}: must be a file that can be written ({error.strerror}). "
            "Fix: check its permissions, or remove what is in its place."
        ) from error
