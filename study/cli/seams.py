"""`python -m study seams`: whether the engines have all that this project uses beyond their public interfaces."""

import json
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from study.console import SteadyConsole
from study.seams.base import SeamState, states


def seams(as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False) -> None:
    """Check the patches and private parts of Ray, RLlib, torch and MLflow that this project relies on."""
    found = list(states())
    if as_json:
        typer.echo(json.dumps([_as_json(state) for state in found], indent=2))
    else:
        _print_table(found)
    if not all(state.holds for state in found):
        raise typer.Exit(1)


def _as_json(state: SeamState) -> dict[str, object]:
    seam = state.seam
    return {
        "seam": seam.name,
        "engine": seam.distribution,
        "version": state.version,
        "tested_versions": seam.versions,
        "tested": state.tested,
        "holds": state.holds,
        "missing": list(state.missing),
        "does": seam.does,
        "why": seam.why,
        "upstream": seam.upstream,
    }


def _print_table(found: list[SeamState]) -> None:
    console = SteadyConsole()
    table = Table(box=box.SIMPLE)
    for title in ("seam", "engine", "state"):
        table.add_column(title, no_wrap=True)
    table.add_column("what is done there, and why")
    for state in found:
        verdict = "holds" if state.holds else "BREAKS"
        if state.holds and not state.tested:
            verdict = f"holds (tested with {state.seam.versions})"
        why = f"{state.seam.does[0].upper()}{state.seam.does[1:]}. {state.seam.why}"
        if not state.holds:
            why = f"{'; '.join(state.missing)}. {why}"
        table.add_row(state.seam.name, f"{state.seam.distribution} {state.version}", verdict, why)
    console.print(table)
    broken = [state for state in found if not state.holds]
    console.print(f"{len(found)} seams, {len(broken)} break.")
