"""Reads many scripts in one test: RLlib is imported once, and each script runs in a fork of that process."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from study.adopted import loading

_SERVER = """
import os, sys
from study.adopted import finding
print("ready", flush=True)
for line in sys.stdin:
    place, folder = line.strip().split("\t")
    pid = os.fork()
    if pid == 0:
        os.setsid()
        output = os.open(os.path.join(place, "output.txt"), os.O_WRONLY | os.O_CREAT)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        sys.path[0] = folder
        finding.main(place)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@contextlib.contextmanager
def forked_readings() -> Iterator[None]:
    """Let `read_script` fork one process that has imported RLlib, in place of a new interpreter for each script."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        assert server.stdout.readline() == "ready\n"

        def run(place: Path) -> int:
            server.stdin.write(f"{place}\t{Path.cwd()}\n")  # type: ignore[union-attr]
            server.stdin.flush()  # type: ignore[union-attr]
            return int(server.stdout.readline())  # type: ignore[union-attr]

        before, loading._run = loading._run, run
        try:
            yield
        finally:
            loading._run = before
            server.stdin.close()
