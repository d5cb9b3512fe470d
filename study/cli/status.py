"""`status`: where a study stands, on 80 columns and on 140; without a study's name all of a folder. No engine."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.status import Status, read_status
from study.cli.display import answer_of, print_answer
from study.console import say, table, terminal, write_json
from study.errors import StudyError
from study.options import AsJson, command_app, examples
from study.records.folder import StudyFolder
from study.text import MISSING, count, duration, number, plain

MOST_RUNNING = 12
"""Trials under way that are listed; the rest are counted."""
_STYLES = {"working": "green", "ended": "bold", "gone": "red", "packed": "bold"}
_DRIVERS = {"working": "at work", "ended": "has ended", "gone": "gone", "packed": "none, a packed copy"}
_LISTED = ("study", "kind", "ended", "trials", "failed", "best_score", "state")
"""What a list of studies says of each."""

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
        entries = [dict(zip(_LISTED, _entry(folder), strict=True)) for folder in several]
        if as_json:
            write_json(entries)
        elif entries:
            _list(console, entries)
        else:
            say(console, f"No study in {study}. Start one: python run_study.py quickstart.yaml")
        return
    now = read_status(study)
    if as_json:
        write_json(now.to_json())
        return
    answered = now.counts["finished"] > 0
    if answered and now.complete:  # then the answer is what a person wants to know; else where the study stands
        print_answer(console, answer_of(study))
        say(console, "")
    show(console, now)
    if answered and not now.complete:
        say(console, "\nSo far:\n")
        print_answer(console, answer_of(study))


def _entry(folder: Path) -> Sequence[Any]:
    """Return one line of the list; a study that cannot be read says why."""
    try:
        now, kind = read_status(folder), StudyFolder(folder).identity().parse().design
    except StudyError as error:
        return folder.name, None, None, None, None, None, f"cannot be read: {error}"
    return folder.name, kind, now.num_ended, now.num_trials, now.counts["failed"], now.best_score, now.state


def _list(console: Console, entries: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            each["study"],
            each["kind"] or MISSING,
            f"{number(each['ended'], 'd')}/{number(each['trials'], 'd')}",
            number(each["failed"], "d"),
            number(each["best_score"], ".2f"),
            each["state"],
        )
        for each in entries
    ]
    headings = ("study", "kind", "trials", "failed", "best score", "state")
    console.print(table(headings, rows, words=("kind",), fold=("study", "state"), width=console.width))


def show(console: Console, status: Status) -> None:
    """Print how far the study is, what runs now, and what a person should know or type."""
    title = Text.assemble((status.name, "bold"), ": ", (status.state, _STYLES[status.driver]))
    title.append(f" · stage {status.stage}" if status.stage else "")
    title.append(f" · session {status.sessions}" if status.sessions > 1 else "")
    console.print(title, highlight=False)
    shown = {name: n for name, n in status.counts.items() if n and (name != "running" or status.driver == "working")}
    counts = ", ".join(f"{n} {name}" for name, n in shown.items())
    trials = f"{'about ' if status.guessed else ''}{count(status.num_trials, 'trial', form='d')}"
    say(console, f"{status.num_ended} of {trials} ended" + (f" ({counts})" if counts else ""))
    if (left := status.left) is not None:
        rest = count(round(left.trials, 1), "trial", form="g")
        say(
            console,
            f"About {duration(left.seconds)} left: an estimate, {rest} x {duration(left.median_s)} "
            f"(median of n={left.n}), {plain(round(left.at_a_time, 1))} at a time",
        )
    for problem in status.problems:
        console.print(_hanging(Text("!", style="red"), problem))
    if status.running:
        console.print(_running(status, console.width))
    if len(status.running) > MOST_RUNNING:
        say(console, f"… and {len(status.running) - MOST_RUNNING} more")
    since = "nothing recorded yet"
    if status.silence_s is not None:
        since = f"last record {duration(status.silence_s)} ago"
        if status.driver != "working" and status.silence_s > 86_400:
            since = f"last record {time.strftime('%Y-%m-%d %H:%M', time.localtime(status.moment - status.silence_s))}"
    say(console, f"Driver: {_DRIVERS[status.driver]}; {since}")
    if (mirror := status.mirror) is not None:
        behind = "up to date" if not mirror.behind else f"{count(mirror.behind, 'record')} behind"
        say(console, f"MLflow: {behind}")
    for each in status.advice:
        console.print(_hanging(Text("!", style="yellow"), each.text))
        if each.command:
            console.print(Text(f"  {each.command}"), soft_wrap=True)  # whole, to be copied


def _running(status: Status, width: int) -> Table:
    headings = ("trial", "runners", "batch", "lr", "seed", "for", "done", "env steps/s", "timing")
    rows = [
        (
            str(row.trial),
            str(row.num_env_runners),
            plain(row.setting.get("train_batch_size", MISSING)),
            number(row.setting.get("lr"), ".2g"),
            str(row.seed),
            duration(max(status.moment - row.started, 0.0)),
            "starting" if row.startup_time_s is None else f"{row.progress:.0%}",
            number(row.env_steps_per_s(), ",.0f"),
            (("" if row.provisional else row.timing) or "not settled")
            + (f" (attempt {row.attempt})" if row.attempt > 1 else ""),
        )
        for row in status.running[:MOST_RUNNING]
    ]
    return table(headings, rows, words=("timing",), width=width)


def _hanging(mark: Text, text: str) -> Table:
    """Return `text` behind a mark, its further lines under its first."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(mark, Text(text))
    return grid
