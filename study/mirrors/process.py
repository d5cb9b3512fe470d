"""The process that follows a study's records for all its mirrors while a driver works, from both of its sides.

The driver calls neither MLflow nor a database: it writes records, and one process of its own sends them, with a thread
for each place, so that one that is away holds up no other. The process can hang or be killed without harm to the
driver: the records hold all that is to be sent.

`python -m study.mirrors.process FOLDER PARENT`. Standard input carries a line of JSON, kind of mirror -> address, and
later `{"finish_s": SECONDS}`; its end means that the driver is gone. Standard output carries lines of JSON back, each
with the `mirror` that it is about: `ready`, or the parts of the `error` that keeps it from that, at last `behind` and
`reason`.
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
from pathlib import Path
from typing import Any

from study.errors import RecordError, TrackingError
from study.harmless import mask_credentials, printable
from study.machine.processes import set_back
from study.mirrors.follower import HeldError, Mirror, MirrorReport, Orders, follow
from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.optuna_storage import OptunaMirror
from study.mirrors.tensorboard import TensorBoardMirror
from study.mirrors.tracking_uri import reason_of, refusal
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
        self._folder = folder
        self._said: dict[str, dict[str, Any]] = {key: {} for key in addresses}
        """What the process has said of each mirror."""
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
        self._listen(lambda: said.get("ready") or said.get("final"), lambda: deadline)
        if not said.get("ready"):
            nothing = TimeoutError(f"no answer within {timeout_s:g} s")
            raise TrackingError(**(said.get("error") or _parts(self.mirrors[key], nothing)))

    def finish(self, timeout_s: float, *, cut: Callable[[], float] = lambda: math.inf) -> tuple[MirrorReport, ...]:
        """Let the process send what is left, for at most `timeout_s` seconds, and end it.

        A process that was killed, before or meanwhile, is replaced once. A second call returns the same reports.

        Args:
            timeout_s: How long to wait.
            cut: Returns when to end the process in any case, on the clock of `time.monotonic`; may change meanwhile.
        """
        deadline = time.monotonic() + timeout_s

        def unfinished() -> dict[str, str]:
            return {key: self.mirrors[key].address for key, said in self._said.items() if "behind" not in said}

        for again in (False, True):
            if self._process is None or not unfinished():
                break
            if again:
                _end(self._process)
                self._process = self._start(unfinished())
            _write(self._process, {"finish_s": max(deadline - time.monotonic(), 0.0)})
            self._listen(lambda: not unfinished(), lambda: min(deadline + _GRACE_S, cut()))
            if time.monotonic() >= min(deadline, cut()):
                break
        if self._process is not None:
            _end(self._process)
            self._process = None
        for key, address in unfinished().items():
            reason = reason_of(TrackingError(**error)) if (error := self._said[key].get("error")) else ""
            behind = MIRRORS[key](self._folder, address).behind
            self._said[key] |= {"behind": behind, "reason": reason or f"it did not end within {timeout_s:g} s"}
        return tuple(
            MirrorReport(name=self.mirrors[key].name, behind=said["behind"], reason=said["reason"])
            for key, said in self._said.items()
        )

    def _start(self, addresses: Mapping[str, str]) -> "subprocess.Popen[bytes]":
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
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal does not reach it
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            )
        _write(process, addresses)  # not as arguments: they can hold a password
        return process

    def _listen(self, done: Callable[[], Any], until: Callable[[], float]) -> None:
        """Take note of what the process says, until something is done, but not beyond a time, which may change."""
        assert self._process is not None
        assert self._process.stdout is not None  # opened as a pipe
        while not done() and (left := until() - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], min(left, _LOOK_S))[0]:
                if not (line := self._process.stdout.readline()):
                    return  # it has ended
                message = json.loads(line)
                self._said[message.pop("mirror")] |= message


def _write(process: "subprocess.Popen[bytes]", content: Mapping[str, Any]) -> None:
    """Send one line; a process that died does not read it, and its silence tells."""
    assert process.stdin is not None  # opened as a pipe
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(content).encode() + b"\n")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process, if it does not end by itself now: nothing is lost by it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LOOK_S)
    process.kill()
    process.wait()


def _parts(mirror: Mirror, error: Exception) -> dict[str, str]:
    """Return the parts of what an error of a place means, without credentials."""
    refused = refusal(error, mirror.address, mirror.place)
    return {name: mask_credentials(getattr(refused, name)) for name in ("where", "rule", "got", "fix")}


# --- in the process ---------------------------------------------------------------------------------------------------


class _WithoutCredentials(logging.Formatter):
    """Masks passwords and control characters: MLflow's exceptions name the whole URI, and quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or the lines of a traceback."""
        return printable(mask_credentials(super().format(record)))


def _run(mirror: Mirror, orders: Orders, messages: int) -> None:
    """Follow the records for one mirror, and tell the driver what becomes of it."""

    def say(**message: Any) -> None:
        """Send one line to the driver, if it is there and listens: this process never waits for it."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(messages, json.dumps({"mirror": mirror.key, **message}).encode() + b"\n")

    def tell(error: Exception | None) -> None:
        if error is None:
            say(ready=True)
        else:
            # A lock is let go, of the mirror of an earlier driver or of a database in use: that is worth waiting for.
            final = not isinstance(error, HeldError) and "locked" not in str(error)
            say(final=final, error=_parts(mirror, error))

    report = follow(mirror, orders, tell)
    say(behind=report.behind, reason=report.reason)


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
    stdin, stdout, stderr = range(3)
    messages = os.dup(stdout)
    os.dup2(stderr, stdout)  # what else is printed goes to the log
    os.set_blocking(messages, False)
    to_log = logging.StreamHandler(sys.stderr)
    to_log.setFormatter(_WithoutCredentials("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[to_log])
    logging.getLogger("study").setLevel(logging.INFO)
    with open(stdin, "rb", buffering=0, closefd=False) as first:
        addresses = json.loads(first.readline())
    set_back(_NICENESS)
    sys.modules["torch"] = None  # type: ignore[assignment]  # tensorboardX would load it: seconds, and 200 MB
    orders, threads = Orders(), []
    for key, address in addresses.items():
        mirror = MIRRORS[key](StudyFolder(Path(folder)), address)
        threads.append(threading.Thread(target=_run, args=(mirror, orders, messages), daemon=True))
    for thread in threads:
        thread.start()
    while not orders.finishing and any(thread.is_alive() for thread in threads):
        order = None
        if select.select([stdin], [], [], _LOOK_S)[0]:
            order = os.read(stdin, 4096)
        elif os.getppid() != int(parent):  # a process forked from the driver can hold our standard input open
            order = b""
        if order is not None:
            orders.finish(json.loads(order)["finish_s"] if order else ORPHAN_DRAIN_S, gone=not order)
            set_back(0)  # no trial runs any more
    for thread in threads:
        thread.join(max(orders.deadline + _GRACE_S - time.monotonic(), 0.0) if orders.finishing else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
