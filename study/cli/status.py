"""`status`: where a study stands, on 80 columns and on 140; `studies`: all of a folder. Imports no engine."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from analysis.status import Status, StatusReader
from study.cli.display import progress_bar
from study.console import NARROW, say, table, terminal, write_json
from study.errors import StudyError
from study.options import AsJson, Out, Study, command_app, examples, wrong_option
from study.records.timing import PRESSURE_LIMIT
from study.text import MISSING, count, duration, number, plain

if TYPE_CHECKING:
    from analysis.tables.table import Table as ResultTable

EFFICIENCY = (
    "workload",
    "num_env_runners",
    "num_cpus",
    "n",
    "env_steps_per_s",
    "speed_up",
    "efficiency_per_runner",
    "efficiency_per_cpu",
)
"""Columns of T2 that are shown."""
MOST_RUNNING = 12
"""Trials under way that are listed; the rest are counted."""
WATCH_S = 2.0
"""Seconds between two readings of `--watch`."""
STYLES: Mapping[str, str] = {"working": "green", "ended": "bold", "gone": "red", "packed": "bold"}

app = command_app()


@app.command(
    epilog=examples("python -m study status studies/quickstart", "python -m study status studies/quickstart --watch"),
)
def status(
    study: Study,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds until the driver ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print where a study stands, while it runs or after: progress, best so far, efficiency, health."""
    if watch and as_json:
        raise wrong_option("--watch", rule="excludes --json", got="both", fix="Drop one of the two.")
    reader = StatusReader(study)
    if as_json:
        write_json(reader.read().to_json())
    elif watch:
        follow(terminal(), reader)
    else:
        show(terminal(), reader.read(), efficiency_so_far(reader))


@app.command(epilog=examples("python -m study studies", "python -m study studies --json"))
def studies(out: Out = Path("studies"), as_json: AsJson = False) -> None:
    """List the studies of a folder: kind, state, trials that ended, best score."""
    found = [_entry(file.parent) for file in sorted(out.glob("*/study.json"))]
    if as_json:
        write_json(found)
        return
    console = terminal()
    if not found:
        say(console, f"No study in {out}. Start one: python run_study.py quickstart.yaml")
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
        for each in found
    ]
    console.print(table(headings, rows, words=("kind",), fold=("study", "state"), width=console.width))


def _entry(folder: Path) -> dict[str, Any]:
    """Return one line of `studies`; a study that cannot be read says why."""
    try:
        reader = StatusReader(folder)
        now = reader.read()
        kind = reader.identity.parse().design
    except StudyError as error:
        state = f"cannot be read: {error}"
        unknown = dict.fromkeys(("kind", "ended", "trials", "failed", "best_score"))
        return {"study": folder.name, **unknown, "state": state}
    scores = [score for row in now.best.values() if (score := row.summary.get("score")) is not None]
    return {
        "study": folder.name,
        "kind": kind,
        "ended": now.num_ended,
        "trials": now.num_trials,
        "failed": now.counts["failed"],
        "best_score": max(scores, default=None),
        "state": now.state,
    }


# --- the page -------------------------------------------------------------------------------------------------------


def view(status: Status, efficiency: "ResultTable | str | None", *, width: int) -> Group:
    """Return the whole page."""
    parts: list[RenderableType] = [_title(status), *_progress(status, width)]
    if status.problems:
        parts += [_hanging(Text("!", style="red"), problem) for problem in status.problems]
    if status.running:
        parts += [_head("Running now"), *_running(status, width)]
    so_far = "" if status.complete else " so far"
    if status.best:
        parts += [_head(f"Best{so_far}"), *_best(status, width)]
    if efficiency is not None:
        parts += [_head(f"Efficiency{so_far}"), *_efficiency(efficiency, width)]
    parts += [_head("Health"), *_health(status)]
    return Group(*parts)


