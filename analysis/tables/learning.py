"""T4 trials against runners, T8 steps to target against batch: what CPUs buy. Views of analysis.scaling; no engine."""

from collections.abc import Callable, Sequence
from typing import Any

from analysis.estimates.results import Results
from analysis.load import StudyData
from analysis.scaling.results import AllocationRow, GoodputRow
from analysis.tables import definitions as words
from analysis.tables.grid import TableColumn
from analysis.tables.numbers import in_words, overlap
from analysis.tables.results import left_out, of_engine
from analysis.tables.scaling_tables import THROUGHPUT_COMMAND
from analysis.tables.table import Table, estimate_columns, make_frame, without_rows
from study.statistics import Estimate

MOST_NAMED = 6
"""Rows that a sentence names; of the rest, how many there are."""
_ALLOCATION = (
    TableColumn(name="label", unit="", label="workload", meaning="What tells this allocation from the others."),
    TableColumn(name="num_trials", unit="1", label="trials", meaning="Trials side by side."),
    TableColumn(name="num_env_runners", unit="1", label="runners each", meaning="Environment runners of each."),
    TableColumn(name="num_cpus", unit="CPU", label="P", meaning="CPUs of all of them together."),
    TableColumn(name="n", unit="1", label="blocks", meaning="Blocks in which all of them were measured."),
    TableColumn(name="n_failed", unit="1", label="failed", meaning="Failed trials: their block has no total."),
    TableColumn(
        name="env_steps_per_s", unit="env steps/s", label="X, all", meaning="Sum of a block's rates.", estimate=True
    ),
    TableColumn(
        name="env_steps_per_s_per_cpu",
        unit="env steps/s/CPU",
        label="X per CPU",
        meaning="The same per CPU.",
        estimate=True,
    ),
    TableColumn(
        name="relative", unit="1", meaning="Over the row with the fewest trials, paired by block.", estimate=True
    ),
)
_GOODPUT = (
    TableColumn(name="label", unit="", label="workload", meaning="What tells this task and setting from the others."),
    TableColumn(name="num_env_runners", unit="1", label="n", meaning="Environment runners."),
    TableColumn(name="num_cpus", unit="CPU", label="P", meaning="CPUs allocated."),
    TableColumn(name="train_batch_size", unit="env steps", label="batch", meaning="Steps per iteration, as asked."),
    TableColumn(name="n", unit="1", label="runs", meaning="Runs that ended, the failed ones included."),
    TableColumn(name="n_failed", unit="1", label="failed", meaning="Failed runs: censored at the budget."),
    TableColumn(name="n_censored", unit="1", label="censored", meaning="Runs that did not reach the target."),
    TableColumn(name="n_timed", unit="1", label="measured", meaning="Measured runs behind the throughput."),
    TableColumn(name="steps_to_target", unit="env steps", meaning="Restricted mean up to the horizon.", estimate=True),
    TableColumn(name="statistical_efficiency", unit="1", meaning="Steps at the reference / here.", estimate=True),
    TableColumn(name="env_steps_per_s", unit="env steps/s", label="X", meaning="Throughput.", estimate=True),
    TableColumn(name="goodput", unit="env steps/s", meaning="X x statistical efficiency.", estimate=True),
    TableColumn(name="time_to_target_s", unit="s", label="time to target", meaning="Training seconds.", estimate=True),
    TableColumn(name="cpu_h_to_target", unit="CPU h", label="cost", meaning="CPU-hours to the target.", estimate=True),
)


@of_engine
def trials_against_runners(data: StudyData, results: Results) -> Table:
    """T4: the same CPUs as one trial of n runners, two of n/2, and so on."""
    found = results.allocation
    title = "Trials against runners: the same CPUs, spent side by side"
    said = (words.ALLOCATION, words.CPUS, words.THROUGHPUT, words.MEASURED, words.INTERVAL)
    if isinstance(found, str) or not found:
        why = (
            found
            if isinstance(found, str)
            else f"No allocation cells: no trials ran side by side. Run: {THROUGHPUT_COMMAND}"
        )
        return without_rows("T4", title, why, definitions=said, n_failed=results.num_failed)
    frame, columns = _frame(found, _ALLOCATION, named=len({row.label for row in found}) > 1)
    excluded: dict[str, int] = {}
    for row in found:
        for reason, count in left_out(row.excluded).items():
            excluded[reason] = excluded.get(reason, 0) + count
    return Table(
        key="T4",
        title=title,
        frame=make_frame(frame),
        columns=columns,
        definitions=said,
        n=sum(row.n * row.num_trials for row in found),
        n_failed=sum(row.n_failed for row in found),
        excluded=excluded,
        conclusion=_best_allocation(found),
    )


def _best_allocation(found: Sequence[AllocationRow]) -> str:
    rows = [row for row in found if row.relative is not None]
    if not rows:
        return "Only one way to spend the CPUs was measured: nothing to compare it with."
    best = max(rows, key=lambda row: row.relative.value if row.relative else 0.0)
    relative = "" if best.relative is None else in_words(best.relative)
    fewest = min(found, key=lambda row: row.num_trials)
    return (
        f"On the same CPUs {best.num_trials} trials of {best.num_env_runners} runners step {relative} times as fast as "
        f"{fewest.num_trials} of {fewest.num_env_runners}."
    )


