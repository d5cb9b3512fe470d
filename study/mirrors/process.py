"""The process that follows a study's records for all its mirrors while a driver works, from both of its sides.

The driver calls neither MLflow nor a database: it writes records, and one process of its own sends them, with a thread
for each place, so that one that is away holds up no other. The process can hang or be killed without harm to the
driver: the records hold all that is to be sent.

`python -m study.mirrors.process FOLDER --parent-pid PID`. Standard input carries a line of JSON, kind of mirror ->
address, and later `{"finish_s": SECONDS}`; its end means that the driver is gone. Standard output carries lines of JSON
back, each with the `mirror` that it is about: `ready`, what is known when its place is away (`reason`, `final`,
`error`), at last `behind` and `reason`.
"""

import argparse
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from study.errors import RecordError, TrackingError
from study.harmless import mask_credentials, printable
from study.machine.processes import set_back
from study.mirrors.follower import HeldError, Mirror, MirrorReport, Orders, follow
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
_LIVES = 4
"""Processes that `finish` tries: one that dies at once whenever it is started must not be started for ever."""
_GRACE_S = 2.0
"""Seconds beyond a deadline, before the process is killed."""
_LOOK_S = 0.2
"""Seconds between two checks of what may have changed."""
_NICENESS = 10
"""Recording must not take time from trials that are timed."""
_STDIN, _STDOUT, _STDERR = range(3)
_SOURCES = Path(__file__).resolve().parents[2]


# --- as the driver sees it -------------------------------------------------------------------------------------------


