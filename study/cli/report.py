"""`report`: reads a study and writes its report. A thin call into `analysis`."""

import re
from pathlib import Path
from typing import Annotated

import typer

from analysis.load import open_study
from analysis.opened import Study
from analysis.report import PAGE, make_report, parse_formats, write
from study.cli.display import print_answer
from study.console import say, terminal
from study.options import command_app, examples
from study.records.folder import NAME, StudyFolder

STUDIES = Path("studies")
"""Where the report of a study in MLflow goes: `studies/<name>/report`."""

app = command_app()


@app.command(
    epilog=examples(
        "python -m study report studies/quickstart",
        "python -m study report studies/quickstart --format html,csv --out published",
        "python -m study report sqlite:///mlflow.db --study quickstart",
    ),
)
def report(
    study: Annotated[
        str,
        typer.Argument(help="Folder of the study, or a tracking URI: sqlite:///mlflow.db, http://…."),
    ],
    format_: Annotated[
        str, typer.Option("--format", help="Some of html, csv, tex; tex gives LaTeX tables and PDF figures.")
    ] = "html,csv",
    out: Annotated[Path | None, typer.Option(help="Folder; by default `report` in the study's folder.")] = None,
    name: Annotated[str | None, typer.Option("--study", help="Study in MLflow, by name or id.")] = None,
    price_per_cpu_hour: Annotated[
        float | None,
        typer.Option(min=0, help="What a CPU-hour costs, in any currency: the price list then has costs."),
    ] = None,
) -> None:
    """Write the report of a study: one HTML page, tables and figures. `sync` brings it to MLflow."""
    chosen = parse_formats(format_)
    folder = None if "://" in study else StudyFolder(Path(study))
    data = open_study(study, study=name)
    if out is None:
        out = folder.report if folder else folder_of_experiment(data.name)
    made = make_report(Study(data), price_per_cpu_hour=price_per_cpu_hour)
    files = write(made, out, chosen)
    console, page = terminal(), next((file for file in files if file.name == PAGE), None)
    print_answer(console, made.answer)
    say(console, f"\nThe page: {page}" if page else f"\nThe files: {out}")


def folder_of_experiment(name: str) -> Path:
    """Return the folder for the report of a study in MLflow, whose experiment may have any name, such as `..`."""
    return STUDIES / ("_" + re.sub(r"[^\w.-]+", "_", name) if not NAME.fullmatch(name) else name) / "report"
