"""What benchmarks share: turns, children that end with us, ratios, the machine. No Ray, no torch."""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from study.machine.host import cpu_model

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 30.0
"""How long a child may take to end its own processes."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCH_NUM_THREADS")
"""Taken from children: what is set outside would count for some of the compared programs and not for others."""

Run = Mapping[str, float]
"""What one run of a column took, by quantity."""


def in_turns(
    columns: Sequence[str], repetitions: int, run: Callable[[str, int], Run], *, shown: Sequence[str]
) -> dict[str, list[Run]]:
    """Run every column once in each repetition and print what it took; SIGTERM ends the children."""
    end_on_sigterm()
    runs: dict[str, list[Run]] = {name: [] for name in columns}
    print(f"{'':<26}" + "".join(f"{name:>16}" for name in shown), flush=True)
    for repetition in range(repetitions):
        for name in columns if repetition % 2 == 0 else columns[::-1]:  # every second one runs backwards
            runs[name].append(run(name, repetition))
            taken = "".join(f"{runs[name][-1].get(key, float('nan')):>16,.2f}" for key in shown)
            print(f"{name:<26}{taken}", flush=True)
    return runs


def ratios(
    runs: Mapping[str, Sequence[Run]], pairs: Mapping[tuple[str, str], float | None], quantity: str
) -> dict[str, dict[str, float | None]]:
    """Print and return the ratios of a quantity over the repetitions: median, least, largest, and the least wanted."""
    found: dict[str, dict[str, float | None]] = {}
    for (over, under), target in pairs.items():
        if runs.get(over) and runs.get(under):
            every = [a[quantity] / b[quantity] for a, b in zip(runs[over], runs[under], strict=True)]
            middle, least, most = (round(each, 3) for each in (statistics.median(every), min(every), max(every)))
            name, wanted = f"{over} / {under}, {quantity}", f", target at least {target:g}" if target else ""
            print(f"{name}: {middle:.2f} ({least:.2f} to {most:.2f}){wanted}")
            found[name] = {"median": middle, "min": least, "max": most, "target": target}
    return found


def end_on_sigterm() -> None:
    """Let SIGTERM unwind the stack, so that children are ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def as_words(options: argparse.Namespace, *names: str) -> list[str]:
    """Return some options as they are typed."""
    return [word for name in names for word in (f"--{name}", str(getattr(options, name)))]


def in_a_process(module: str, *words: str) -> dict[str, Any]:
    """Return what a module of the benchmarks prints last, in a process and a home folder of its own.

    Exits with the program's own messages when it fails.
    """
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *words]
    variables = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as home, (Path(home) / "stderr.txt").open("w+") as errors:
        variables |= {"PYTHONPATH": str(ROOT), "HOME": home}
        child = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            said, _ = child.communicate()
        finally:
            child.terminate()
            child.wait(GRACE_S)
        lines = said.splitlines()
        if child.returncode or not lines:
            errors.seek(0)
            text = f"{errors.read()}\n{' '.join(command)}: must end well with a line of JSON, got exit code"
            sys.exit(f"{text} {child.returncode}.")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def about(*distributions: str) -> dict[str, Any]:
    """Return what a timing depends on: processor, cores, load, state of the checkout, versions of what is installed."""
    describe = ["git", "--no-optional-locks", "describe", "--always", "--dirty"]
    installed = {each.metadata["Name"].lower(): each.version for each in metadata.distributions()}
    return {
        "cpu_model": cpu_model(),
        "num_cpus": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip(),
        "versions": {name: installed.get(name) for name in distributions},
    }
