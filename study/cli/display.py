"""What a person sees: the live view of a running study, the plan, the tables at the end. Imports rich, no engine."""

import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from study.console import SteadyConsole, say
from study.designs.search.front import pareto_front
from study.engine import engines_in_words
from study.harmless import one_line
from study.planning.plan import Plan
from study.records.ledger import TrialRow
from study.records.timing import PRESSURE_LIMIT
from study.space.variants import STAGES
from study.text import count, cpu_hours, duration

if TYPE_CHECKING:
    from study.designs.base import Design
    from study.driver.conductor import Conductor
    from study.driver.display import Display

MAX_ROWS = 12
"""Lines of ended trials in the live view; the table at the end has all."""

NARROW = 100
"""Terminals with fewer columns get tighter tables."""
TIMING_NOTES: Mapping[str, str] = {
    "oversubscribed": "more processes than cores; these times and rates say nothing about scaling.",
    "emulated": "the lanes of all runners in few processes; these times and rates say nothing about real runners.",
    "tainted": "a runner or sample was lost or others used its nodes; these times and rates say nothing about scaling.",
}
"""What a person must know of a timing that is not `measured`."""


def make_display(console: Console) -> "Display":
    """Return a live view for a terminal, plain lines otherwise."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class PlainDisplay:
    """One line for each end of a trial, and for progress now and then: for files and batch jobs."""

    INTERVAL_S = 30.0

    def __init__(self, console: Console | None = None) -> None:
        """Write to `console`, or to standard error."""
        self._console = console or SteadyConsole(file=sys.stderr, width=140)
        self._conductor: Conductor | None = None
        self._num_seen = 0
        self._open: dict[int, tuple[int, str]] = {}
        """Trials that have not ended, as they were last seen: what has ended is not looked at again."""
        self._last = 0.0

    def note(self, text: str) -> None:
        """Print one line, if it can be: a study does not end because its log is full."""
        with contextlib.suppress(OSError):
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def live(self, conductor: "Conductor") -> Iterator[None]:
        """Print lines while the context is open."""
        self._conductor = conductor
        rows = conductor.ledger.rows
        self._num_seen = len(rows)
        self._open = {number: (row.attempt, row.status) for number, row in rows.items() if not row.ended}
        yield
        self.update()

    def update(self) -> None:
        """Print what has changed."""
        if self._conductor is None:
            return
        rows = self._conductor.ledger.rows
        new = list(itertools.islice(reversed(rows), len(rows) - self._num_seen))  # rows are never removed
        for number in [*self._open, *reversed(new)]:
            row = rows[number]
            state = (row.attempt, row.status)
            if self._open.get(number) != state:
                self.note(f"{time.strftime('%H:%M:%S')} {_line(row, self._conductor.design)}")
            self._open[number] = state
            if row.ended:
                del self._open[number]
        self._num_seen = len(rows)
        if time.monotonic() - self._last > self.INTERVAL_S:
            self._last = time.monotonic()
            self.note(f"{time.strftime('%H:%M:%S')} {_headline(self._conductor)}")


class LiveDisplay:
    """A table that follows the study."""

    def __init__(self, console: Console) -> None:
        """Draw on `console`."""
        self._console = console
        self._started = time.monotonic()

    def note(self, text: str) -> None:
        """Print one line above the table, if it can be."""
        with contextlib.suppress(OSError):
            self._console.print(text, highlight=False, markup=False)

    @contextlib.contextmanager
    def live(self, conductor: "Conductor") -> Iterator[None]:
        """Redraw twice a second, in a thread of rich's, while the context is open."""
        with Live(
            get_renderable=lambda: self._view(conductor),
            console=self._console,
            refresh_per_second=2,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield

    def update(self) -> None:
        """Do nothing: the view redraws itself."""

    def _view(self, conductor: "Conductor") -> Group:
        rows = list(conductor.ledger.rows.values())
        running = [row for row in rows if row.status == "running"]
        ended = sorted((row for row in rows if row.status != "running"), key=lambda row: row.ended_at or 0)
        table = _trial_table(
            running + ended[::-1][: max(MAX_ROWS - len(running), 3)],
            width=self._console.width,
            times=conductor.design.times,
        )
        done = sum(row.ended for row in rows) + sum(row.progress for row in running)
        bar = ProgressBar(total=conductor.plan.num_trials, completed=done, width=60)
        # The last line stays empty: a terminal echoes ^C there, which at the end of a full line would begin another.
        return Group(Text(_headline(conductor)), Padding(bar, (0, 0)), table, Text(""))


def _headline(conductor: "Conductor") -> str:
    counts, total = conductor.ledger.counts(), conductor.plan.num_trials
    ended = counts["finished"] + counts["failed"]
    rows = list(conductor.ledger.rows.values())  # a copy: the event loop may add a row meanwhile
    running = [row for row in rows if row.status == "running"]
    phase = conductor.phase
    parts = [f"{phase}: {ended} of about {total} trials ended" if phase else f"{ended} of {total} trials ended"]
    parts += _at_work(running)
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    finals = {row.trial: row.summary.get("final_return") for row in rows if row.status == "finished"}
    known = {trial: final for trial, final in finals.items() if final is not None}
    if known:
        best = max(known, key=known.__getitem__)
        cut = " (of episodes that did not end)" if conductor.ledger.rows[best].all_cut else ""
        parts.append(f"best return {known[best]:.1f}{cut}")
    if conductor.stop is not None:
        parts.append(f"stopping: {conductor.stop.detail}")
    elif (eta := eta_s(conductor)) is not None:
        parts.append(f"about {duration(eta)} left")
    return " · ".join(parts)


def _at_work(running: Sequence[TrialRow]) -> Iterator[str]:
    """Yield what the running trials do; one that has no processes yet has no rate either."""
    training = [row for row in running if row.timing is not None]
    starting = [row for row in running if row.timing is None]
    if training:
        yield f"{len(training)} running"
    runners = sum(row.num_env_runners for row in starting if row.execution == "real")
    if runners:
        yield f"waiting for {count(runners, 'runner')}"
    elif starting:
        yield f"starting {count(len(starting), 'trial')}"
    rates = [rate for row in training if (rate := row.env_steps_per_s()) is not None]
    if rates:
        yield f"{sum(rates):,.0f} env steps/s"


def eta_s(conductor: "Conductor") -> float | None:
    """Return the seconds that the rest should take; None before a trial has finished.

    The median duration of the trials that finished, start-up included, for each that is left, at as many at a time as
    run now. Neither Ray's start nor that of the trials that run now counts as pace.
    """
    rows = list(conductor.ledger.rows.values())
    durations = [row.duration_s for row in rows if row.status == "finished" and row.duration_s is not None]
    if not durations:
        return None
    running = [row for row in rows if row.status == "running"]
    left = _num_left(conductor) + sum(1 - row.progress for row in running)
    return left * statistics.median(durations) / max(len(running), 1)


def _num_left(conductor: "Conductor") -> int:
    """Return the trials that have not begun; in a hold-up study a guess."""
    if conductor.design.guesses_trials:
        return max(conductor.plan.num_trials - len(conductor.ledger.rows), 0)
    return conductor.num_left


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _line(row: TrialRow, design: "Design") -> str:
    what = f"trial {row.trial}: {design.words_of(row)}"
    match row.status:
        case "running":
            return f"{what}: started" + (f" again (attempt {row.attempt})" if row.attempt > 1 else "")
        case "finished":
            rate = _number(row.summary.get("env_steps_per_s"), ",.0f")
            wall = _number(row.summary.get("wall_time_s"), ".1f")
            final = row.summary.get("final_return")
            learnt = "" if final is None else f"return {final:.1f}, "
            return f"{what}: {learnt}{rate} env steps/s ({row.timing}), {wall} s of training"
        case _:
            return f"{what}: {row.status.upper()}, {one_line(row.reason)}"


def _trial_table(rows: Iterable[TrialRow], *, width: int, times: bool = False) -> Table:
    """Return the table of trials; on a narrow terminal the columns stand closer, so that no label is cut."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=width < NARROW)
    rows = list(rows)
    for name in ("trial", "runners", "batch", "lr", "seed", "env steps/s", "wall time s", "return"):
        table.add_column({"lr": "cell", "seed": "block"}.get(name, name) if times else name, justify="right")
    table.add_column("timing", no_wrap=True)
    table.add_column("status", overflow="fold")
    for row in rows:
        last, evaluation = row.last_iteration, row.last_evaluation
        wall = row.summary.get("wall_time_s") if row.summary else (last.wall_time_s if last else None)
        latest = sum(evaluation.returns) / len(evaluation.returns) if evaluation else None
        final = row.summary.get("final_return") if row.status == "finished" else latest
        table.add_row(
            str(row.trial),
            str(row.num_env_runners),
            str(row.setting["train_batch_size"]),
            str(row.anchor) if times else f"{row.setting['lr']:.2g}",
            str(row.seed),
            _number(row.env_steps_per_s(), ",.0f"),
            _number(wall, ".1f"),
            _number(final, ".1f"),
            row.timing or "",
            _status(row),
        )
    return table


def _status(row: TrialRow) -> Text:
    if row.status == "running":
        return Text(f"running {row.progress:4.0%}" if row.timing is not None else "starting", style="cyan")
    if row.status == "finished":
        return Text("finished", style="green")
    return Text(f"{row.status.upper()}: {one_line(row.reason)}", style="red" if row.status == "failed" else "yellow")


def print_result(console: Console, rows: Iterable[TrialRow], best: Mapping[int, TrialRow], *, table_file: str) -> None:
    """Print the table of trials and the best setting of each scale."""
    rows = list(rows)
    console.print(_trial_table(rows, width=console.width))
    failed = sum(row.status == "failed" for row in rows)
    engine = engines_in_words(row.engine for row in rows)
    interrupted = sum(row.status == "interrupted" for row in rows)
    also = f", {interrupted} interrupted" if interrupted else ""
    counts = f"n = {count(len(rows), 'trial')}, {failed} failed{also}. Engine: {engine}."
    say(console, f"\n{counts} All columns: {table_file}")
    for timing, meaning in TIMING_NOTES.items():
        if any(row.timing == timing for row in rows):
            say(console, f"{timing}: {meaning}")
    if best:
        console.print("\n[bold]Best setting of each scale[/bold] (single trials: n=1, no interval)", markup=True)
    tuned = _varied(rows)
    for scale, row in best.items():
        values = ", ".join(f"{name} {_value(row.setting[name])}" for name in tuned)
        cut = ", every episode cut at the limit" if row.all_cut else ""
        say(
            console,
            f"  {count(scale, 'runner'):>11}: return {_number(row.summary.get('final_return'), '.1f')}{cut}, "
            f"score {_number(row.summary.get('score'), '.2f')} (trial {row.trial}: {values})",
        )


def _value(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _varied(rows: Iterable[TrialRow]) -> list[str]:
    """Return the parameters that differ between trials, lr and batch always among them."""
    settings = [row.setting for row in rows]
    always = {"train_batch_size", "lr"}
    return [
        name
        for name in (settings[0] if settings else {})
        if name != "num_env_runners" and (name in always or len({setting[name] for setting in settings}) > 1)
    ]


def print_plan(console: Console, plan: Plan, *, name: str) -> None:
    """Print what a study would run, and what each trial needs."""
    about = "up to " if any(request.stage for request in plan.requests) else ""
    console.print(
        f"[bold]{name}[/bold]: {about}{plan.num_trials} trials, about {duration(plan.hours * 3600)} here, "
        f"{cpu_hours(plan.hours * plan.cluster.capacity)}",
        markup=True,
    )
    nodes = ", ".join(
        f"{node.address} ({node.num_cpus} CPUs in Ray, {node.physical_cpus} cores, {node.memory_mb / 1024:.0f} GB)"
        for node in plan.cluster.nodes
    )
    say(console, f"Cluster: {nodes}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("runners", "trials"):
        table.add_column(column, justify="right")
    table.add_column("execution")
    for column in ("CPUs each", "memory each", "time each"):
        table.add_column(column, justify="right")
    table.add_column("timing will say")
    named = [(str(scale.num_env_runners), scale) for scale in plan.scales]
    for (runners, variant), scale in sorted(plan.variants.items()):
        folded = "" if scale.num_env_runners == runners else f", lanes in {scale.num_env_runners}"
        named.append((f"{runners} ({variant}{folded})", scale))
    for name_of_scale, scale in named:
        table.add_row(
            name_of_scale,
            str(scale.num_trials),
            scale.execution,
            str(scale.num_cpus),
            f"{scale.memory_mb / 1024:.1f} GB",
            f"~{duration(scale.hours * 3600)}",
            scale.label.timing + ("*" if scale.label.provisional else ""),
        )
    console.print(table)
    if any(scale.label.provisional for scale in (*plan.scales, *plan.variants.values())):
        console.print(f"measured*: environments wait; oversubscribed if CPU pressure reaches {PRESSURE_LIMIT:.0%}.")
    console.print("Times are guesses, good to a factor of three, from figures of a 2-core machine.")


def print_importance(console: Console, importance: Mapping[int, Mapping[str, float]], *, fewest: int) -> None:
    """Print the importance of each parameter, a column per scale."""
    if not importance:
        console.print(f"No scale has {fewest} trials that a sampler chose yet.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("parameter")
    for scale in importance:
        table.add_column(count(scale, "runner"), justify="right")
    names = list(dict.fromkeys(name for each in importance.values() for name in each))
    for name in names:
        table.add_row(name, *(f"{each.get(name, 0.0):.2f}" for each in importance.values()))
    console.print(table)
    console.print("Shares of what tells the better half of the trials apart (PED-ANOVA); few trials, rough shares.")


def print_stages(console: Console, rows: Iterable[TrialRow], *, table_file: str) -> None:
    """Print what a hold-up study has run, stage by stage."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    for name in ("trials", "failed", "CPU-hours", "best return"):
        table.add_column(name, justify="right")
    rows = list(rows)
    for stage in STAGES:
        here = [row for row in rows if row.stage == stage and row.ended]
        if here:
            spent = sum(row.summary.get("cpu_s_spent") or 0.0 for row in here) / 3600
            finals = [row.summary.get("final_return") for row in here if row.iterations is None]
            best = max((final for final in finals if final is not None), default=None)
            failed = str(sum(row.status == "failed" for row in here))
            table.add_row(stage, str(len(here)), failed, cpu_hours(spent).split()[0], _number(best, ".1f"))
    console.print(table)
    say(console, f"\nAll trials with all columns: {table_file}")


def print_front(console: Console, rows: Iterable[TrialRow]) -> None:
    """Print the trials of each scale that no other one beats in both return and cost."""
    console.print(
        "\n[bold]Return against cost[/bold]: trials that no other beats in both (single trials: n=1, no interval)",
        markup=True,
    )
    for scale, front in pareto_front(rows).items():
        for row in front:
            final, cost = row.summary.get("final_return"), row.summary.get("cpu_s_spent")
            cut = ", every episode cut at the limit," if row.all_cut else ""
            say(
                console,
                f"  {count(scale, 'runner'):>11}: return {_number(final, '.1f')}{cut} for {_number(cost, ',.0f')} "
                f"CPU-seconds of training (trial {row.trial}, {row.timing})",
            )


def _interval(estimate: Mapping[str, Any], form: str) -> Text:
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    if low is None or high is None or estimate["n"] < 2:
        return Text(f"{value:{form}} (no interval)")
    return Text(f"{value:{form}} [{float(low):{form}}, {float(high):{form}}]")


def print_certificate(console: Console, certificate: Mapping[str, Any], *, page: str) -> None:
    """Print the verdict, its laws and the arms; the page has the rest.

    Args:
        console: Where.
        certificate: `Certificate.to_json()`.
        page: Path of the whole certificate.
    """
    verdict = certificate["verdict"]
    console.print(f"\n[bold]Verdict: {verdict['sentence']}[/bold]", highlight=False, soft_wrap=True, markup=True)
    words = {True: "kept      ", False: "BROKEN    ", None: "not judged"}
    for check in verdict["checks"].values():
        say(console, f"  {words[check['passed']]} {check['law']}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("arm, on test seeds", no_wrap=True)
    for name in ("n", "failed", "solved"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("mean score [95 %]", "IQM return [95 %]"):
        table.add_column(name, justify="right", overflow="fold")
    for name, arm in certificate["arms"].items():
        shown = (_interval(arm["score"], ".3f"), _interval(arm["iqm_final_return"], ".1f"))
        table.add_row(name, str(arm["n"]), str(arm["n_failed"]), f"{arm['solved']}/{arm['n']}", *shown)
    console.print()
    console.print(table)
    say(console, f"\nIntervals, diagnosis and everything else: {page}")
