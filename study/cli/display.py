"""What shows a study while it runs: a table that follows it on a terminal, plain lines elsewhere. Imports no engine."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.status.reader import time_left
from study.cli.tables import trial_table
from study.console import terminal
from study.harmless import one_line
from study.records.ledger import TrialRow
from study.text import clock, count, duration, number

if TYPE_CHECKING:
    from study.designs.base import Design
    from study.driver.conductor import Conductor, Display

MAX_ROWS = 12
"""Lines of trials in the live view; the table at the end has all."""


def make_display(console: Console) -> "Display":
    """Return a live view for a terminal, plain lines otherwise."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class PlainDisplay:
    """One line for each end of a trial, and for progress now and then: for files and batch jobs."""

    INTERVAL_S = 30.0

    def __init__(self, console: Console | None = None) -> None:
        """Write to `console`, or to standard error."""
        self._console = console or terminal(error=True)
        self._conductor: Conductor | None = None
        self._seen: dict[int, tuple[int, str]] = {}
        """Trial -> its attempt and status, as they were last told."""
        self._last = 0.0

    def note(self, text: str) -> None:
        """Print one line, if it can be: a study does not end because its log is full."""
        with contextlib.suppress(OSError):
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Print what is being done."""
        self.note(f"{what} …")
        yield

    @contextlib.contextmanager
    def live(self, conductor: "Conductor") -> Iterator[None]:
        """Print lines while the context is open."""
        self._conductor = conductor
        self._seen = {trial: (row.attempt, row.status) for trial, row in conductor.ledger.rows.items()}
        yield
        self.update()

    def update(self) -> None:
        """Print what has changed."""
        if self._conductor is None:
            return
        for trial, row in self._conductor.ledger.rows.items():
            state = (row.attempt, row.status)
            if self._seen.get(trial) != state:
                self._seen[trial] = state
                self.note(f"{time.strftime('%H:%M:%S')} {trial_line(row, self._conductor.design)}")
        if time.monotonic() - self._last > self.INTERVAL_S:
            self._last = time.monotonic()
            self.note(f"{time.strftime('%H:%M:%S')} {headline(self._conductor)}")


class LiveDisplay:
    """A table that follows the study."""

    def __init__(self, console: Console) -> None:
        """Draw on `console`; the time that the person has waited counts from now."""
        self._console = console
        self._began = time.monotonic()

    def note(self, text: str) -> None:
        """Print one line above the table, if it can be."""
        with contextlib.suppress(OSError):
            self._console.print(text, highlight=False, markup=False)

    def busy(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Show what is being done, and for how long, while the context is open."""
        began = time.monotonic()
        return self._redrawn(lambda: Group(Text(f"{what} … {clock(time.monotonic() - began)}"), Text("")))

    def live(self, conductor: "Conductor") -> contextlib.AbstractContextManager[None]:
        """Show the study while the context is open."""

        def view() -> Group:
            elapsed_s, (width, height) = time.monotonic() - self._began, self._console.size
            return live_view(conductor, width=width, height=height, elapsed_s=elapsed_s)

        return self._redrawn(view)

    @contextlib.contextmanager
    def _redrawn(self, view: Callable[[], Group]) -> Iterator[None]:
        """Redraw twice a second, in a thread of rich's, while the context is open."""
        with Live(
            get_renderable=view,
            console=self._console,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield

    def update(self) -> None:
        """Do nothing: the view redraws itself."""


def live_view(conductor: "Conductor", *, width: int, height: int = 24, elapsed_s: float = 0.0) -> Group:
    """Return what a terminal shows of a running study.

    Every line has its place and every column its width, so that nothing moves while values change.
    """
    now = time.time()
    rows = list(conductor.ledger.rows.values())  # a copy: the event loop may add a row meanwhile
    running = [row for row in rows if row.status == "running"]
    done = sum(row.ended for row in rows) + sum(row.progress for row in running)
    after = f"{clock(elapsed_s)}{_outlook(conductor, rows, now)}"
    # The trials under way and the last that ended, by number: a line keeps its place until it leaves.
    latest = sorted(rows, key=lambda row: (row.status == "running", row.ended_at or 0, row.trial))
    shown = sorted(latest[-max(min(MAX_ROWS, height - 8), 3) :], key=lambda row: row.trial)
    return Group(
        _one_line(" · ".join(_results(conductor, rows))),
        progress_bar(done, conductor.plan.num_trials, width, after=after),
        _one_line(" · ".join(_at_work(running)) or "Ray Tune starts"),
        trial_table(shown, width=width, times=conductor.design.times, now=now),
        Text(""),  # a terminal echoes ^C in the last line, which at the end of a full one would begin another
    )


def _one_line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def progress_bar(done: float, total: int, width: int, *, after: str = "") -> Table:
    """Return a bar of at most 60 columns with words behind it; blue while it grows, green at its end."""
    bar = ProgressBar(
        total=total, completed=done, width=min(width - 30, 60), complete_style="blue", finished_style="green"
    )
    grid = Table.grid(padding=(0, 1))
    grid.add_row(bar, _one_line(after))
    return grid


def headline(conductor: "Conductor") -> str:
    """Return how far the study is, in one line: what stands in a log."""
    rows = list(conductor.ledger.rows.values())
    parts = [*_results(conductor, rows), *_at_work([row for row in rows if row.status == "running"])]
    return " · ".join(parts) + _outlook(conductor, rows, time.time())


def _results(conductor: "Conductor", rows: Sequence[TrialRow]) -> Iterator[str]:
    """Yield how many trials ended, and the best of them."""
    counts, total, phase = conductor.ledger.counts(), conductor.plan.num_trials, conductor.phase
    ended = counts["finished"] + counts["failed"]
    yield f"{phase}: {ended} of about {total} trials ended" if phase else f"{ended} of {total} trials ended"
    if counts["failed"]:
        yield f"{counts['failed']} failed"
    known = [(final, row) for row in rows if (final := _final_return(row)) is not None]
    if known:
        final, best = max(known, key=lambda pair: pair[0])
        yield f"best return {final:.1f}{' (of episodes that did not end)' if best.all_cut else ''}"


def _outlook(conductor: "Conductor", rows: Sequence[TrialRow], now: float) -> str:
    """Return how long the rest should take, or why the study stops before: then nothing is left."""
    if conductor.stop is not None:
        return f" · stopping: {conductor.stop.detail}"
    left = time_left(rows, [row for row in rows if row.status == "running"], conductor.plan.num_trials, now)
    return "" if left is None else f" · about {duration(left.seconds)} left"


def _final_return(row: TrialRow) -> float | None:
    return row.summary.get("final_return") if row.status == "finished" else None


def _at_work(running: Sequence[TrialRow]) -> Iterator[str]:
    """Yield what the running trials do; one that has no processes yet has no rate either."""
    training = [row for row in running if row.timing is not None]
    starting = [row for row in running if row.timing is None]
    if training:
        yield f"{len(training)} running"
    if runners := sum(row.num_env_runners for row in starting if row.execution == "real"):
        yield f"waiting for {count(runners, 'runner')}"
    elif starting:
        yield f"starting {count(len(starting), 'trial')}"
    if rates := [rate for row in training if (rate := row.sums.env_steps_per_s()) is not None]:
        yield f"{sum(rates):,.0f} env steps/s"


def trial_line(row: TrialRow, design: "Design") -> str:
    """Return how a trial stands, in one line."""
    what = f"trial {row.trial}: {design.words_of(row)}"
    match row.status:
        case "running":
            return f"{what}: started" + (f" again (attempt {row.attempt})" if row.attempt > 1 else "")
        case "finished":
            final, summary = _final_return(row), row.summary
            rate, wall = number(summary.get("env_steps_per_s"), ",.0f"), number(summary.get("wall_time_s"), ".1f")
            learnt = "" if final is None else f"return {final:.1f}, "
            return f"{what}: {learnt}{rate} env steps/s ({row.timing}), {wall} s of training"
        case _:
            return f"{what}: {row.status.upper()}, {one_line(row.reason)}"
