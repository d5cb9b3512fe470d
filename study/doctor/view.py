"""The diagnosis as people and programs read it. Imports rich, no engine."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from study.console import SteadyConsole
from study.doctor import all_checks, gather, judge
from study.doctor.results import LEVELS, CheckResult
from study.errors import ExitCode
from study.space.spec import StudySpec

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
NARROW = 100
"""Terminals with fewer columns get the text below the name."""


def examine(
    console: Console,
    *,
    address: str | None,
    tracking_uri: str | None,
    out: Path,
    spec: StudySpec | None,
    as_json: bool,
) -> ExitCode:
    """Print the diagnosis, a line as soon as it is known, or all of it as JSON.

    Returns:
        `ExitCode.FINISHED`, or `ExitCode.MISTAKE` when something failed.
    """
    with working():
        around = gather(address=address, tracking_uri=tracking_uri, out=out, spec=spec)
    results = []
    for result in judge(around):
        results.append(result)
        if not as_json:
            print_result(console, result)
    if as_json:
        console.print(to_json(results), markup=False, highlight=False, soft_wrap=True)
    else:
        print_summary(console, results)
    failed = any(result.level == "fail" for result in results)
    return ExitCode.MISTAKE if failed else ExitCode.FINISHED


def to_json(results: Sequence[CheckResult]) -> str:
    """Return the results as a JSON list."""
    return json.dumps([asdict(result) for result in results], indent=1)


def print_result(console: Console, result: CheckResult) -> None:
    """Print one line, in a terminal folded under itself; in a file exactly one line."""
    if not console.is_terminal:
        fix = f". Fix: {result.fix}" if result.fix else ""
        line = f"{result.level:<4}  {result.name}: {result.found}{fix}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(width=4)
    narrow = console.width < NARROW
    if not narrow:
        table.add_column(width=max(len(f"{check.theme}: {check.name}") for check in all_checks()))
    table.add_column(overflow="fold")
    weight = "bold" if result.level != "ok" else ""
    text = Text(f"{result.name}: " if narrow else "", style=weight)
    text.append(result.found, style="not bold")
    if result.fix:
        text.append("\nFix: ", style="not bold " + STYLES[result.level].split()[-1])
        text.append(result.fix, style="not bold")
    name = [] if narrow else [Text(result.name, style=weight)]
    table.add_row(Text(result.level, style=STYLES[result.level]), *name, text)
    console.print(table)


def print_summary(console: Console, results: Sequence[CheckResult]) -> None:
    """Print how many results there are of each level."""
    counts = Counter(result.level for result in results)
    parts = [f"{counts[level]} {level}" for level in LEVELS if counts[level]]
    end = "a study would fail here, or its numbers be wrong" if counts["fail"] else "a study can run here"
    console.print(f"\n{', '.join(parts)}: {end}.", markup=False, highlight=False)


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Show in a terminal that nodes are being asked; not on standard output, which may be for programs."""
    console = SteadyConsole(stderr=True)
    with console.status("Asking every node") if console.is_terminal else contextlib.nullcontext():
        yield
