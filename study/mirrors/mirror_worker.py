"""The background process that keeps one place up to date while a driver works; started by `MirrorProcess`.

`python -m study.mirrors.mirror_worker FOLDER --target NAME --parent-pid PID --report-fd FD`. Standard input
carries the URI as a line and later `{"finish_s": SECONDS}`; its end means that the driver is gone. JSON lines
go back through FD: `{"ready": true}`, `{"reason": …, "final": …}` when the place is away, at last
`{"behind": N, "reason": …}`.
Everything else is in the records, so this process may be killed at any time.
"""

import argparse
import contextlib
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from study.errors import RecordError, TrackingError
from study.harmless import mask_credentials, printable
from study.mirrors.mirror_target import TARGETS, AnyMirror, Target
from study.mirrors.mlflow_mirror import reason_of
from study.mirrors.tracking_uri import is_database_server
from study.records.folder import StudyFolder

_log = logging.getLogger("study.mirrors.mirror_worker")

POLL_S = 1.0
"""Seconds between two looks at the records."""
LONGEST_DELAY_S = 15.0
"""Seconds between two attempts at a place that stays away."""
ORPHAN_DRAIN_S = 10.0
"""Seconds that a mirror whose driver is gone goes on, before it leaves the study to that of a resume."""
_NICENESS = 10
_STDIN = 0


class Driver:
    """The process that started this one, as seen from here: its orders, and whether it lives."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._deadline: float | None = None
        self.gone = False

    @property
    def finishing(self) -> bool:
        """Whether to stop at the end of the records."""
        return self._deadline is not None

    @property
    def expired(self) -> bool:
        """Whether to stop now."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def wait(self, seconds: float) -> None:
        """Sleep, but no longer than until the next order or the deadline."""
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


class Worker:
    """The loop: look at the records, send, wait; and while the place is away, try again ever more rarely."""

    def __init__(self, folder: StudyFolder, target: Target, uri: str, driver: Driver, report_fd: int) -> None:
        self._folder, self._target, self._uri = folder, target, uri
        self._lock = FileLock(target.lock(folder, uri))
        self._driver = driver
        self._report_fd = report_fd
        self._mirror: AnyMirror | None = None
        self._delay = 0.0
        self._failures = 0
        self._reason = ""
        self._done = False

    def run(self) -> None:
        """Work until the driver asks to finish, or is gone."""
        while not self._done and not self._driver.expired:
            self._driver.wait(self._delay)
            self._turn()
        self._lock.release()
        behind = self._mirror.behind if self._mirror else self._target.count_behind(self._folder, self._uri)
        self._tell({"behind": behind, "reason": self._reason})

    def _turn(self) -> None:
        try:
            self._work()
        except RecordError as error:
            self._done = True
            self._away(str(error), 0)
        except Timeout:
            self._done = self._driver.gone
            self._away("the mirror of an earlier driver has not let go yet", POLL_S)
        except Exception as error:  # noqa: BLE001 (MLflow, databases and proxies raise every kind)
            self._failures += 1
            self._done = self._driver.gone
            delay = POLL_S if self._driver.finishing else min(2.0 ** (self._failures - 1), LONGEST_DELAY_S)
            final = self._mirror is None or not self._mirror.attached
            self._away(reason_of(error), delay, error, final=final and _is_final(error, self._uri))
        else:
            if self._reason:
                _log.info("%s answers again", self._target.name)
            self._failures, self._reason = 0, ""

    def _work(self) -> None:
        """Send the next records; at the end of the records, finish if that was asked for."""
        if self._mirror is None:
            self._lock.acquire(timeout=0)
            self._mirror = self._target.open(self._folder, self._uri)
        if not self._mirror.attached:
            self._mirror.attach()
            self._mirror.set_running()
            self._tell({"ready": True})
        sent = self._mirror.step()
        self._delay = 0.0 if sent else POLL_S
        if not sent and self._driver.finishing:
            self._mirror.close()
            self._done = True

    def _away(self, reason: str, delay: float, error: Exception | None = None, *, final: bool = False) -> None:
        """Say once why nothing can be sent; the log gets the traceback of `error`, if given.

        Args:
            reason: One line.
            delay: Seconds until the next attempt.
            error: The cause.
            final: Whether a first start should not wait for the next attempt.
        """
        self._delay = delay
        if reason != self._reason:
            self._reason = reason
            _log.warning("%s", reason, exc_info=error)
            self._tell({"reason": reason, "final": final})

    def _tell(self, message: dict[str, Any]) -> None:
        """Send one line to the driver, if it is there and listens: this process never waits for it."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._report_fd, json.dumps(message).encode() + b"\n")


def _is_final(error: Exception, uri: str) -> bool:
    """Return whether a database on a server has refused us, or Python lacks its driver: waiting helps in neither case.

    An SQLite database may be locked for a moment, and a tracking server was asked by the driver.
    """
    from sqlalchemy.exc import SQLAlchemyError

    return is_database_server(uri) and isinstance(error, TrackingError | SQLAlchemyError)


class _WithoutCredentials(logging.Formatter):
    """Masks passwords and control characters: MLflow's exceptions name the whole URI, and quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, or the lines of a traceback."""
        return printable(mask_credentials(super().format(record)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process."""
    parser = argparse.ArgumentParser(prog="python -m study.mirrors.mirror_worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", choices=sorted(TARGETS), required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--report-fd", type=int, required=True)
    options = parser.parse_args(arguments)
    # Ctrl-C and a scheduler's SIGTERM reach every process of a job. The driver answers them, and its last
    # records must still be sent; when it dies without a word, the end of standard input ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    os.set_blocking(options.report_fd, False)
    to_log = logging.StreamHandler(sys.stderr)
    to_log.setFormatter(_WithoutCredentials("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[to_log])
    logging.getLogger("study").setLevel(logging.INFO)
    with open(_STDIN, "rb", buffering=0, closefd=False) as stdin:
        uri = stdin.readline().decode().strip()
    folder, driver = StudyFolder(options.folder), Driver(options.parent_pid)
    Worker(folder, TARGETS[options.target], uri, driver, options.report_fd).run()


if __name__ == "__main__":
    main()
