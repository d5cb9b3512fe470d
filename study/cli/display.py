"""What shows a study while it runs: a line for each change of a trial; on a terminal how far it is below them."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from analysis.status.reader import time_left
from study.console import terminal
from study.harmless import one_line
from study.planning.guess import is_evaluating
from study.records.ledger import TrialRow
from study.text import clock, count, duration, number

if TYPE_CHECKING:
    from study.designs.base import Design
    from study.driver.conductor import Conductor


def make_display(console: Console) -> "PlainDisplay":
    """Return a display with a live line for a terminal, one of plain lines otherwise."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class PlainDisplay:
    """One line for each change of a trial, and for progress now and then: for files and batch jobs."""

    INTERVAL_S = 30.0
    """Seconds between two lines on how far the study is."""

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


class LiveDisplay(PlainDisplay):
    """The same lines, and below them how far the study is, redrawn twice a second."""

    INTERVAL_S = math.inf

    def __init__(self, console: Console) -> None:
        """Draw on `console`; the time that the person has waited counts from now."""
        super().__init__(console)
        self._began = time.monotonic()

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Show what is being done, and for how long, while the context is open."""
        began = time.monotonic()
        with self._redrawn(lambda: Text(f"{what} … {clock(time.monotonic() - began)}")):
            yield

    @contextlib.contextmanager
    def live(self, conductor: "Conductor") -> Iterator[None]:
        """Show the study while the context is open."""

        def view() -> Group:
            rows = list(conductor.ledger.rows.values())  # a copy: the event loop may add a row meanwhile
            done = sum(1.0 if row.ended else row.progress for row in rows if row.status != "interrupted")
            elapsed, width = clock(time.monotonic() - self._began), self._console.width
            bar = progress_bar(done, conductor.plan.num_trials, width, after=elapsed)
            return Group(bar, Text(headline(conductor), no_wrap=True, overflow="ellipsis"))

        with self._redrawn(view), super().live(conductor):
            yield

    @contextlib.contextmanager
    def _redrawn(self, view: Callable[[], Group | Text]) -> Iterator[None]:
        """Redraw, in a thread of rich's, while the context is open."""
        with Live(
            # The last line stays empty: a terminal echoes ^C there, which behind a full line would begin another.
            get_renderable=lambda: Group(view(), Text("")),
            console=self._console,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield


def progress_bar(done: float, total: int, width: int, *, after: str = "") -> Table:
    """Return a bar of at most 60 columns with words behind it; blue while it grows, green at its end."""
    bar = ProgressBar(
        total=total, completed=done, width=min(width - 30, 60), complete_style="blue", finished_style="green"
    )
    grid = Table.grid(padding=(0, 1))
    grid.add_row(bar, Text(after, no_wrap=True))
    return grid


def headline(conductor: "Conductor") -> str:
    """Return in one line how far the study is: what ended, the best, what runs, how long the rest should take."""
    rows = list(conductor.ledger.rows.values())
    running = [row for row in rows if row.status == "running"]
    counts, total, phase = conductor.ledger.counts(), conductor.plan.num_trials, conductor.phase
    ended = counts["finished"] + counts["failed"]
    parts = [f"{phase}: {ended} of about {total} trials ended" if phase else f"{ended} of {total} trials ended"]
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    if known := [(final, row) for row in rows if (final := _final_return(row)) is not None]:
        final, best = max(known, key=lambda pair: pair[0])
        parts.append(f"best return {final:.1f}{' (of episodes that did not end)' if best.all_cut else ''}")
    parts += _at_work(running, sum(is_evaluating(conductor.spec, row) for row in running))
    if conductor.stop is not None:
        parts.append(f"stopping: {conductor.stop.detail}")
    elif (left := time_left(rows, running, total, time.time())) is not None:
        parts.append(f"about {duration(left.seconds)} left")
    return " · ".join(parts)


def _final_return(row: TrialRow) -> float | None:
    return row.summary.get("final_return") if row.status == "finished" else None


def _at_work(running: Sequence[TrialRow], evaluating: int) -> Iterator[str]:
    """Yield what the running trials do; one that has no processes yet has no rate either."""
    training = [row for row in running if row.timing is not None]
    starting = [row for row in running if row.timing is None]
    if training:
        yield f"{len(training)} running" + (f" ({evaluating} evaluating)" if evaluating else "")
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
