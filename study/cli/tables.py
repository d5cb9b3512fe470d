"""What a person sees of plans and results, for each kind of study. Imports rich, no engine."""

import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from study.console import say, table
from study.designs.search.worth import pareto_front
from study.engine import engine_of_space, engines_in_words, other_engine
from study.harmless import one_line
from study.planning.plan import Plan, TrialNeeds
from study.records.ledger import PHASES, TrialRow
from study.records.timing import PRESSURE_LIMIT
from study.space.cells import BASE_CELL, Cell, cells_of
from study.space.spec import StudySpec
from study.space.variants import STAGES
from study.text import MISSING, clock, count, cpu_hours, duration, estimate, gigabytes, number, plain, spans

TIMING_NOTES: Mapping[str, str] = {
    "oversubscribed": "more processes than cores; these times and rates say nothing about scaling.",
    "emulated": "the lanes of all runners in few processes; these times and rates say nothing about real runners.",
    "tainted": "a runner or sample was lost or others used its nodes; these times and rates say nothing about scaling.",
}
"""What a person must know of a timing that is not `measured`."""
GUESSED = "Times are guesses, good to a factor of three, from figures of a 2-core machine."
PROVISIONAL = f"measured*: environments wait; oversubscribed if CPU pressure reaches {PRESSURE_LIMIT:.0%}."
SINGLE = "(single trials: n=1, no interval)"
CUT = ", every episode cut at the limit"

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
    widths = {**columns, **ends}
    return table(
        list(widths),
        [
            (
                *(_CELLS[name](row) for name in columns),
                *([_state(row, now, narrow=True)] if narrow else [row.timing or "", _state(row, now)]),
            )
            for row in rows
        ],
        words=list(ends),
        least=widths if now is not None else {},
        width=width,
    )


_CELLS: Mapping[str, Callable[[TrialRow], str]] = {
    "trial": lambda row: str(row.trial),
    "block": lambda row: str(row.seed),
    "runners": lambda row: str(row.num_env_runners),
    "envs": lambda row: plain(row.setting.get("num_envs_per_env_runner", MISSING)),
    "batch": lambda row: str(row.setting["train_batch_size"]),
    "minibatch": lambda row: plain(row.setting.get("minibatch_size", MISSING)),
    "epochs": lambda row: plain(row.setting.get("num_epochs", MISSING)),
    "lr": lambda row: f"{row.setting['lr']:.2g}",
    "seed": lambda row: str(row.seed),
    "env steps/s": lambda row: number(row.env_steps_per_s(), ",.0f"),
    "wall time s": lambda row: number(_wall_time_s(row)),
    "return": lambda row: number(_latest_return(row), ".1f"),
}
"""Heading -> what a column of the table of trials shows."""
_OF_SETTINGS = {
    "trial": 5,
    "runners": 7,
    "batch": 6,
    "lr": 7,
    "seed": 4,
    "env steps/s": 7,
    "wall time s": 6,
    "return": 6,
}
_OF_CELLS = {"trial": 5, "block": 5, "runners": 7, "envs": 4, "batch": 6, "minibatch": 9, "epochs": 6} | {
    "env steps/s": 7,
    "wall time s": 6,
}
"""Columns of a study that learns, and of one that times cells, with the width that their numbers take."""
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
            return Text(row.timing or "finished" if narrow else "finished", style="green")
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


def print_result(console: Console, rows: Iterable[TrialRow], best: Mapping[int, TrialRow], *, table_file: str) -> None:
    """Print the table of trials and the best setting of each scale."""
    rows = list(rows)
    console.print(trial_table(rows, width=console.width))
    say_reasons(console, rows)
    statuses = Counter(row.status for row in rows)
    also = f", {statuses['interrupted']} interrupted" if statuses["interrupted"] else ""
    engine = engines_in_words(row.engine for row in rows)
    counts = f"n = {count(len(rows), 'trial')}, {statuses['failed']} failed{also}. Engine: {engine}."
    say(console, f"\n{counts} All columns: {table_file}")
    for timing, meaning in TIMING_NOTES.items():
        if any(row.timing == timing for row in rows):
            say(console, f"{timing}: {meaning}")
    if best:
        say(console, "")
        say(console, f" {SINGLE}", title="Best setting of each scale")
    tuned = _varied(rows)
    for scale, row in best.items():
        values = ", ".join(f"{name} {plain(row.setting[name])}" for name in tuned)
        say(
            console,
            f"  {count(scale, 'runner'):>11}: return {number(row.summary.get('final_return'), '.1f')}"
            f"{CUT if row.all_cut else ''}, score {number(row.summary.get('score'), '.2f')} "
            f"(trial {row.trial}: {values})",
        )