class MirrorProcess:
    """The mirrors of one study. They end with `finish`, and also when the driver ends in any other way.

    Attributes:
        mirrors: Every mirror, by the key of its kind.
    """

    def __init__(self, folder: StudyFolder, addresses: Mapping[str, str]) -> None:
        """Start the process; returns at once.

        Args:
            folder: The study.
            addresses: Kind of mirror -> address, which has been checked, as by `Mirror.check`.
        """
        self.mirrors = {key: MIRRORS[key](folder, address) for key, address in addresses.items()}
        self._folder, self._news = folder, threading.Condition()
        self._said: dict[str, dict[str, Any]] = {key: {} for key in addresses}
        """What the process has said last of each mirror."""
        self._asked = False
        """Whether the process has the order to finish."""
        self._silent: subprocess.Popen[bytes] | None = None
        """The process that has ended."""
        self._process = self._start(addresses) if addresses else None

    @classmethod
    def of_study(cls, folder: StudyFolder) -> "MirrorProcess":
        """Start the process of all the places that a study has."""
        found = {key: kind.address_of(folder) for key, kind in MIRRORS.items()}
        return cls(folder, {key: address for key, address in found.items() if address is not None})

    @property
    def pid(self) -> int | None:
        """The process id; None when there is no process."""
        return None if self._process is None else self._process.pid

    def wait_ready(self, key: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the study exists in a place, as experiment and run in MLflow: it has been written to.

        For a first start, where a wrong address should end the command. A resume need not insist: the process goes on
        trying by itself.

        Raises:
            TrackingError: It does not exist after `timeout_s` seconds; says what the process ran into.
        """
        said, deadline = self._said[key], time.monotonic() + timeout_s
        self._await(lambda: said.get("ready") or said.get("final"), lambda: deadline)
        if not said.get("ready"):
            nothing = TimeoutError(f"no answer within {timeout_s:g} s")
            raise TrackingError(**(said.get("error") or _parts(self.mirrors[key], nothing)))

    def ask_to_finish(self, timeout_s: float) -> None:
        """Tell the process to send what is left within `timeout_s` seconds; `finish` waits for it."""
        if self._process is not None:
            self._asked = True
            _write(self._process, {"finish_s": timeout_s})

    def finish(self, timeout_s: float, *, cut: Callable[[], float] = lambda: math.inf) -> tuple[MirrorReport, ...]:
        """Let the process send what is left, for at most `timeout_s` seconds, and end it.

        A process that was killed, before or meanwhile, is replaced. A second call returns the same reports.

        Args:
            timeout_s: How long to wait.
            cut: Returns when to end the process in any case, on the clock of `time.monotonic`; may change meanwhile.
        """
        deadline = time.monotonic() + timeout_s

        def over() -> float:
            return min(deadline + _GRACE_S, cut())

        for life in range(_LIVES):
            if self._process is None or not (left := self._unfinished()):
                break
            if life > 0:
                _end(self._process, over())
                self._process = self._start({key: self.mirrors[key].address for key in left})
            if life > 0 or not self._asked:
                self.ask_to_finish(max(deadline - time.monotonic(), 0.0))
            self._await(lambda: not self._unfinished(), over)
            # Silence before the deadline is the end of a killed process, which the kernel may not show as ended yet.
            if time.monotonic() >= min(deadline, cut()):
                break
        if self._process is not None:
            _end(self._process, cut())
            self._process = None
        for key in self._unfinished():
            reason = self._said[key].get("reason") or f"the mirror did not end within {timeout_s:g} s"
            behind = MIRRORS[key](self._folder, self.mirrors[key].address).behind
            self._said[key] |= {"behind": behind, "reason": reason}
        return tuple(
            MirrorReport(name=self.mirrors[key].name, behind=said["behind"], reason=said["reason"])
            for key, said in self._said.items()
        )

    def _unfinished(self) -> list[str]:
        return [key for key, said in self._said.items() if "behind" not in said]

    def _await(self, done: Callable[[], Any], until: Callable[[], float]) -> None:
        """Wait until something is done, but not beyond a time, which may change meanwhile, nor for an ended process."""
        with self._news:
            while not done() and self._silent is not self._process and (left := until() - time.monotonic()) > 0:
                self._news.wait(min(left, _LOOK_S))

    def _start(self, addresses: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        try:
            log = self._folder.mirror_log.open("ab")
        except OSError as error:
            where, rule = str(self._folder.mirror_log), f"must be a file that can be written ({error.strerror})"
            fix = "Check its permissions, or remove what is in its place."
            raise RecordError(where=where, rule=rule, fix=fix) from error
        path = os.pathsep.join(filter(None, [str(_SOURCES), os.environ.get("PYTHONPATH")]))
        options = [str(self._folder.path), "--parent-pid", str(os.getpid())]
        with log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "study.mirrors.process", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal does not reach it
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        _write(process, addresses)  # not as arguments: they can hold a password
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        return process

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        """Take note of what a process says, until it has ended."""
        assert process.stdout is not None  # opened as a pipe
        with process.stdout:
            for line in process.stdout:
                message = json.loads(line)
                with self._news:
                    self._said[message.pop("mirror")] |= message
                    self._news.notify_all()
        with self._news:
            self._silent = process
            self._news.notify_all()


def _write(process: "subprocess.Popen[bytes]", content: Mapping[str, Any]) -> None:
    """Send one line; a process that died does not read it, and its silence tells."""
    assert process.stdin is not None  # opened as a pipe
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(content).encode() + b"\n")
        process.stdin.flush()


def _end(process: "subprocess.Popen[bytes]", until: float) -> None:
    """End a process, if it does not end by itself now."""
    assert process.stdin is not None  # opened as a pipe
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(max(min(_GRACE_S, until - time.monotonic()), 0.0))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _parts(mirror: Mirror, error: Exception) -> dict[str, str]:
    """Return the parts of what an error of a place means, without credentials."""
    refused = mirror.refusal(error)
    return {name: mask_credentials(getattr(refused, name)) for name in ("where", "rule", "got", "fix")}


# --- in the process ---------------------------------------------------------------------------------------------------


class _WithoutCredentials(logging.Formatter):
    """Masks passwords and control characters: MLflow's exceptions name the whole URI, and quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or the lines of a traceback."""
        return printable(mask_credentials(super().format(record)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process."""
    parser = argparse.ArgumentParser(prog="python -m study.mirrors.process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parent-pid", type=int, required=True)
    options = parser.parse_args(arguments)
    # Ctrl-C and a scheduler's SIGTERM reach every process of a job. The driver answers them, and its last
    # records must still be sent; when it dies without a word, the end of standard input ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    messages = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)  # what else is printed goes to the log
    os.set_blocking(messages, False)
    to_log = logging.StreamHandler(sys.stderr)
    to_log.setFormatter(_WithoutCredentials("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[to_log])
    logging.getLogger("study").setLevel(logging.INFO)
    with open(_STDIN, "rb", buffering=0, closefd=False) as stdin:
        addresses = json.loads(stdin.readline())
    gone = threading.Event()
    orders = Orders(gives_up=lambda error: gone.is_set())  # a resume will go on
    folder = StudyFolder(options.folder)
    threads = [_Thread(MIRRORS[key](folder, addresses[key]), orders, messages) for key in addresses]
    for thread in threads:
        thread.start()
    set_aside = False
    while not orders.finishing and any(thread.is_alive() for thread in threads):
        if not set_aside and all(thread.settled.is_set() for thread in threads):
            set_aside = True
            set_back(_NICENESS)
        if select.select([_STDIN], [], [], _LOOK_S)[0]:
            order = os.read(_STDIN, 4096)
        elif os.getppid() != options.parent_pid:  # a process forked from the driver can hold our standard input open
            order = b""
        else:
            continue
        if not order:
            gone.set()
        orders.finish(json.loads(order)["finish_s"] if order else ORPHAN_DRAIN_S)
        set_back(0)  # no trial runs any more
    for thread in threads:
        thread.join(max(orders.deadline + _GRACE_S - time.monotonic(), 0.0) if orders.finishing else None)


class _Thread(threading.Thread):
    """Follows the records for one mirror, and tells the driver what becomes of it."""

    def __init__(self, mirror: Mirror, orders: Orders, messages: int) -> None:
        super().__init__(daemon=True, name=mirror.key)  # one that hangs must not keep the process
        self._mirror, self._orders, self._messages = mirror, orders, messages
        self.settled = threading.Event()
        """Whether its engine has been imported: the place has answered, or it is known that it does not."""

    def run(self) -> None:
        """Follow."""
        report, _ = follow(self._mirror, self._orders, on_ready=self._ready, on_away=self._away)
        self._tell(behind=report.behind, reason=report.reason)
        self.settled.set()

    def _ready(self) -> None:
        self._tell(ready=True, reason="")
        self.settled.set()

    def _away(self, reason: str, error: Exception) -> None:
        # A lock is let go, of the mirror of an earlier driver or of a database in use: that is worth waiting for.
        final = not isinstance(error, HeldError) and "locked" not in reason
        self._tell(reason=reason, final=final, error=_parts(self._mirror, error))
        self.settled.set()

    def _tell(self, **message: Any) -> None:
        """Send one line to the driver, if it is there and listens: this process never waits for it."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._messages, json.dumps({"mirror": self._mirror.key, **message}).encode() + b"\n")


if __name__ == "__main__":
    main()
