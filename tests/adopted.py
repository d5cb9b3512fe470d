"""Reads many scripts in one test: RLlib is imported once, and each script runs in a fork of that process."""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from study.machine import apart

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["study.adopted.finding"])


def _read(place: str, folder: str) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(f"{place}/output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    sys.path.insert(0, folder)
    apart.answer_call(place)


@contextlib.contextmanager
def forked_readings() -> Iterator[None]:
    """Let `read_script` fork one process that has imported RLlib, in place of a new interpreter for each script."""

    def run(place: Path, limit_s: float) -> int | None:
        process = _FORKS.Process(target=_read, args=(str(place), str(Path.cwd())))
        process.start()
        process.join()
        return process.exitcode

    before, apart._run = apart._run, run
    try:
        yield
    finally:
        apart._run = before