def _varied(rows: Sequence[TrialRow]) -> list[str]:
    """Return the parameters that differ between trials, lr and batch always among them."""
    settings = [row.setting for row in rows]
    always = {"train_batch_size", "lr"}
    return [
        name
        for name in (settings[0] if settings else {})
        if name != "num_env_runners" and (name in always or len({setting[name] for setting in settings}) > 1)
    ]


def print_front(console: Console, rows: Iterable[TrialRow]) -> None:
    """Print the trials of each scale that no other one beats in both return and cost."""
    say(console, "")
    say(console, f": trials that no other beats in both {SINGLE}", title="Return against cost")
    for scale, front in pareto_front(rows).items():
        for row in front:
            final, cost = row.summary.get("final_return"), row.summary.get("cpu_s_spent")
            say(
                console,
                f"  {count(scale, 'runner'):>11}: return {number(final, '.1f')}{f'{CUT},' if row.all_cut else ''} for "
                f"{number(cost, ',.0f')} CPU-seconds of training (trial {row.trial}, {row.timing})",
            )


def print_importance(console: Console, importance: Mapping[int, Mapping[str, float]], *, fewest: int) -> None:
    """Print the importance of each parameter, a column per scale."""
    if not importance:
        say(console, f"No scale has {fewest} trials that a sampler chose yet.")
        return
    names = dict.fromkeys(name for each in importance.values() for name in each)
    headings = ("parameter", *(count(scale, "runner") for scale in importance))
    rows = [(name, *(f"{each.get(name, 0.0):.2f}" for each in importance.values())) for name in names]
    console.print(table(headings, rows, words=("parameter",), width=console.width))
    say(console, "Shares of what tells the better half of the trials apart (PED-ANOVA); few trials, rough shares.")


# --- plans ----------------------------------------------------------------------------------------------------------


def print_plan(console: Console, plan: Plan, *, name: str) -> None:
    """Print what a study would run, and what each trial needs."""
    about = "up to " if any(request.stage for request in plan.requests) else ""
    say(
        console,
        f": {about}{plan.num_trials} trials, about {duration(plan.hours * 3600)} here, "
        f"{cpu_hours(plan.hours * plan.cluster.capacity)}",
        title=name,
    )
    nodes = ", ".join(
        f"{node.address} ({node.num_cpus} CPUs in Ray, {node.physical_cpus} cores, {node.memory_mb / 1024:.0f} GB)"
        for node in plan.cluster.nodes
    )
    say(console, f"Cluster: {nodes}")
    named = [(str(scale.num_env_runners), scale) for scale in plan.scales]
    for (runners, variant), scale in sorted(plan.variants.items()):
        inside = "" if scale.num_env_runners == runners else f", lanes in {scale.num_env_runners}"
        named.append((f"{runners} ({variant}{inside})", scale))
    headings = ("runners", "trials", "execution", "CPUs each", "memory each", "time each", "timing will say")
    rows = [(shown, str(scale.num_trials), scale.execution, *_needs(scale)) for shown, scale in named]
    console.print(table(headings, rows, fold=("execution", "timing will say"), width=console.width))
    if any(scale.label.provisional for _, scale in named):
        say(console, PROVISIONAL)
    say(console, GUESSED)


def _needs(scale: TrialNeeds) -> tuple[str, str, str, str]:
    timing = scale.label.timing + ("*" if scale.label.provisional else "")
    return str(scale.num_cpus), gigabytes(scale.memory_mb), f"~{duration(scale.hours * 3600)}", timing


# --- hold-up studies ------------------------------------------------------------------------------------------------


def print_stages(console: Console, rows: Iterable[TrialRow], *, table_file: str) -> None:
    """Print what a hold-up study has run, stage by stage."""
    rows = list(rows)
    shown = []
    for stage in STAGES:
        here = [row for row in rows if row.stage == stage and row.ended]
        if here:
            spent = sum(row.summary.get("cpu_s_spent") or 0.0 for row in here) / 3600
            finals = [row.summary.get("final_return") for row in here if row.iterations is None]
            best = max((final for final in finals if final is not None), default=None)
            failed = str(sum(row.status == "failed" for row in here))
            shown.append((stage, str(len(here)), failed, cpu_hours(spent).split()[0], number(best, ".1f")))
    headings = ("stage", "trials", "failed", "CPU-hours", "best return")
    console.print(table(headings, shown, words=("stage",), width=console.width))
    say(console, f"\nAll trials with all columns: {table_file}")


def print_certificate(console: Console, certificate: Mapping[str, Any], *, page: str) -> None:
    """Print the verdict, its rules and the arms; the page has the rest.

    Args:
        console: Where.
        certificate: `Certificate.to_json()`.
        page: Path of the whole certificate.
    """
    verdict = certificate["verdict"]
    say(console, "")
    say(console, "", title=f"Verdict: {verdict['sentence']}")
    words = {True: "kept      ", False: "BROKEN    ", None: "not judged"}
    for check in verdict["checks"].values():
        say(console, f"  {words[check['passed']]} {check['law']}")
    headings = ("arm, on test seeds", "n", "failed", "solved", "mean score [95 %]", "IQM return [95 %]")
    rows = [
        (
            name,
            str(arm["n"]),
            str(arm["n_failed"]),
            f"{arm['solved']}/{arm['n']}",
            _interval(arm["score"], ".3f"),
            _interval(arm["iqm_final_return"], ".1f"),
        )
        for name, arm in certificate["arms"].items()
    ]
    say(console, "")
    console.print(table(headings, rows, words=headings[:1], width=console.width))
    say(console, f"\nIntervals, diagnosis and everything else: {page}")


