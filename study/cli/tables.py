"""What a person sees of plans and results, for each kind of study. Imports rich, no engine."""

import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from study.console import NARROW, say, table
from study.designs.search.worth import pareto_front
from study.engine import engine_of_space, engines_in_words, other_engine
from study.errors import StudyError
from study.harmless import one_line
from study.planning.plan import Plan, TrialNeeds
from study.records.ledger import TrialRow
from study.records.sums import PHASES
from study.records.timing import PRESSURE_LIMIT
from study.space.spec import StudySpec
from study.space.throughput import BASE_CELL, Cell, cells_of
from study.text import MISSING, clock, count, cpu_hours, duration, gigabytes, number, plain, spans

if TYPE_CHECKING:
    from analysis.answers import Answer

GUESSED = "Times are guesses, good to a factor of three, from figures of a 2-core machine."
PROVISIONAL = f"measured*: environments wait; oversubscribed if CPU pressure reaches {PRESSURE_LIMIT:.0%}."
WIDEST = 100
"""Columns of a line of text at most: longer ones are hard to read."""

# --- trials ---------------------------------------------------------------------------------------------------------


def trial_table(rows: Iterable[TrialRow], *, width: int, times: bool = False, now: float | None = None) -> Table:
    """Return the table of trials, a line for each.

    Args:
        rows: The trials.
        width: Columns of the terminal; on a narrow one, one column says the state of a trial or how it was timed.
        times: Whether the trials are runs of cells in blocks, each for its times.
        now: Seconds since the epoch while the study runs: columns then have their full width from the start.
    """
    narrow = width < _ROOM_FOR_BOTH
    columns = _OF_CELLS if times else _OF_SETTINGS
    ends = {"state": 14} if narrow else {"timing": 14, "status": 13}
    widths = {**{name: _CELLS[name][0] for name in columns}, **ends}
    return table(
        list(widths),
        [
            (
                *(_CELLS[name][1](row) for name in columns),
                *([_state(row, now, narrow=True)] if narrow else [row.timing or "", _state(row, now)]),
            )
            for row in rows
        ],
        words=list(ends),
        least=widths if now is not None else {},
        width=width,
    )


_CELLS: Mapping[str, tuple[int, Callable[[TrialRow], str]]] = {
    "trial": (5, lambda row: str(row.trial)),
    "block": (5, lambda row: str(row.seed)),
    "runners": (7, lambda row: str(row.num_env_runners)),
    "envs": (4, lambda row: plain(row.setting.get("num_envs_per_env_runner", MISSING))),
    "batch": (6, lambda row: str(row.setting["train_batch_size"])),
    "minibatch": (9, lambda row: plain(row.setting.get("minibatch_size", MISSING))),
    "epochs": (6, lambda row: plain(row.setting.get("num_epochs", MISSING))),
    "lr": (7, lambda row: number(row.setting.get("lr"), ".2g")),
    "seed": (4, lambda row: str(row.seed)),
    "env steps/s": (7, lambda row: number(row.sums.env_steps_per_s(), ",.0f")),
    "wall time s": (6, lambda row: number(_wall_time_s(row))),
    "return": (6, lambda row: number(_latest_return(row), ".1f")),
}
"""Heading -> width that the numbers of a column take, and what the column shows of a trial."""
_OF_SETTINGS = ("trial", "runners", "batch", "lr", "seed", "env steps/s", "wall time s", "return")
_OF_CELLS = ("trial", "block", "runners", "envs", "batch", "minibatch", "epochs", "env steps/s", "wall time s")
"""Columns of a study that learns, and of one that times cells."""
_ROOM_FOR_BOTH = 106
"""Columns of a terminal from which on timing and status have a column each."""


def _wall_time_s(row: TrialRow) -> float | None:
    if row.summary:
        return row.summary.get("wall_time_s")
    return row.last_iteration.wall_time_s if row.last_iteration else None


def _latest_return(row: TrialRow) -> float | None:
    if row.status == "finished":
        return row.summary.get("final_return")
    returns = row.last_evaluation.returns if row.last_evaluation else ()
    return sum(returns) / len(returns) if returns else None


