"""`python -m study seams`: whether the engines have all that this project uses beyond their public interfaces."""

import typer

from study.console import say, table, terminal, write_json
from study.options import AsJson, Command, command_app, examples
from study.seams.base import SeamState, states

app = command_app()


@app.command(cls=Command, epilog=examples("python -m study seams", "python -m study seams --json"))
def seams(as_json: AsJson = False) -> None:
    """Check the patches and private parts of Ray, RLlib, torch and MLflow that this project relies on."""
    found = list(states())
    if as_json:
        write_json([_as_json(state) for state in found])
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
    console, rows = terminal(), []
    for state in found:
        verdict = "holds" if state.holds else "BREAKS"
        if state.holds and not state.tested:
            verdict = f"holds (tested with {state.seam.versions})"
        why = f"{state.seam.does[0].upper()}{state.seam.does[1:]}. {state.seam.why}"
        if not state.holds:
            why = f"{'; '.join(state.missing)}. {why}"
        rows.append((state.seam.name, f"{state.seam.distribution} {state.version}", verdict, why))
    headings = ("seam", "engine", "state", "what is done there, and why")
    console.print(table(headings, rows, words=headings[:2], fold=headings[2:], width=console.width))
    say(console, f"{len(found)} seams, {sum(not state.holds for state in found)} break.")