def show(console: Console, status: Status, efficiency: "ResultTable | str | None" = None) -> None:
    """Print the page once; commands are left whole, to be copied."""
    for part in view(status, efficiency, width=console.width).renderables:
        console.print(part, highlight=False, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


def follow(console: Console, reader: StatusReader) -> None:
    """Show the page again and again until the driver has ended or the person presses Ctrl-C, then leave it there."""
    efficiency: ResultTable | str | None = None
    told = (-1, False)
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            now = reader.read()
            if (now.num_ended, now.complete) != told:  # the table changes with the trials that end, and costs a second
                told, efficiency = (now.num_ended, now.complete), efficiency_so_far(reader)
            live.update(view(now, efficiency, width=console.width), refresh=True)
            if now.driver != "working":
                return
            time.sleep(WATCH_S)


def efficiency_so_far(reader: StatusReader) -> "ResultTable | str":
    """Return T2 as far as it has come, or in a sentence why there is none yet; only then pandas and SciPy load."""
    rows = reader.ledger.rows.values()
    measured = [row for row in rows if row.status == "finished" and row.timing == "measured"]
    scales = {row.num_env_runners for row in measured}
    if len(scales) < 2:
        seen = f"{len(measured)} at {count(len(scales), 'scale')}"
        none = "None" if reader.ledger.complete else "None yet"
        return f"{none}: it needs finished trials with a measured clock at two scales, got {seen}."
    from analysis.estimates import Results
    from analysis.load import from_folder
    from analysis.tables.catalogue import table_of

    try:
        found = table_of("T2", Results(from_folder(reader.folder.path)))
    except StudyError as error:
        return f"None: {error}"
    return found.said if found.empty else found.select(EFFICIENCY)


def _title(status: Status) -> Text:
    text = Text.assemble((status.name, "bold"), ": ", (status.state, STYLES[status.driver]))
    if status.stage:
        text.append(f" · stage {status.stage}")
    if status.sessions > 1:
        text.append(f" · session {status.sessions}")
    return text


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
            "starting" if row.startup_time_s is None else f"{row.progress:.0%}",
            number(row.sums.env_steps_per_s(), ",.0f"),
            (("" if row.provisional else row.timing) or "not settled")
            + (f" (attempt {row.attempt})" if row.attempt > 1 else ""),
        )
        for row in status.running[:MOST_RUNNING]
    ]
    yield table(headings, rows, words=("timing",), width=width)
    if len(status.running) > MOST_RUNNING:
        yield Text(f"… and {len(status.running) - MOST_RUNNING} more")


def _best(status: Status, width: int) -> Iterator[RenderableType]:
    rows = [
        (
            str(scale),
            number(row.summary.get("final_return"), ".3g") + ("*" if row.all_cut else ""),
            number(row.summary.get("score"), ".2f"),
            str(status.num_finished[scale]),
            str(row.trial),
            ", ".join(f"{name} {_short(row.setting[name])}" for name in status.varied if name in row.setting),
        )
        for scale, row in status.best.items()
    ]
    yield table(("runners", "return", "score", "best of", "trial", "setting"), rows, fold=("setting",), width=width)
    if any(row.all_cut for row in status.best.values()):
        yield Text("* every episode of its last evaluation was cut at the limit.")
    yield Text("The luckiest single trial of each scale (n=1, no interval): a candidate, not a result.", style="dim")


def _short(value: float) -> str:
    """Return a value of a setting with two significant digits: of a single trial, further ones say nothing."""
    return f"{value:.2g}" if isinstance(value, float) else plain(value)


def _health(status: Status) -> Iterator[RenderableType]:
    yield Text(f"Driver: {_driver(status)}")
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


def _driver(status: Status) -> str:
    words = {"working": "at work", "ended": "has ended", "gone": "gone", "packed": "none, a packed copy"}[status.driver]
    if status.silence_s is None:
        return f"{words}; nothing recorded yet"
    since = f"last record {duration(status.silence_s)} ago"
    if status.driver != "working" and status.silence_s > 86_400:
        since = f"last record {time.strftime('%Y-%m-%d %H:%M', time.localtime(status.moment - status.silence_s))}"
    return f"{words}; {since}"


def _hanging(mark: Text, text: str) -> Table:
    """Return `text` behind a mark, its further lines under its first."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(mark, Text(text))
    return grid


def _efficiency(found: "ResultTable | str", width: int) -> Iterator[RenderableType]:
    """Yield the efficiency table; on a narrow terminal, intervals stand below their values."""
    if isinstance(found, str):
        yield Text(found)
        return
    columns, rows, above = found.shown()
    between = "\n" if width < NARROW else " "
    cells = [[between.join(part for part in cell if part) for cell in row] for row in rows]
    words = [column.heading for column in columns if not column.is_number]
    yield table([column.heading for column in columns], cells, fold=words, width=width)
    if above:
        yield Text(above)
    yield Text(found.said)
    yield Text(found.counts, style="dim")


def _head(text: str) -> Text:
    return Text(f"\n{text}", style="bold")
