"""The background process that keeps MLflow up to date while a driver works; started by `MirrorProcess`.

`python -m study.tracking.mirror_worker FOLDER --parent-pid PID --report-fd FD`. Standard input carries the
tracking URI as a line and later `{"finish_s": SECONDS}`; its end means that the driver is gone. JSON lines go
back through FD: `{"ready": true}`, `{"reason": …}` when MLflow is away, at last `{"behind": N, "reason": …}`.
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
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from study.errors import RecordError
from study.tracking.folder import StudyFolder
from study.tracking.mirror_cursor import CursorFile, count_behind
from study.tracking.mlflow_mirror import open_mirror, reason_of

if TYPE_CHECKING:
    from study.tracking.mirror import Mirror

_log = logging.getLogger("study.tracking.mirror_worker")

POLL_S = 1.0
"""Seconds between two looks at the records."""
LONGEST_DELAY_S = 15.0
"""Seconds between two attempts at an MLflow that stays away."""
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
    """The loop: look at the records, send, wait; and while MLflow is away, try again ever more rarely."""

    def __init__(self, folder: StudyFolder, tracking_uri: str, driver: Driver, report_fd: int) -> None:
        self._folder = folder
        self._file = CursorFile.of(folder, tracking_uri)
        self._lock = FileLock(self._file.lock)
        self._driver = driver
        self._report_fd = report_fd
        self._mirror: Mirror | None = None
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
        behind = self._mirror.behind if self._mirror else count_behind(self._folder.records, self._file.read())
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
        except Exception as error:  # noqa: BLE001 (MLflow, its databases and proxies raise every kind)
            self._failures += 1
            self._done = self._driver.gone
            delay = POLL_S if self._driver.finishing else min(2.0 ** (self._failures - 1), LONGEST_DELAY_S)
            self._away(reason_of(error), delay, error)
        else:
            if self._reason:
                _log.info("MLflow answers again")
            self._failures, self._reason = 0, ""

    def _work(self) -> None:
        """Send the next records; at the end of the records, finish if that was asked for."""
        if self._mirror is None:
            self._lock.acquire(timeout=0)
            self._mirror = open_mirror(self._folder, self._file)
        if not self._mirror.attached:
            self._mirror.attach()
            self._mirror.set_running()
            self._tell({"ready": True})
        sent = self._mirror.step()
        self._delay = 0.0 if sent else POLL_S
        if not sent and self._driver.finishing:
            self._mirror.close()
            self._done = True

    def _away(self, reason: str, delay: float, error: Exception | None = None) -> None:
        """Say once why nothing can be sent; the log gets the traceback of `error`, if given."""
        self._delay = delay
        if reason != self._reason:
            self._reason = reason
            _log.warning("%s", reason, exc_info=error)
            self._tell({"reason": reason})

    def _tell(self, message: dict[str, Any]) -> None:
        """Send one line to the driver, if it is there and listens: this process never waits for it."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._report_fd, json.dumps(message).encode() + b"\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the process."""
    parser = argparse.ArgumentParser(prog="python -m study.tracking.mirror_worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--report-fd", type=int, required=True)
    options = parser.parse_args(arguments)
    # Ctrl-C and a scheduler's SIGTERM reach every process of a job. The driver answers them, and its last
    # records must still be sent; when it dies without a word, the end of standard input ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    os.set_blocking(options.report_fd, False)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("study").setLevel(logging.INFO)
    with open(_STDIN, "rb", buffering=0, closefd=False) as stdin:
        tracking_uri = stdin.readline().decode().strip()
    Worker(StudyFolder(options.folder), tracking_uri, Driver(options.parent_pid), options.report_fd).run()


if __name__ == "__main__":
    main()