def _state(row: TrialRow, now: float | None, *, narrow: bool = False) -> Text:
    """Return how far a trial is or how it ended; where there is one column for both, a finished one says its timing."""
    match row.status:
        case "running" if row.timing is None:
            return Text("starting" if now is None else f"starting {clock(now - row.started)}", style="cyan")
        case "running":
            return Text(f"running {row.progress:4.0%}", style="cyan")
        case "finished":
            shown = row.timing or "finished" if narrow else "finished"
            return Text(shown, style="green" if shown in ("measured", "finished") else "")
        case _:
            return Text(row.status.upper(), style="red" if row.status == "failed" else "yellow")


def say_reasons(console: Console, rows: Iterable[TrialRow]) -> None:
    """Print why trials failed or were interrupted, a line for each reason."""
    trials: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if row.reason and row.status != "finished":
            trials[row.status.upper(), one_line(row.reason)].append(row.trial)
    for (status, reason), numbers in trials.items():
        say(console, f"{status}, trial{'s' if len(numbers) > 1 else ''} {spans(numbers)}: {reason}")


def print_result(console: Console, rows: Iterable[TrialRow], *, table_file: str) -> None:
    """Print the table of trials, why some failed, and where all of it is."""
    rows = list(rows)
    console.print(trial_table(rows, width=console.width))
    say_reasons(console, rows)
    say_counts(console, rows, table_file)


def say_counts(console: Console, rows: Sequence[TrialRow], table_file: str) -> None:
    """Print how many trials there are, by which engine, and the file with all columns."""
    statuses = Counter(row.status for row in rows)
    also = f", {statuses['interrupted']} interrupted" if statuses["interrupted"] else ""
    engine = engines_in_words(row.engine for row in rows)
    counts = f"n = {count(len(rows), 'trial')}, {statuses['failed']} failed{also}. Engine: {engine}."
    say(console, f"\n{counts}\nAll columns: {table_file}")


def answer_of(folder: Path) -> "Answer | str":
    """Return what the study says, or why that is not known: whatever goes wrong here, the study itself went well."""
    try:
        import analysis

        return analysis.open(folder).answer()
    except KeyboardInterrupt:
        return f"The answer was left out, as you wished. To get it: python -m study report {shlex.quote(str(folder))}"
    except Exception as error:  # noqa: BLE001 (see above)
        what = error if isinstance(error, StudyError) else f"{type(error).__name__}: {error}"
        return f"The answer cannot be given: {one_line(str(what))} The records are whole."


def print_answer(console: Console, answer: "Answer") -> None:
    """Print what a study says: the sentence in bold, then the rest."""
    sentence, _, rest = answer.to_text(min(console.width, WIDEST)).partition("\n\n")
    console.print(Text(sentence.rstrip(), style="bold"), soft_wrap=True)
    if rest:
        console.print(Text(f"\n{rest.rstrip()}"), soft_wrap=True)


def print_front(console: Console, rows: Iterable[TrialRow]) -> None:
    """Print the trials of each scale that no other one beats in both return and cost."""
    say(console, "")
    about = ": trials that no other beats in both (single trials: n=1, no interval)"
    say(console, about, title="Return against cost")
    for scale, front in pareto_front(rows).items():
        for row in front:
            final, cost = row.summary.get("final_return"), row.summary.get("cpu_s_spent")
            say(
                console,
                f"  {count(scale, 'runner'):>11}: return {number(final, '.1f')} for "
                f"{number(cost, ',.0f')} CPU-seconds of training (trial {row.trial}, {row.timing})",
            )


def print_importance(console: Console, importance: Mapping[int, Mapping[str, float]], *, fewest: int) -> None:
    """Print the importance of each parameter, a column per scale."""
    if not importance:
        say(console, f"No scale has {fewest} trials yet that a sampler chose, with different results.")
        return
    names = dict.fromkeys(name for each in importance.values() for name in each)
    headings = ("parameter", *(count(scale, "runner") for scale in importance))
    rows = [(name, *(f"{each.get(name, 0.0):.2f}" for each in importance.values())) for name in names]
    console.print(table(headings, rows, words=("parameter",), width=console.width))
    say(console, "Shares of what tells the better half of the trials apart (PED-ANOVA); few trials, rough shares.")


# --- plans ----------------------------------------------------------------------------------------------------------


