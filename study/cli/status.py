"""`status`: where a study stands; without a study's name all of a folder. No engine."""

from pathlib import Path
from typing import Annotated, Any

import typer

from analysis.status import read_status
from study.cli.display import answer_of, print_answer, show
from study.console import say, table, terminal, write_json
from study.errors import StudyError
from study.options import AsJson, command_app, examples
from study.records.folder import StudyFolder
from study.text import MISSING, plain

app = command_app()


@app.command(
    epilog=examples(
        "python -m study status",
        "python -m study status studies/quickstart",
    ),
)
def status(
    study: Annotated[
        Path,
        typer.Argument(help="Folder of a study, such as studies/quickstart; or of several, which are listed."),
    ] = Path("studies"),
    as_json: AsJson = False,
) -> None:
    """Print where a study stands, while it runs or after: progress, answer so far, health; or list all of a folder."""
    console = terminal()
    several = [] if (study / "study.json").exists() else sorted(file.parent for file in study.glob("*/study.json"))
    if several or study == Path("studies"):
        entries = [_entry(folder) for folder in several]
        if as_json:
            write_json(entries)
        elif entries:
            headings = ("study", "kind", "ended", "trials", "failed", "best_score", "state")
            rows = [[MISSING if each[name] is None else plain(each[name]) for name in headings] for each in entries]
            console.print(table(headings, rows, words=("kind",), fold=("study", "state"), width=console.width))
        else:
            say(console, f"No study in {study}. Start one: python run_study.py quickstart.yaml")
        return
    now = read_status(study)
    if as_json:
        write_json(now.to_json())
        return
    show(console, now)
    if now.counts["finished"]:
        say(console, "" if now.complete else "\nSo far:\n")
        print_answer(console, answer_of(study))


def _entry(folder: Path) -> dict[str, Any]:
    """Return one line of the list; a study that cannot be read says why."""
    known: dict[str, Any] = dict.fromkeys(("kind", "ended", "trials", "failed", "best_score"))
    try:
        now, known["kind"] = read_status(folder), StudyFolder(folder).identity().parse().design
    except StudyError as error:
        return {"study": folder.name, **known, "state": f"cannot be read: {error}"}
    known |= {"ended": now.num_ended, "trials": now.num_trials, "failed": now.counts["failed"]}
    return {"study": folder.name, **known, "best_score": now.best_score, "state": now.state}