@of_engine
def steps_to_target(data: StudyData, results: Results) -> Table:
    """T8: steps, time and cost to the target against the batch."""
    found = results.goodput
    title = "Steps, time and cost to the target against the batch"
    said = (words.STEPS_TO_TARGET, words.STATISTICAL, words.COST, words.THROUGHPUT, words.INTERVAL)
    if isinstance(found, str):
        return without_rows("T8", title, found, definitions=said, n_failed=results.num_failed)
    rows = [row for group in found.groups for row in group.rows]
    if not rows:
        why = (
            "No steps to target: no setting has several ended runs of which one reached a target. A study with such "
            "runs: python run_study.py --space cartpole_ppo.yaml"
        )
        excluded = left_out(found.excluded)
        return without_rows("T8", title, why, definitions=said, n_failed=found.n_failed, excluded=excluded)
    labels = [group.label for group in found.groups for _ in group.rows]
    frame, columns = _frame(rows, _GOODPUT, named=len(found.groups) > 1, labels=labels)
    return Table(
        key="T8",
        title=title,
        frame=make_frame(frame),
        columns=columns,
        definitions=said,
        n=found.n,
        n_failed=found.n_failed,
        excluded=left_out(found.excluded),
        conclusion=_fewest_steps(list(zip(labels if len(found.groups) > 1 else [""] * len(rows), rows, strict=True))),
        notes=(*found.notes, *_horizons(found.groups)),
    )


def _fewest_steps(rows: Sequence[tuple[str, GoodputRow]]) -> str:
    """Return what was least, with the rows that cannot be told from it."""
    steps = [(label, row, row.steps_to_target) for label, row in rows if row.steps_to_target is not None]
    if not steps:
        return f"No run of {sum(row.n for _, row in rows)} reached the target within its budget."
    reached = _least(steps, lambda row: f"reached by {row.n - row.n_censored} of {row.n} runs")
    text = f"The fewest env steps to the target: {reached}"
    timed = [(label, row, row.time_to_target_s) for label, row in rows if row.time_to_target_s is not None]
    if not timed:
        return f"{text}. No row has a measured clock: nothing is known of the time to the target."
    return f"{text}. The soonest, in s: {_least(timed, lambda row: f'n={row.n_timed} measured')}."


def _least(found: Sequence[tuple[str, GoodputRow, Estimate]], aside: Callable[[GoodputRow], str]) -> str:
    """Return the least of some estimates, and every row whose interval overlaps its own."""
    least = min(found, key=lambda each: each[2].value)
    rivals = [each for each in found if each is not least and overlap(each[2], least[2])]
    told = f"{in_words(least[2])} at {_where(*least[:2])}, {aside(least[1])}"
    if not rivals:
        return told
    if len(found) > 2 and len(rivals) == len(found) - 1:
        return f"{told}; not told apart from any of the other {len(rivals)} rows"
    named = "; ".join(_where(label, row) for label, row, _ in rivals[:MOST_NAMED])
    more = f"; and {len(rivals) - MOST_NAMED} more" if len(rivals) > MOST_NAMED else ""
    return f"{told}; not told apart from {named}{more}"


def _where(label: str, row: GoodputRow) -> str:
    runners = "1 runner" if row.num_env_runners == 1 else f"{row.num_env_runners} runners"
    batch = "" if row.train_batch_size is None else f", batch {row.train_batch_size:,}"
    return f"{runners}{batch}{f' ({label})' if label else ''}"


def _horizons(groups: Sequence[Any]) -> list[str]:
    named = len(groups) > 1
    return [
        f"{group.label + ': ' if named else ''}horizon {group.horizon:,} env steps; statistical efficiency 1 is at "
        f"{group.reference[0]} runners"
        + (f", batch {group.reference[1]:,}." if group.reference[1] is not None else ".")
        + (
            f" Evaluations are up to {group.resolution:,} env steps apart: a run was at the target at some time since "
            "the one before, and the intervals hold that."
            if group.resolution
            else ""
        )
        for group in groups
    ]


def _frame(
    rows: Sequence[Any], columns: tuple[TableColumn, ...], *, named: bool, labels: Sequence[str] | None = None
) -> tuple[dict[str, list[Any]], tuple[TableColumn, ...]]:
    """Return the frame of `rows` without columns that hold nothing, and without the workload where there is one."""
    frame: dict[str, list[Any]] = {}
    shown = []
    for column in columns:
        own = labels is not None and column.name == "label"
        values: list[Any] = list(labels or ()) if own else [getattr(row, column.name) for row in rows]
        if (column.name == "label" and not named) or all(value is None for value in values):
            continue
        shown.append(column)
        frame |= estimate_columns(column.name, values) if column.estimate else {column.name: values}
    return frame, tuple(shown)
