"""`python -m study seams`: whether the engines have all that this project uses beyond their public interfaces."""

import typer

from study.console import say, table, terminal, write_json
from study.options import AsJson, command_app, examples
from study.seams.base import ENGINES, Seam, seams_of

app = command_app()


@app.command(epilog=examples("python -m study seams", "python -m study seams --json"))
def seams(as_json: AsJson = False) -> None:
    """Check the patches and private parts of Ray, RLlib, torch and MLflow that this project relies on."""
    found = [(seam, seam.missing()) for seam in seams_of(*ENGINES)]
    if as_json:
        write_json([_as_json(seam, missing) for seam, missing in found])
    else:
        _print_table(found)
    if any(missing for _, missing in found):
        raise typer.Exit(1)


def _as_json(seam: Seam, missing: list[str]) -> dict[str, object]:
    return {
        "seam": seam.name,
        "engine": seam.distribution,
        "version": seam.version,
        "tested_versions": seam.versions,
        "tested": seam.is_tested,
        "holds": not missing,
        "missing": missing,
        "does": seam.does,
        "why": seam.why,
        "upstream": seam.upstream,
    }


def _print_table(found: list[tuple[Seam, list[str]]]) -> None:
    console, rows = terminal(), []
    for seam, missing in found:
        verdict = "BREAKS" if missing else "holds" if seam.is_tested else f"holds (tested with {seam.versions})"
        why = f"{seam.does[0].upper()}{seam.does[1:]}. {seam.why}"
        if missing:
            why = f"{'; '.join(missing)}. {why}"
        rows.append((seam.name, f"{seam.distribution} {seam.version}", verdict, why))
    headings = ("seam", "engine", "state", "what is done there, and why")
    console.print(table(headings, rows, words=headings[:2], fold=headings[2:], width=console.width))
    say(console, f"{len(found)} seams, {sum(bool(missing) for _, missing in found)} break.")
