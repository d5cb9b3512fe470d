"""`report`: reads a study, writes its report, hands it to MLflow. A thin call into `analysis`.

A report goes on without MLflow, and says why.
"""

import re
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from analysis.load import StudyData, open_study
from analysis.opened import Study
from analysis.report import Report, find_clip, make_report, parse_formats, write
from analysis.report.writing import PAGE
from study.cli.tables import print_answer
from study.console import say, terminal
from study.errors import StudyError
from study.harmless import mask_credentials
from study.mirrors.mlflow_report import ARTIFACTS, NOT_ASKED, asked_place, publish_answer
from study.mirrors.mlflow_report import attach as attach_files
from study.options import command_app, examples, study_folders, wrong_option
from study.records.folder import NAME, StudyFolder

FOLDER = "report"
"""Inside of the study's folder."""
STUDIES = Path("studies")
"""Where the report of a study in MLflow goes: `studies/<name>/report`."""

app = command_app()


@app.command(
    epilog=examples(
        "python -m study report studies/quickstart --open",
        "python -m study report studies/quickstart --format html,csv --out published",
        "python -m study report sqlite:///mlflow.db --study quickstart",
    ),
)
def report(
    study: Annotated[
        str,
        typer.Argument(
            help="Folder of the study, or a tracking URI: sqlite:///mlflow.db, http://….", autocompletion=study_folders
        ),
    ],
    format_: Annotated[
        str, typer.Option("--format", help="Some of html, md, csv, tex; tex gives LaTeX tables and PDF figures.")
    ] = "html,md,csv",
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder; by default `report` in the study's folder.")] = None,
    attach: Annotated[
        bool, typer.Option("--attach", help="Give the files to the MLflow that the study was started with, too.")
    ] = False,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow whose run of the study gets them; also MLFLOW_TRACKING_URI.")
    ] = None,
    name: Annotated[str | None, typer.Option("--study", help="Study in MLflow, by name or id.")] = None,
    price_per_cpu_hour: Annotated[
        float | None,
        typer.Option(min=0, help="What a CPU-hour costs, in any currency: the price list then has costs."),
    ] = None,
) -> None:
    """Write the report of a study: one HTML page, tables and figures; on request attach it to the MLflow run."""
    chosen = parse_formats(format_)
    if open_ and "html" not in chosen:
        fix = "Add html to --format."
        raise wrong_option("--open", rule="needs the format html", got=f"--format {format_}", fix=fix)
    folder = None if "://" in study else StudyFolder(Path(study))
    place = asked_place(folder, tracking_uri, attach=attach) if folder else tracking_uri or study
    data = open_study(study, study=name)
    if out is None:
        out = folder.path / FOLDER if folder else folder_of_experiment(data.name)
    clip = None if folder is None else find_clip(folder.path, str(data.sheet.get("study_id")))
    made = make_report(Study(data), clip=clip, price_per_cpu_hour=price_per_cpu_hour)
    files = write(made, out, chosen)
    attached = _attach(made, data, files, out, place)
    console, page = terminal(), next((file for file in files if file.name == PAGE), None)
    print_answer(console, made.answer)
    say(console, f"\nThe page: {page}" if page else f"\nThe files: {out}")
    say(console, attached)
    if open_ and page is not None and not webbrowser.open(page.absolute().as_uri()):
        raise wrong_option("--open", rule="needs a browser", got="none here", fix=f"Open {page} on another machine.")


def folder_of_experiment(name: str) -> Path:
    """Return the folder for the report of a study in MLflow, whose experiment may have any name, such as `..`."""
    return STUDIES / ("_" + re.sub(r"[^\w.-]+", "_", name) if not NAME.fullmatch(name) else name) / FOLDER


def _attach(report: Report, data: StudyData, files: Sequence[Path], out: Path, uri: str | None) -> str:
    study_id = str(data.sheet["study_id"])
    if uri is None:
        return NOT_ASKED
    try:
        run_id = attach_files(files, out, tracking_uri=uri, name=data.name, study_id=study_id)
        publish_answer(report.answer.to_markdown(), tracking_uri=uri, name=data.name, study_id=study_id)
    except StudyError as error:
        return f"Not attached to MLflow: {error}"
    return f"Attached to MLflow: {ARTIFACTS}/ of run {run_id} at {mask_credentials(uri)}"
