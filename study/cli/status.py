"""`status`: where a study stands, on 80 columns and on 140; without a study's name all of a folder. No engine."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from analysis.status import Status, StatusReader
from study.cli.display import progress_bar
from study.cli.tables import answer_of, print_answer
from study.console import say, table, terminal, write_json
from study.errors import StudyError
from study.options import AsJson, command_app, examples, study_folders, wrong_option
from study.records.timing import PRESSURE_LIMIT
from study.text import MISSING, count, duration, number, plain

MOST_RUNNING = 12
"""Trials under way that are listed; the rest are counted."""
WATCH_S = 2.0
"""Seconds between two readings of `--watch`."""
_STYLES = {"working": "green", "ended": "bold", "gone": "red", "packed": "bold"}
_DRIVERS = {"working": "at work", "ended": "has ended", "gone": "gone", "packed": "none, a packed copy"}

app = command_app()


@app.command(
    epilog=examples(
        "python -m study status",
        "python -m study status studies/quickstart",
        "python -m study status studies/quickstart --watch",
    ),
)
def status(
    study: Annotated[
        Path,
        typer.Argument(
            help="Folder of a study, such as studies/quickstart; or of several, which are listed.",
            autocompletion=study_folders,
        ),
    ] = Path("studies"),
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds until the driver ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print where a study stands, while it runs or after: progress, answer so far, health; or list all of a folder."""
    if watch and as_json:
        raise wrong_option("--watch", rule="excludes --json", got="both", fix="Drop one of the two.")
    several = [] if (study / "study.json").exists() else sorted(file.parent for file in study.glob("*/study.json"))
    if several or study == Path("studies"):
        _list([_entry(folder) for folder in several], study, as_json=as_json)
        return
    reader = StatusReader(study)
    now = reader.read()
    if as_json:
        write_json(now.to_json())
    elif watch:
        _follow(terminal(), reader)
    else:
        console = terminal()
        answered = now.counts["finished"] > 0
        if answered and now.complete:  # then the answer is what a person wants to know; else where the study stands
            print_answer(console, answer_of(study))
            say(console, "")
        show(console, now)
        if answered and not now.complete:
            say(console, "\nSo far:\n")
            print_answer(console, answer_of(study))


def _list(entries: Sequence[dict[str, Any]], folder: Path, *, as_json: bool) -> None:
    if as_json:
        write_json(entries)
        return
    console = terminal()
    if not entries:
        say(console, f"No study in {folder}. Start one: python run_study.py quickstart.yaml")
        return
    headings = ("study", "kind", "trials", "failed", "best score", "state")
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
    console.print(table(headings, rows, words=("kind",), fold=("study", "state"), width=console.width))


def _entry(folder: Path) -> dict[str, Any]:
    """Return one line of the list; a study that cannot be read says why."""
    try:
        reader = StatusReader(folder)
        now, kind = reader.read(), reader.identity.parse().design
    except StudyError as error:
        unknown = dict.fromkeys(("kind", "ended", "trials", "failed", "best_score"))
        return {"study": folder.name, **unknown, "state": f"cannot be read: {error}"}
    return {
        "study": folder.name,
        "kind": kind,
        "ended": now.num_ended,
        "trials": now.num_trials,
        "failed": now.counts["failed"],
        "best_score": now.best_score,
        "state": now.state,
    }


# --- the page -------------------------------------------------------------------------------------------------------


def view(status: Status, *, width: int) -> Group:
    """Return the whole page."""
    title = Text.assemble((status.name, "bold"), ": ", (status.state, _STYLES[status.driver]))
    title.append(f" · stage {status.stage}" if status.stage else "")
    title.append(f" · session {status.sessions}" if status.sessions > 1 else "")
    parts: list[RenderableType] = [title, *_progress(status, width)]
    parts += [_hanging(Text("!", style="red"), problem) for problem in status.problems]
    if status.running:
        parts += [Text("\nRunning now", style="bold"), *_running(status, width)]
    return Group(*parts, Text("\nHealth", style="bold"), *_health(status))


