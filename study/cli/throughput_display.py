"""What a person sees of a throughput study: its plan, and at the end a line for each cell. Imports rich, no engine."""

import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from study.console import say
from study.engine import engine_of_space, engines_in_words, other_engine
from study.planning.plan import Plan
from study.records.ledger import PHASES, TrialRow
from study.records.timing import PRESSURE_LIMIT
from study.space.cells import BASE_CELL, Cell, cells_of
from study.space.spec import StudySpec
from study.text import count, duration

_COLUMNS: Mapping[str, str] = {
    "envs": "num_envs_per_env_runner",
    "batch": "train_batch_size",
    "minibatch": "minibatch_size",
    "epochs": "num_epochs",
}
"""Columns of a table of cells, besides runners and learners."""


def print_throughput_plan(console: Console, plan: Plan, spec: StudySpec, *, name: str) -> None:
    """Print the cells of a throughput study, what each needs, and how long all of it takes."""
    cells = [each.cell for each in plan.cells.values()]
    blocks = max(request.seed for request in plan.requests)
    console.print(
        f"[bold]{name}[/bold]: {len(cells)} cells in {blocks} blocks, {plan.num_trials} short trials, about "
        f"{duration(plan.hours * 3600)} here",
        highlight=False,
        markup=True,
    )
    table = _table_of_cells(cells)
    for column in ("runs", "CPUs each", "memory each", "training each"):
        table.add_column(column, justify="right")
    table.add_column("timing will say")
    for each in plan.cells.values():
        needs = each.needs
        table.add_row(
            *_words(each.cell, cells),
            str(needs.num_trials),
            str(needs.num_cpus),
            f"{needs.memory_mb / 1024:.1f} GB",
            f"~{duration(needs.hours * 3600)}",
            needs.label.timing + ("*" if needs.label.provisional else ""),
        )
    console.print(table)
    say(
        console,
        "Each block runs every cell once in random order, the base cell (anchor) at its beginning and at its end; one "
        "trial at a time, but those of a divided allocation side by side.",
    )
    labels = Counter(each.needs.label.timing for each in plan.cells.values())
    if any(each.needs.label.provisional for each in plan.cells.values()):
        console.print(f"measured*: environments wait; oversubscribed if CPU pressure reaches {PRESSURE_LIMIT:.0%}.")
    if labels["oversubscribed"]:
        say(
            console,
            f"oversubscribed: {labels['oversubscribed']} of {len(cells)} cells have more processes than cores; they "
            "run, and their times say nothing about scaling.",
        )
    if labels["emulated"]:
        say(console, "emulated: no clock; these times say nothing about real runners.")
    console.print("Times are guesses, good to a factor of three, from figures of a 2-core machine.")
    _print_engine(console, spec, engine_of_space(spec))


def print_throughput(console: Console, spec: StudySpec, rows: Iterable[TrialRow], *, folder: str, table: str) -> None:
    """Print what became of each cell, and the command that makes tables and figures of it.

    Args:
        console: Where.
        spec: The space.
        rows: The trials on record.
        folder: The study's folder.
        table: File with all columns.
    """
    rows, cells = list(rows), cells_of(spec)
    shown = _table_of_cells(cells)
    for column in ("runs", "failed", "env steps/s"):
        shown.add_column(column, justify="right")
    shown.add_column(Text("[lowest, highest], n"), no_wrap=True)
    shown.add_column("limited by", no_wrap=True)
    shown.add_column("timing", overflow="fold")
    by_cell = defaultdict(list)
    for row in rows:
        by_cell[row.anchor].append(row)
    for cell in cells:
        here = by_cell[cell.name]
        failed = sum(row.status == "failed" for row in here)
        rate, spread = _rate(here, cell)
        counts = str(len(here)), str(failed)
        shown.add_row(*_words(cell, cells), *counts, rate, Text(spread), _limit(here), _labels(here))
    console.print(shown)
    say(
        console,
        "env steps/s, and the phase that takes most of an iteration: medians, of measured runs where there are any; of "
        "a divided allocation, the steps of all its trials together.",
    )
    for reason in dict.fromkeys(row.timing_reason for row in rows if row.timing in ("oversubscribed", "tainted")):
        say(console, f"not measured: {reason}")
    for reason in dict.fromkeys(row.reason for row in rows if row.status == "failed"):
        say(console, f"failed: {reason}")
    _print_engine(console, spec, engines_in_words(row.engine for row in rows))
    say(console, f"\nn = {count(len(rows), 'trial')}. All columns: {table}")
    report = f"Speed-up, efficiency and models: python -m study report {shlex.quote(folder)}"
    console.print(report, soft_wrap=True, highlight=False, markup=False)


def _print_engine(console: Console, spec: StudySpec, engine: str) -> None:
    other, options = other_engine(spec)
    console.print(
        f"Engine: {engine}. Another engine scales otherwise; {other} is measured by a study of its own: {options}",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _table_of_cells(cells: Sequence[Cell]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("grids", overflow="fold")
    for column in ("runners", *_COLUMNS, *(["learners"] if _learners_differ(cells) else [])):
        table.add_column(column, justify="right")
    return table


def _words(cell: Cell, cells: Sequence[Cell]) -> list[str]:
    grids = ", ".join(filter(None, [BASE_CELL if cell.name == BASE_CELL else "", cell.grids]))
    trials = f"{cell.num_trials} x " if cell.num_trials > 1 else ""
    learners = [str(cell.num_learners)] if _learners_differ(cells) else []
    return [grids, f"{trials}{cell.num_env_runners}", *(str(cell.setting[at]) for at in _COLUMNS.values()), *learners]


def _learners_differ(cells: Sequence[Cell]) -> bool:
    return any(cell.num_learners for cell in cells)


def _counted(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the measured runs, or all that finished where none is measured."""
    finished = [row for row in rows if row.status == "finished"]
    return [row for row in finished if row.timing == "measured"] or finished


def _limit(rows: Sequence[TrialRow]) -> str:
    """Return the phase that takes the most time, with the median of its share."""
    known = [shares for row in _counted(rows) if (shares := row.phase_shares())]
    if not known:
        return "-"
    medians = {name: statistics.median(shares[name] for shares in known) for name in PHASES}
    most = max(medians, key=medians.__getitem__)
    return f"{PHASES[most]} {medians[most]:.0%}"


def _rate(rows: Sequence[TrialRow], cell: Cell) -> tuple[str, str]:
    """Return the median rate and its range."""
    runs: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row in _counted(rows):
        if (rate := row.env_steps_per_s()) is not None:
            runs[row.seed, row.trial if cell.num_trials == 1 else -1].append(rate)
    rates = [sum(run) for run in runs.values() if len(run) == cell.num_trials]
    if not rates:
        return "-", ""
    spread = f"[{min(rates):,.0f}, {max(rates):,.0f}], n={len(rates)}" if len(rates) > 1 else "n=1, no interval"
    return f"{statistics.median(rates):,.0f}", spread


def _labels(rows: Sequence[TrialRow]) -> str:
    """Return how many runs have which label; of those without one, how far they came."""
    count = Counter(row.timing or row.status for row in rows)
    return ", ".join(f"{label} {number}" for label, number in count.most_common())
