"""The process that follows a study's records for all its mirrors while a driver works, from both of its sides.

The driver calls neither MLflow nor a database: it writes records, and one process of its own sends them, with a thread
for each place, so that one that is away holds up no other. The process can hang or be killed without harm to the
driver: the records hold all that is to be sent, and a file for each mirror says how far it is and what is wrong.

`python -m study.mirrors.process FOLDER PARENT`. Standard input carries a line of JSON, kind of mirror -> address, and
later the seconds that are left and the study's answer; its end means that the driver is gone.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.errors import RecordError, TrackingError
from study.harmless import mask_credentials, printable
from study.machine.host import set_back
from study.mirrors.follower import Mirror, Orders, follow
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.optuna_storage import OptunaMirror
from study.mirrors.tensorboard import TensorBoardMirror
from study.records.folder import StudyFolder

MIRRORS: Mapping[str, type[Mirror]] = {kind.key: kind for kind in (MlflowMirror, OptunaMirror, TensorBoardMirror)}
"""Every kind of mirror, by its key."""
READY_TIMEOUT_S = 180.0
"""How long a first start waits: to import MLflow and create a database's tables takes 4 s on an idle core."""
ORPHAN_DRAIN_S = 10.0
"""Seconds that a process whose driver is gone goes on, before it leaves the study to that of a resume."""
_GRACE_S = 2.0
"""Seconds beyond a deadline, before the process is killed."""
_LOOK_S = 0.2
"""Seconds between two checks of what may have changed."""
_NICENESS = 10
"""Recording must not take time from trials that are timed."""
_WORTH_WAITING = ("only one mirror", "locked")
"""In errors that pass: the mirror of an earlier driver lets go of its lock, another process of a database's."""
_SOURCES = Path(__file__).resolve().parents[2]


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

    def __init__(self, folder: StudyFolder, addresses: Mapping[str, str] | None = None) -> None:
        """Start the process; returns at once.

        Args:
            folder: The study.
            addresses: Kind of mirror -> address, which has been checked, as by `Mirror.check`; None for all places
                that the study has.
        """
        known = addresses or {key: place for key, kind in MIRRORS.items() if (place := kind.address_of(folder))}
        self.mirrors = {key: MIRRORS[key](folder, address) for key, address in known.items()}
        self._folder = folder
        self._process = self._start() if known else None

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
                if not any(words in error for words in _WORTH_WAITING):
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
            self._process = self._start() if again else self._process
            _write(self._process, [max(deadline - time.monotonic(), 0.0), answer])
            while self._process.poll() is None and time.monotonic() < min(deadline + _GRACE_S, cut()):
                time.sleep(_LOOK_S / 4)
            self._process.kill()
            if self._process.wait() == 0 or time.monotonic() >= min(deadline, cut()):
                self._process = None
        reports = []
        for key, each in self.mirrors.items():
            mirror = MIRRORS[key](self._folder, each.address)
            error = mirror.state.error or (f"it did not end within {timeout_s:g} s" if mirror.behind else "")
            reports.append(MirrorReport(name=mirror.name, behind=mirror.behind, reason=error))
        return tuple(reports)

    def _start(self) -> "subprocess.Popen[bytes]":
        try:
            log = self._folder.mirror_log.open("ab")
        except OSError as error:
            where, rule = str(self._folder.mirror_log), f"must be a file that can be written ({error.strerror})"
            fix = "Check its permissions, or remove what is in its place."
            raise RecordError(where=where, rule=rule, fix=fix) from error
        path = os.pathsep.join(filter(None, [str(_SOURCES), os.environ.get("PYTHONPATH")]))
        with log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "study.mirrors.process", str(self._folder.path), str(os.getpid())],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal does not reach it
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        # Not as arguments: they can hold a password.
        _write(process, {key: mirror.address for key, mirror in self.mirrors.items()})
        return process


def _write(process: "subprocess.Popen[bytes]", content: Any) -> None:
    """Send one line; a process that died does not read it."""
    assert process.stdin is not None  # opened as a pipe
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(content).encode() + b"\n")


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
    stdin = open(0, "rb", buffering=0)  # noqa: SIM115 (until the end)
    addresses = json.loads(stdin.readline())
    sys.modules["torch"] = None  # type: ignore[assignment]  # tensorboardX would load it: seconds, and 200 MB
    set_back(_NICENESS)
    orders = Orders()
    mirrors = [MIRRORS[key](StudyFolder(Path(folder)), address) for key, address in addresses.items()]
    threads = [threading.Thread(target=follow, args=(mirror, orders), daemon=True) for mirror in mirrors]
    for thread in threads:
        thread.start()
    while not orders.finishing and any(thread.is_alive() for thread in threads):
        if select.select([stdin], [], [], _LOOK_S)[0]:
            order = stdin.readline()
            seconds, answer = json.loads(order) if order else (ORPHAN_DRAIN_S, "")
            for mirror in mirrors:
                mirror.answer = answer
            orders.finish(seconds, patient=bool(order))
        elif os.getppid() != int(parent):  # a process forked from the driver can hold our standard input open
            orders.finish(ORPHAN_DRAIN_S, patient=False)
    set_back(0)  # no trial runs any more
    for thread in threads:
        thread.join(max(orders.deadline + _GRACE_S - time.monotonic(), 0.0) if orders.finishing else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