def print_plan(console: Console, plan: Plan, spec: StudySpec, *, name: str) -> None:
    """Print what a study would run, what each trial needs, and how long all of it takes."""
    hours, time = plan.hours * plan.cluster.capacity, duration(plan.hours * 3600)
    about = "up to " if any(request.stage and not plan.cells for request in plan.requests) else ""
    cells = [each.cell for each in plan.cells.values()]
    blocks = f", {len(cells)} cells in {max(request.seed for request in plan.requests)} blocks" if cells else ""
    what = f": {about}{count(plan.num_trials, 'trial')}{blocks}, about {time} here, {cpu_hours(hours)}"
    say(console, what, title=name)
    nodes = ", ".join(
        f"{node.address} ({count(node.num_cpus, 'CPU')} in Ray, {count(node.physical_cpus, 'core')}, "
        f"{node.memory_mb / 1024:.0f} GB)"
        for node in plan.cluster.nodes
    )
    say(console, f"Cluster: {nodes}")
    if cells:
        needs = [each.needs for each in plan.cells.values()]
        grids = [] if console.width < NARROW else ["grids"]
        headings = (*grids, "runners", *columns_of(cells), "trials")
        named = [[*([_grids_of(cell)] if grids else []), *cell_words(cell, cells)] for cell in cells]
    else:
        headings, needs, named = (
            ("runners", "trials", "execution"),
            list(plan.scales),
            [[str(each.num_env_runners)] for each in plan.scales],
        )
        for (runners, variant), scale in sorted(plan.variants.items()):
            inside = "" if scale.num_env_runners == runners else f", lanes in {scale.num_env_runners}"
            needs.append(scale)
            named.append([f"{runners} ({variant}{inside})"])
    rows = [
        [*words, str(each.num_trials), *([] if cells else [each.execution]), *_needs(each)]
        for words, each in zip(named, needs, strict=True)
    ]
    headings = (*headings, "CPUs each", "memory each", "time each", "timing will say")
    if cells:
        say_equal(console, cells)
    words = ("execution", "timing will say")
    console.print(table(headings, rows, words=words, fold=("grids",), width=console.width))
    if any(each.label.provisional for each in needs):
        say(console, PROVISIONAL)
    if cells:
        _explain_cells(console, spec, Counter(each.label.timing for each in needs), len(cells))
    say(console, GUESSED)


def _needs(scale: TrialNeeds) -> tuple[str, ...]:
    timing = scale.label.timing + ("*" if scale.label.provisional else "")
    memory, time = gigabytes(scale.memory_mb), f"~{duration(scale.hours * 3600)}"
    return str(scale.num_cpus), memory, time, timing


def _explain_cells(console: Console, spec: StudySpec, labels: Mapping[str, int], num_cells: int) -> None:
    """Print in which order cells run, what their times will say, and which engine they time."""
    say(
        console,
        "Each block runs every cell once in random order, the base cell at its beginning and at its end; one trial at "
        "a time.",
    )
    if labels.get("oversubscribed"):
        say(
            console,
            f"oversubscribed: {labels['oversubscribed']} of {num_cells} cells have more processes than cores; they "
            "run, and their times say nothing about scaling.",
        )
    if labels.get("emulated"):
        say(console, "emulated: no clock; these times say nothing about real runners.")
    engine, another = engine_of_space(spec), other_engine(spec)
    if another is None:
        say(console, f"Engine: {engine}.")
        return
    other, options = another
    say(console, f"Engine: {engine}. Another engine scales otherwise; {other} is measured by a study of its own:")
    console.print(f"  {options}", soft_wrap=True)


# --- hold-up studies ------------------------------------------------------------------------------------------------


def print_stages(console: Console, rows: Iterable[TrialRow], *, table_file: str) -> None:
    """Print what a hold-up study has run, stage by stage."""
    rows = list(rows)
    shown = []
    for stage in dict.fromkeys(row.stage for row in rows):
        here = [row for row in rows if row.stage == stage and row.ended]
        if here:
            spent = sum(row.cpu_s_lost + (row.summary.get("cpu_s_spent") or 0.0) for row in here) / 3600
            finals = [row.summary.get("final_return") for row in here if row.iterations is None]
            best = max((final for final in finals if final is not None), default=None)
            failed = str(sum(row.status == "failed" for row in here))
            shown.append((stage or "", str(len(here)), failed, cpu_hours(spent).split()[0], number(best, ".1f")))
    headings = ("stage", "trials", "failed", "CPU-hours", "best return")
    console.print(table(headings, shown, words=("stage",), width=console.width))
    say_reasons(console, rows)
    say_counts(console, rows, table_file)


