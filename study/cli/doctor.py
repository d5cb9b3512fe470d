"""`doctor`: what would make a study fail here."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from study.console import NARROW, say, terminal, write_json
from study.doctor.results import LEVELS, CheckResult
from study.errors import ExitCode
from study.options import (
    Address,
    AsJson,
    Out,
    Set,
    Space,
    SpaceArgument,
    command_app,
    examples,
    load,
    one_space,
)

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

NAME_WIDTH = 28
"""Columns of the longest name of a check."""

app = command_app()


@app.command(
    epilog=examples("python -m study doctor", "python -m study doctor scaling.yaml --address auto --json"),
)
def doctor(
    space_argument: SpaceArgument = None,
    space: Space = None,
    address: Address = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow: sqlite:///mlflow.db (default), http://…")] = None,
    out: Out = Path("studies"),
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Say what would make a study fail or its numbers wrong here, and what to do; exit code 2 if a check failed.

    With a space, also whether its largest trial fits and its environment runs.
    """
    named = space_argument or space
    spec = load(one_space(space_argument, space), set_, None, None) if named else None
    from study.doctor.asking import find_surroundings
    from study.doctor.checks import judge

    console = terminal()
    with _waiting():
        around = find_surroundings(address=address, tracking_uri=tracking_uri, out=out, spec=spec)
    results = []
    for result in judge(around):
        results.append(result)
        if not as_json:
            print_result(console, result)
    if as_json:
        write_json([asdict(result) for result in results])
    else:
        print_summary(console, results)
    failed = any(result.level == "fail" for result in results)
    raise typer.Exit(ExitCode.MISTAKE if failed else ExitCode.FINISHED)


def print_result(console: Console, result: CheckResult) -> None:
    """Print one line, in a terminal wrapped under itself; in a file exactly one line."""
    if not console.is_terminal:
        fix = f". Fix: {result.fix}" if result.fix else ""
        say(console, f"{result.level:<4}  {result.name}: {result.found}{fix}")
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=4)
    narrow = console.width < NARROW
    if not narrow:
        grid.add_column(width=NAME_WIDTH)
    grid.add_column(overflow="fold")
    weight = "bold" if result.level != "ok" else ""
    text = Text(f"{result.name}: " if narrow else "", style=weight)
    text.append(result.found, style="not bold")
    if result.fix:
        text.append("\nFix: ", style="not bold " + STYLES[result.level].split()[-1])
        text.append(result.fix, style="not bold")
    name = [] if narrow else [Text(result.name, style=weight)]
    grid.add_row(Text(result.level, style=STYLES[result.level]), *name, text)
    console.print(grid)


def print_summary(console: Console, results: Sequence[CheckResult]) -> None:
    """Print how many results there are of each level."""
    counts = Counter(result.level for result in results)
    parts = [f"{counts[level]} {level}" for level in LEVELS if counts[level]]
    end = "a study would fail here, or its numbers be wrong" if counts["fail"] else "a study can run here"
    say(console, f"\n{', '.join(parts)}: {end}.")


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    """Show in a terminal that something is going on; not on standard output, which may be for programs."""
    console = terminal(error=True)
    with console.status("Asking every node") if console.is_terminal else contextlib.nullcontext():
        yield
