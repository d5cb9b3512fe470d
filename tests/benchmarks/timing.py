"""What benchmarks share: alternating order, children that end with us, spreads, the machine. No Ray, no torch."""

import os
import platform
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 30.0
"""How long a child may take to end its own processes."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCH_NUM_THREADS")
"""Taken from children: what is set outside would count for some of the compared programs and not for others."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median and range of repetitions."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float], *, digits: int) -> "Spread":
        values = list(values)
        low, middle, high = min(values), statistics.median(values), max(values)
        return cls(median=round(middle, digits), min=round(low, digits), max=round(high, digits))


def alternated(items: Sequence[Item], repetition: int) -> Sequence[Item]:
    """Return the items in the order of this repetition: every second one runs backwards."""
    return items if repetition % 2 == 0 else items[::-1]


def end_on_sigterm() -> None:
    """Let SIGTERM unwind the stack, so that children are ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def last_line_of(command: Sequence[str], *, home: Path) -> str:
    """Run a program of this checkout in a process of its own and return the last line that it prints.

    Exits with the program's own messages when it fails.

    Args:
        command: The program and its arguments.
        home: Its home directory, for libraries that leave folders there.
    """
    variables = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    variables |= {"PYTHONPATH": str(ROOT), "HOME": str(home)}
    with (home / "stderr.txt").open("w") as errors:
        child = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            said, _ = child.communicate()
        except BaseException:
            child.terminate()
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
    lines = said.splitlines()
    if child.returncode or not lines:
        messages = (home / "stderr.txt").read_text()
        sys.exit(
            f"{messages}\n{' '.join(command)}: must end well with a line of JSON, got exit code {child.returncode}."
        )
    return lines[-1]


def machine() -> dict[str, str | int | float | None]:
    """Return what a timing depends on: processor, cores, load before the benchmark, state of the checkout."""
    return {
        "cpu_model": _cpu_model(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "load_1min_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def versions(distributions: Iterable[str]) -> dict[str, str | None]:
    """Return the installed version of each distribution, None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return None


def _commit() -> str | None:
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