def show(console: Console, status: Status) -> None:
    """Print the page once; commands are left whole, to be copied."""
    for part in view(status, width=console.width).renderables:
        console.print(part, highlight=False, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


def _follow(console: Console, reader: StatusReader) -> None:
    """Show the page again and again until the driver has ended or the person presses Ctrl-C, then leave it there."""
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            now = reader.read()
            live.update(view(now, width=console.width), refresh=True)
            if now.driver != "working":
                return
            time.sleep(WATCH_S)


def _progress(status: Status, width: int) -> Iterator[RenderableType]:
    about = "about " if status.guessed else ""
    shown = {name: n for name, n in status.counts.items() if n and (name != "running" or status.driver == "working")}
    counts = ", ".join(f"{n} {name}" for name, n in shown.items())
    trials = count(status.num_trials, "trial", form="d")
    yield Text(f"{status.num_ended} of {about}{trials} ended" + (f" ({counts})" if counts else ""))
    if status.num_trials:
        yield progress_bar(status.num_ended + sum(each.progress for each in status.running), status.num_trials, width)
    if status.per_stage:
        stages = [
            f"{stage} {ended}" + (f" ({failed} failed)" if failed else "")
            for stage, (ended, failed) in status.per_stage.items()
        ]
        yield Text("By stage: " + ", ".join(stages))
    if (left := status.left) is not None:
        rest = count(round(left.trials, 1), "trial", form="g")
        yield Text(
            f"About {duration(left.seconds)} left: an estimate, {rest} x {duration(left.median_s)} "
            f"(median of n={left.n}), {plain(round(left.at_a_time, 1))} at a time"
        )


def _running(status: Status, width: int) -> Iterator[RenderableType]:
    headings = ("trial", "runners", "batch", "lr", "seed", "for", "done", "env steps/s", "timing")
    rows = [
        (
            str(row.trial),
            str(row.num_env_runners),
            plain(row.setting.get("train_batch_size", MISSING)),
            number(row.setting.get("lr"), ".2g"),
            str(row.seed),
            duration(max(status.moment - row.started, 0.0)),
            "starting"
            if row.startup_time_s is None
            else f"{row.progress:.0%}{', evaluating' if row.trial in status.evaluating else ''}",
            number(row.sums.env_steps_per_s(), ",.0f"),
            (("" if row.provisional else row.timing) or "not settled")
            + (f" (attempt {row.attempt})" if row.attempt > 1 else ""),
        )
        for row in status.running[:MOST_RUNNING]
    ]
    yield table(headings, rows, words=("timing",), width=width)
    if len(status.running) > MOST_RUNNING:
        yield Text(f"… and {len(status.running) - MOST_RUNNING} more")


def _health(status: Status) -> Iterator[RenderableType]:
    since = "nothing recorded yet"
    if status.silence_s is not None:
        since = f"last record {duration(status.silence_s)} ago"
        if status.driver != "working" and status.silence_s > 86_400:
            since = f"last record {time.strftime('%Y-%m-%d %H:%M', time.localtime(status.moment - status.silence_s))}"
    yield Text(f"Driver: {_DRIVERS[status.driver]}; {since}")
    yield Text(f"Engine: {status.engine}")
    labels = ", ".join(f"{n} {label}" for label, n in status.timings.items() if n)
    yield Text(f"Timings: {labels or 'none yet'}")
    if status.pressure:
        shares = ", ".join(f"trial {trial} {share:.0%}" for trial, share in [*status.pressure.items()][:MOST_RUNNING])
        yield Text(f"CPU pressure (share of the time in which a task waited; limit {PRESSURE_LIMIT:.0%}): {shares}")
    if status.mirror is not None:
        behind = "up to date" if not status.mirror.behind else f"{count(status.mirror.behind, 'record')} behind"
        yield Text(f"MLflow: {behind if status.mirror.begun or not status.mirror.behind else 'has got nothing yet'}")
    for each in status.advice:
        yield _hanging(Text("!", style="yellow"), each.text)
        if each.command:
            yield Text(f"  {each.command}", no_wrap=True, overflow="ignore")  # whole, to be copied


def _hanging(mark: Text, text: str) -> Table:
    """Return `text` behind a mark, its further lines under its first."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(mark, Text(text))
    return grid