def _interval(found: Mapping[str, Any], form: str) -> str:
    return estimate(found["value"], found["low"], found["high"], n=found["n"], form=form)


# --- throughput studies ---------------------------------------------------------------------------------------------

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
    needs = [each.needs for each in plan.cells.values()]
    blocks = max(request.seed for request in plan.requests)
    time = duration(plan.hours * 3600)
    short = f"{plan.num_trials} short trials"
    say(console, f": {len(cells)} cells in {blocks} blocks, {short}, about {time} here", title=name)
    headings = (*_cell_headings(cells), "runs", "CPUs each", "memory each", "training each", "timing will say")
    rows = [
        (*_words(cell, cells), str(need.num_trials), *_needs(need)) for cell, need in zip(cells, needs, strict=True)
    ]
    console.print(table(headings, rows, fold=("grids", "timing will say"), width=console.width))
    say(
        console,
        "Each block runs every cell once in random order, the base cell (anchor) at its beginning and at its end; one "
        "trial at a time, but those of a divided allocation side by side.",
    )
    labels = Counter(need.label.timing for need in needs)
    if any(need.label.provisional for need in needs):
        say(console, PROVISIONAL)
    if labels["oversubscribed"]:
        say(
            console,
            f"oversubscribed: {labels['oversubscribed']} of {len(cells)} cells have more processes than cores; they "
            "run, and their times say nothing about scaling.",
        )
    if labels["emulated"]:
        say(console, "emulated: no clock; these times say nothing about real runners.")
    say(console, GUESSED)
    _print_engine(console, spec, engine_of_space(spec))


def print_throughput(
    console: Console, spec: StudySpec, rows: Iterable[TrialRow], *, folder: str, table_file: str
) -> None:
    """Print what became of each cell, and the command that makes tables and figures of it.

    Args:
        console: Where.
        spec: The space.
        rows: The trials on record.
        folder: The study's folder.
        table_file: File with all columns.
    """
    rows, cells = list(rows), cells_of(spec)
    by_cell = defaultdict(list)
    for row in rows:
        by_cell[row.anchor].append(row)
    console.print(_cell_table(cells, by_cell, console.width))
    say(
        console,
        "env steps/s, and the phase that takes most of an iteration: medians, of measured runs where there are any; of "
        "a divided allocation, the steps of all its trials together.",
    )
    for reason in dict.fromkeys(row.timing_reason for row in rows if row.timing in ("oversubscribed", "tainted")):
        say(console, f"not measured: {reason}")
    say_reasons(console, rows)
    _print_engine(console, spec, engines_in_words(row.engine for row in rows))
    say(console, f"\nn = {count(len(rows), 'trial')}. All columns: {table_file}")
    say(console, f"Speed-up, efficiency and models: python -m study report {shlex.quote(folder)}")


def _cell_table(cells: Sequence[Cell], by_cell: Mapping[str | None, Sequence[TrialRow]], width: int) -> Table:
    spread = "[lowest, highest], n"
    headings = (*_cell_headings(cells), "runs", "failed", "env steps/s", spread, "limited by", "timing")
    rows = []
    for cell in cells:
        here = by_cell[cell.name]
        counts = str(len(here)), str(sum(row.status == "failed" for row in here))
        labels = Counter(row.timing or row.status for row in here)
        shown = ", ".join(f"{label} {number}" for label, number in labels.most_common())
        rows.append((*_words(cell, cells), *counts, *_rate(here, cell), _limit(here), shown))
    return table(headings, rows, words=(spread, "limited by"), fold=("grids", "timing"), width=width)


def _print_engine(console: Console, spec: StudySpec, engine: str) -> None:
    other, options = other_engine(spec)
    text = f"Engine: {engine}. Another engine scales otherwise; {other} is measured by a study of its own: {options}"
    console.print(text, soft_wrap=True, highlight=False)


def _cell_headings(cells: Sequence[Cell]) -> tuple[str, ...]:
    return ("grids", "runners", *_COLUMNS, *(["learners"] if _learners_differ(cells) else []))


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
        return MISSING
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
        return MISSING, ""
    spread = f"[{min(rates):,.0f}, {max(rates):,.0f}], n={len(rates)}" if len(rates) > 1 else "n=1, no interval"
    return f"{statistics.median(rates):,.0f}", spread