# --- throughput studies ---------------------------------------------------------------------------------------------

_COLUMNS: Mapping[str, str] = {
    "envs": "num_envs_per_env_runner",
    "batch": "train_batch_size",
    "minibatch": "minibatch_size",
    "epochs": "num_epochs",
}
"""Columns of a table of cells, besides runners and learners."""


def columns_of(cells: Sequence[Cell]) -> list[str]:
    """Return the columns that tell these cells apart, besides their runners."""
    varying = [name for name, at in _COLUMNS.items() if len({cell.setting[at] for cell in cells}) > 1]
    return [*varying, *(["learners"] if any(cell.num_learners for cell in cells) else [])]


def say_equal(console: Console, cells: Sequence[Cell]) -> None:
    """Print the values that all cells have, which the table then leaves out."""
    equal = [f"{name} {cells[0].setting[at]}" for name, at in _COLUMNS.items() if name not in columns_of(cells)]
    if equal:
        say(console, f"Equal in all cells: {', '.join(equal)}")


def cell_words(cell: Cell, cells: Sequence[Cell]) -> list[str]:
    """Return the runners of a cell and its values in these columns."""
    values = [
        str(cell.num_learners if name == "learners" else cell.setting[_COLUMNS[name]]) for name in columns_of(cells)
    ]
    return [str(cell.num_env_runners), *values]


def _grids_of(cell: Cell) -> str:
    return ", ".join(filter(None, ["base cell" if cell.name == BASE_CELL else "", cell.grids]))


def print_throughput(console: Console, spec: StudySpec, rows: Iterable[TrialRow], *, table_file: str) -> None:
    """Print what became of each cell, a line for each."""
    rows, cells = list(rows), cells_of(spec)
    by_cell = defaultdict(list)
    for row in rows:
        by_cell[row.anchor].append(row)
    headings = ("runners", *columns_of(cells), "env steps/s", "lowest to highest", "limited by", "measured")
    lines = [
        (*cell_words(cell, cells), *_rate(here), _limit(here), _num_measured(here))
        for cell, here in ((cell, by_cell[cell.name]) for cell in cells)
    ]
    say_equal(console, cells)
    console.print(table(headings, lines, words=["limited by"], width=console.width))
    say(
        console,
        "env steps/s, and the phase that takes most of an iteration: medians, of measured runs where there are any.",
    )
    for reason in dict.fromkeys(row.timing_reason for row in rows if row.timing in ("oversubscribed", "tainted")):
        say(console, f"not measured: {reason}")
    say_reasons(console, rows)
    say_counts(console, rows, table_file)


def _num_measured(rows: Sequence[TrialRow]) -> str:
    return f"{sum(row.timing == 'measured' and row.status == 'finished' for row in rows)} of {len(rows)}"


def _counted(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the measured runs, or all that finished where none is measured."""
    finished = [row for row in rows if row.status == "finished"]
    return [row for row in finished if row.timing == "measured"] or finished


def _limit(rows: Sequence[TrialRow]) -> str:
    """Return the phase that takes the most time, with the median of its share."""
    known = [shares for row in _counted(rows) if (shares := row.sums.phase_shares())]
    if not known:
        return MISSING
    medians = {name: statistics.median(shares[name] for shares in known) for name in PHASES}
    most = max(medians, key=medians.__getitem__)
    return f"{PHASES[most]} {medians[most]:.0%}"


def _rate(rows: Sequence[TrialRow]) -> tuple[str, str]:
    """Return the median rate and its range."""
    rates = [rate for row in _counted(rows) if (rate := row.sums.env_steps_per_s()) is not None]
    if not rates:
        return MISSING, ""
    spread = f"{min(rates):,.0f} to {max(rates):,.0f}" if len(rates) > 1 else "one run"
    return f"{statistics.median(rates):,.0f}", spread
