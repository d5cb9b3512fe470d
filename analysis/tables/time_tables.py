"""T5 phases and T6 POP tree: where the time of an iteration goes. Views of analysis.scaling; no engine."""

from collections.abc import Callable
from typing import Any

from analysis.estimates.results import Results
from analysis.load import StudyData
from analysis.scaling.phases import stragglers
from analysis.scaling.results import PhaseRow, Phases
from analysis.tables import definitions as words
from analysis.tables.grid import TableColumn
from analysis.tables.numbers import in_words
from analysis.tables.results import left_out, of_engine
from analysis.tables.scaling_tables import FIRST_COMMAND
from analysis.tables.table import Table, estimate_columns, make_frame, without_rows
from study.statistics import Estimate

NOTHING = f"No phases: no run is finished with a measured clock. Measure some: {FIRST_COMMAND}"
CLOSURE_AIM = 0.02
"""Share of an iteration that the phases may miss, at the median, before they explain it no more."""

_CELL = (
    TableColumn(name="workload", unit="", meaning="What tells this workload from the others."),
    TableColumn(name="num_env_runners", unit="1", label="n", meaning="Environment runners."),
    TableColumn(name="num_cpus", unit="CPU", label="P", meaning="CPUs allocated."),
    TableColumn(name="train_batch_size", unit="env steps", label="batch", meaning="Steps per iteration, as asked."),
    TableColumn(name="n", unit="1", label="runs", meaning="Measured runs."),
    TableColumn(name="n_failed", unit="1", label="failed", meaning="Failed runs of this cell: no time."),
)
MEANINGS = {
    "runners": "The mean runner's own time in sampling.",
    "imbalance": "From there to the slowest runner's end.",
    "transfer": "From there until its samples were here: sampling is runners + imbalance + transfer.",
    "learning": "The update: connectors, advantages, all epochs.",
    "sync": "Sending the new weights to the runners.",
    "rest": "The iteration less sampling, learning and sync.",
    "iteration": "The whole iteration, T.",
}
LONG = {"runners": "the mean runner's sampling", "imbalance": "waiting for the slowest runner"}
"""Phases by longer names, for sentences."""
_POP = (
    TableColumn(name="load_balance", unit="1", meaning="Mean / slowest runner time.", estimate=True),
    TableColumn(name="transfer", unit="1", meaning="Slowest runner time / sampling time.", estimate=True),
    TableColumn(name="phase", unit="1", meaning="Sampling time / iteration time.", estimate=True),
    TableColumn(name="useful", unit="1", meaning="Their product: mean runner time / iteration time.", estimate=True),
)


@of_engine
def phases(data: StudyData, results: Results) -> Table:
    """T5: seconds per iteration by phase, with the closure residual."""
    found = results.phases
    said = (words.PHASES, words.CONNECTOR, words.CLOSURE, words.MEASURED, words.INTERVAL)
    title = "Phases of a training iteration"
    if isinstance(found, str) or not found.rows:
        return _without("T5", title, found, said)
    names = list(dict.fromkeys(name for row in found.rows for name in row.seconds))
    columns = [
        TableColumn(
            name=f"{name}_s", unit="s", label=name.replace("_", " "), meaning=MEANINGS.get(name, ""), estimate=True
        )
        for name in names
    ]
    rest = (
        TableColumn(name="closure", unit="1", digits=2, meaning="|sum of the phases - iteration| / iteration."),
        TableColumn(name="unexplained", unit="1", meaning="Share of the iteration that no clock saw.", estimate=True),
    )
    seconds: dict[str, Callable[[PhaseRow], Any]] = {
        f"{name}_s": lambda row, name=name: row.seconds.get(name)  # type: ignore[misc]
        for name in names
    }
    return _table("T5", title, found, (*columns, *rest), said, _phase_sentence(found), seconds)


