"""What a person sees of where a study stands, on 80 columns and on 140. Imports rich, no engine."""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.status import Best, RunningTrial, Status, StatusReader
from analysis.status.efficiency import efficiency_so_far
from study.cli.display import NARROW
from study.records.timing import PRESSURE_LIMIT
from study.text import duration

if TYPE_CHECKING:
    from analysis.tables.table import Table as ResultTable

MOST_RUNNING = 12
"""Trials under way that are listed; the rest are counted."""
WATCH_S = 2.0
"""Seconds between two looks of `watch`."""
STYLES: Mapping[str, str] = {"working": "green", "ended": "bold", "gone": "red", "packed": "bold"}


def view(status: Status, efficiency: "ResultTable | str | None", *, width: int) -> Group:
    """Return the whole page.

    Args:
        status: Where the study stands.
        efficiency: The efficiency table in short, or why there is none.
        width: Columns of the terminal.
    """
    parts: list[RenderableType] = [_title(status), *_progress(status, width)]
    if status.problems:
        parts += [_hanging(Text("!", style="red"), problem) for problem in status.problems]
    if status.running:
        parts += [_head("Running now"), _running(status.running, width)]
    if status.best:
        parts += [_head("Best so far"), _best(status.best, width)]
    if efficiency is not None:
        parts += [_head("Efficiency so far"), efficiency_view(efficiency, width=width)]
    parts += [_head("Health"), *_health(status)]
    return Group(*parts)


def show(console: Console, status: Status, efficiency: "ResultTable | str | None" = None) -> None:
    """Print the page once; commands are left whole, to be copied."""
    for part in view(status, efficiency, width=console.width).renderables:
        console.print(part, highlight=False, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


def watch(console: Console, reader: StatusReader, *, interval_s: float = WATCH_S) -> None:
    """Show the page again and again until the driver has ended or the person presses Ctrl-C, then leave it there."""
    efficiency: ResultTable | str | None = None
    ended = -1
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            status = reader.read()
            if status.num_ended != ended:  # the table changes with the trials that end, and costs a second
                ended, efficiency = status.num_ended, efficiency_so_far(reader)
            live.update(view(status, efficiency, width=console.width), refresh=True)
            if status.driver != "working":
                return
            time.sleep(interval_s)


def _title(status: Status) -> Text:
    text = Text.assemble((status.name, "bold"), ": ", (status.state, STYLES[status.driver]))
    if status.stage:
        text.append(f" · stage {status.stage}")
    if status.sessions > 1:
        text.append(f" · session {status.sessions}")
    return text


def _progress(status: Status, width: int) -> Iterator[RenderableType]:
    about = "about " if status.guessed else ""
    counts = ", ".join(f"{count} {name}" for name, count in status.counts.items() if count and _counts(name, status))
    yield Text(f"{status.num_ended} of {about}{status.num_trials} trials ended" + (f" ({counts})" if counts else ""))
    if status.num_trials:
        done = status.num_ended + sum(each.progress for each in status.running)
        yield Padding(ProgressBar(total=status.num_trials, completed=done, width=min(width - 2, 60)), (0, 0))
    if status.per_stage:
        stages = [
            f"{stage} {ended}" + (f" ({failed} failed)" if failed else "")
            for stage, (ended, failed) in status.per_stage.items()
        ]
        yield Text("By stage: " + ", ".join(stages))
    if (left := status.left) is not None:
        yield Text(
            f"About {duration(left.seconds)} left: an estimate, {left.trials:.1f} trials x {duration(left.median_s)} "
            f"(median of n={left.n}), {left.at_a_time:.1f} at a time"
        )


def _counts(name: str, status: Status) -> bool:
    return name != "running" or status.driver == "working"


def _running(trials: tuple[RunningTrial, ...], width: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=width < NARROW)
    for name in ("trial", "runners", "batch", "lr", "seed", "for", "done", "env steps/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("timing", no_wrap=True)
    for each in trials[:MOST_RUNNING]:
        again = f" (attempt {each.attempt})" if each.attempt > 1 else ""
        table.add_row(
            str(each.trial),
            str(each.num_env_runners),
            str(each.setting.get("train_batch_size", "-")),
            f"{each.setting['lr']:.2g}" if "lr" in each.setting else "-",
            str(each.seed),
            duration(each.running_s),
            f"{each.progress:.0%}" if each.built else "starting",
            "-" if each.env_steps_per_s is None else f"{each.env_steps_per_s:,.0f}",
            (each.timing or "not settled") + again,
        )
    if len(trials) > MOST_RUNNING:
        return Group(table, Text(f"… and {len(trials) - MOST_RUNNING} more"))
    return table


def _best(best: tuple[Best, ...], width: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=width < NARROW)
    for name in ("runners", "return", "score", "best of", "trial"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("setting", overflow="fold")
    for each in best:
        table.add_row(
            str(each.num_env_runners),
            "-" if each.final_return is None else f"{each.final_return:.1f}{'*' if each.all_cut else ''}",
            "-" if each.score is None else f"{each.score:.2f}",
            str(each.num_finished),
            str(each.trial),
            ", ".join(f"{name} {_value(value)}" for name, value in each.setting.items()),
        )
    caveat = Text("The luckiest single trial of each scale (n=1, no interval): a candidate, not a result.", style="dim")
    cut = [Text("* every episode of its last evaluation was cut at the limit.")] if any(b.all_cut for b in best) else []
    return Group(table, *cut, caveat)


def _value(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _health(status: Status) -> Iterator[RenderableType]:
    yield Text(f"Driver: {_driver(status)}")
    yield Text(f"Engine: {status.engine}")
    labels = ", ".join(f"{count} {label}" for label, count in status.timings.items() if count)
    yield Text(f"Clocks: {labels or 'none yet'}")
    if status.pressure:
        shares = ", ".join(f"trial {each.trial} {each.share:.0%}" for each in status.pressure[:MOST_RUNNING])
        yield Text(f"CPU pressure (share of the time in which a task waited; limit {PRESSURE_LIMIT:.0%}): {shares}")
    if status.mirror is not None:
        behind = "up to date" if not status.mirror.behind else f"{status.mirror.behind:,} records behind"
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
    grid.add_row(mark, text)
    return grid


def efficiency_view(found: "ResultTable | str", *, width: int) -> RenderableType:
    """Return the efficiency table for a terminal; on a narrow one, intervals stand below their values."""
    if isinstance(found, str):
        return Text(found)
    between = "\n" if width < NARROW else " "
    rows = found.grid().cells()
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=width < NARROW)
    for place, column in enumerate(found.columns):
        number = any(row[place].number for row in rows)
        table.add_column(column.heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(each.value + (between + each.interval if each.interval else "") for each in row))
    return Group(table, Text(found.conclusion), Text(found.counts(), style="dim"))


def _head(text: str) -> Text:
    return Text(f"\n{text}", style="bold")
