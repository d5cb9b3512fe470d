"""`doctor`: what would make a study fail here."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from study.console import say, terminal, write_json
from study.doctor import LEVELS
from study.errors import ExitCode
from study.options import Address, AsJson, Out, Set, Space, SpaceArgument, command_app, examples, load, one_space

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}

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

    With a space, also whether its largest trial fits.
    """
    spec = load(one_space(space_argument, space), set_, None) if space_argument or space else None
    from study.doctor import find_surroundings, judge

    console, waiting = terminal(), terminal(error=True)  # standard output may be for programs
    with waiting.status("Asking every node") if waiting.is_terminal else contextlib.nullcontext():
        around = find_surroundings(address=address, tracking_uri=tracking_uri, out=out, spec=spec)
    findings = []
    for finding in judge(around):
        findings.append(finding)
        if not as_json:
            level = (f"{finding.level:<4}  ", STYLES[finding.level])
            fix = f". Fix: {finding.fix}" if finding.fix else ""
            text = Text.assemble(level, (finding.check, "bold"), f": {finding.found}{fix}")
            console.print(text, soft_wrap=not console.is_terminal)  # in a file exactly one line
    counts = Counter(finding.level for finding in findings)
    if as_json:
        write_json([msgspec.structs.asdict(finding) for finding in findings])
    else:
        parts = ", ".join(f"{counts[level]} {level}" for level in LEVELS if counts[level])
        end = "a study would fail here, or its numbers be wrong" if counts["fail"] else "a study can run here"
        say(console, f"\n{parts}: {end}.")
    raise typer.Exit(ExitCode.MISTAKE if counts["fail"] else ExitCode.FINISHED)