@of_engine
def pop_tree(data: StudyData, results: Results) -> Table:
    """T6: load balance x transfer x phase = useful share."""
    found = results.phases
    said = (words.POP, words.MEASURED, words.INTERVAL)
    title = "POP tree: which share of an iteration the runners step environments"
    if isinstance(found, str) or not found.rows:
        return _without("T6", title, found, said)
    return _table("T6", title, found, _POP, said, _pop_sentence(found), {}, notes=_stragglers(found))


def _stragglers(found: Phases) -> tuple[str, ...]:
    """Return a sentence for every cell in which the others surely wait for one runner."""
    several = len({row.label for row in found.rows}) > 1
    return tuple(
        f"Straggler at {each.num_env_runners} runners{f' ({each.label})' if several else ''}: the slowest one takes "
        f"{in_words(each.ratio)} times as long as the mean one."
        for each in stragglers(found)
    )


def _without(key: str, title: str, found: Phases | str, said: tuple[str, ...]) -> Table:
    if isinstance(found, str):
        return without_rows(key, title, found, definitions=said)
    excluded = left_out(found.excluded)
    return without_rows(key, title, NOTHING, definitions=said, n_failed=found.n_failed, excluded=excluded)


def _table(
    key: str,
    title: str,
    found: Phases,
    columns: tuple[TableColumn, ...],
    said: tuple[str, ...],
    conclusion: str,
    computed: dict[str, Callable[[PhaseRow], Any]],
    *,
    notes: tuple[str, ...] = (),
) -> Table:
    several = len({row.label for row in found.rows}) > 1
    frame: dict[str, list[Any]] = {}
    shown = []
    for column in (*_CELL, *columns):
        name = "label" if column.name == "workload" else column.name
        values = [computed[name](row) if name in computed else getattr(row, name) for row in found.rows]
        if column.name == "workload" and not several:
            continue
        shown.append(column)
        frame |= estimate_columns(column.name, values) if column.estimate else {column.name: values}
    return Table(
        key=key,
        title=title,
        frame=make_frame(frame),
        columns=tuple(shown),
        definitions=said,
        n=found.n,
        n_failed=found.n_failed,
        excluded=left_out(found.excluded),
        conclusion=conclusion,
        notes=notes,
    )


def _widest(found: Phases) -> PhaseRow:
    """Return the row of the largest scale; of several workloads there, that with most runs."""
    return max(found.rows, key=lambda row: (row.num_env_runners, row.n))


def _phase_sentence(found: Phases) -> str:
    row = _widest(found)
    shares = {name: share for name, share in row.shares.items() if name != "rest"}
    largest = max(shares, key=lambda name: shares[name].value, default="rest")
    told = f"{LONG.get(largest, largest)} takes {_percent(shares[largest])} of an iteration"
    open_ = [each for each in found.rows if each.unexplained_median > CLOSURE_AIM]
    closed = f"the phases explain every cell to within {CLOSURE_AIM:.0%} at the median"
    if open_:
        worst = max(open_, key=lambda each: each.unexplained_median)
        closed = (
            f"in {len(open_)} of {len(found.rows)} cells more than {CLOSURE_AIM:.0%} stay unexplained (at most "
            f"{worst.unexplained_median:.1%}, at {worst.num_env_runners} runners)"
        )
    return f"At {row.num_env_runners} runners {told}; {closed}."


def _pop_sentence(found: Phases) -> str:
    row = _widest(found)
    parts = {
        "waiting for the slowest runner": row.load_balance,
        "collecting its samples": row.transfer,
        "time outside sampling": row.phase,
    }
    least = min(parts, key=lambda name: parts[name].value)
    of = "the iteration" if least == "time outside sampling" else "sampling"
    return (
        f"At {row.num_env_runners} runners the mean runner steps environments {_percent(row.useful)} of the time; "
        f"the main loss is {least} ({1 - parts[least].value:.1%} of {of})."
    )


def _percent(share: Estimate) -> str:
    if not share.has_interval:
        return f"{share.value:.0%} (n={share.n}, no interval)"
    return f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}]"
