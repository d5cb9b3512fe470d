"""T2 strong and T3 weak scaling, and the rows that are not measured, apart. Views of analysis.scaling; no engine."""

from collections.abc import Sequence
from typing import Any

from analysis.estimates.results import Results
from analysis.load import StudyData
from analysis.scaling.results import Drift, Refusal, Scaling, ScalingGroup, ScalingRow
from analysis.tables import definitions as words
from analysis.tables.grid import TableColumn
from analysis.tables.numbers import in_words
from analysis.tables.results import left_out, of_engine
from analysis.tables.table import Table, estimate_columns, make_frame, without_rows

THROUGHPUT_COMMAND = "python run_study.py --space throughput.yaml"
FIRST_COMMAND = f"{THROUGHPUT_COMMAND} (on fewer than 47 CPUs: python run_study.py --space waiting.yaml)"
"""What measures a study that has no measured rows of equal workload."""
MOST_REFUSALS = 12
"""Refusals that a table tells; of the rest, how many there are."""

_SCALE = (
    TableColumn(name="workload", unit="", meaning="What tells this group of equal fingerprints from the others."),
    TableColumn(name="num_env_runners", unit="1", label="n", meaning="Environment runners, n."),
    TableColumn(name="num_cpus", unit="CPU", label="P", meaning="CPUs allocated, P."),
    TableColumn(name="num_nodes", unit="1", label="nodes", meaning="Nodes that held processes of the trial."),
    TableColumn(name="train_batch_size", unit="env steps", label="batch", meaning="Steps per iteration, as asked."),
    TableColumn(name="n", unit="1", label="runs", meaning="Measured runs."),
    TableColumn(name="n_failed", unit="1", label="failed", meaning="Failed runs of this workload and scale: no time."),
    TableColumn(
        name="env_steps_per_s", unit="env steps/s", label="X", meaning="Throughput X, total over total.", estimate=True
    ),
    TableColumn(
        name="iteration_time_s", unit="s", label="T", meaning="Seconds per training iteration, T.", estimate=True
    ),
)
_STRONG = (
    *_SCALE,
    TableColumn(name="speed_up", unit="1", label="S", meaning="Speed-up S = T(n_ref) / T(n).", estimate=True),
    TableColumn(
        name="efficiency_n", unit="1", label="E_n", meaning="Efficiency per runner, S n_ref / n.", estimate=True
    ),
    TableColumn(name="efficiency_p", unit="1", label="E_P", meaning="Efficiency per CPU, S P_ref / P.", estimate=True),
    TableColumn(
        name="marginal", unit="1", meaning="d ln X / d ln P from the row before: what a CPU more gave.", estimate=True
    ),
    TableColumn(
        name="karp_flatt", unit="1", label="Karp-Flatt e", meaning="Serial fraction by S and n.", estimate=True
    ),
)
_WEAK = (
    *_SCALE,
    TableColumn(name="speed_up", unit="1", label="scaled S", meaning="Scaled speed-up X(n) / X(n_ref).", estimate=True),
    TableColumn(
        name="efficiency_n", unit="1", label="E weak", meaning="Weak efficiency T(n_ref) / T(n).", estimate=True
    ),
    TableColumn(name="efficiency_p", unit="1", label="E_P", meaning="Scaled speed-up P_ref / P.", estimate=True),
    TableColumn(
        name="marginal", unit="1", meaning="d ln X / d ln P from the row before: what a CPU more gave.", estimate=True
    ),
)


@of_engine
def strong_scaling(data: StudyData, results: Results) -> Table:
    """T2: speed-up and efficiency at fixed batch, or the refusal in words."""
    found = results.strong
    defined = (words.CPUS, words.THROUGHPUT, words.SPEED_UP, words.EFFICIENCY, words.MARGINAL, words.KARP_FLATT)
    said = (*defined, words.FINGERPRINT, words.MEASURED, words.INTERVAL)
    return _table("T2", "Strong scaling: the batch is fixed", found, _STRONG, said, more=_drift(results.drift))


@of_engine
def weak_scaling(data: StudyData, results: Results) -> Table:
    """T3: weak efficiency, the env steps per runner fixed, or the refusal in words."""
    found = results.weak
    said = (words.CPUS, words.THROUGHPUT, words.WEAK, words.MARGINAL, words.FINGERPRINT, words.MEASURED, words.INTERVAL)
    return _table("T3", "Weak scaling: the env steps per runner are fixed", found, _WEAK, said)


def _table(
    key: str,
    title: str,
    found: Scaling | str,
    columns: tuple[TableColumn, ...],
    said: tuple[str, ...],
    *,
    more: tuple[str, ...] = (),
) -> Table:
    if isinstance(found, str):
        return without_rows(key, title, found, definitions=said)
    notes = (*_notes(found), *more)
    if not found.groups:
        why = _refused(found)
        excluded = left_out(found.excluded)
        return without_rows(key, title, why, definitions=said, n_failed=found.n_failed, excluded=excluded, notes=notes)
    pairs = [(group, row) for group in found.groups for row in group.rows]
    frame, shown = _frame(pairs, columns, named=len(found.groups) > 1)
    return Table(
        key=key,
        title=title,
        frame=make_frame(frame),
        columns=shown,
        definitions=said,
        n=found.n,
        n_failed=found.n_failed,
        excluded=left_out(found.excluded),
        conclusion=_conclusion(found),
        notes=notes,
    )


def _frame(
    pairs: Sequence[tuple[ScalingGroup, ScalingRow]], columns: tuple[TableColumn, ...], *, named: bool
) -> tuple[dict[str, list[Any]], tuple[TableColumn, ...]]:
    frame: dict[str, list[Any]] = {}
    shown = []
    for column in columns:
        if column.name == "workload":
            values: list[Any] = [group.label for group, _ in pairs]
        else:
            values = [getattr(row, column.name) for _, row in pairs]
        alone = column.name == "num_nodes" and set(values) <= {None, 1}
        if alone or (column.name == "workload" and not named) or all(value is None for value in values):
            continue
        shown.append(column)
        frame |= estimate_columns(column.name, values) if column.estimate else {column.name: values}
    return frame, tuple(shown)


def _conclusion(found: Scaling) -> str:
    group = found.groups[0]
    row = group.rows[-1]
    where = (
        f" (of {len(found.groups)} workloads the one with most scales: {group.label})" if len(found.groups) > 1 else ""
    )
    per_cpu = "" if row.efficiency_p is None else f" and {in_words(row.efficiency_p)} per CPU"
    scales = f"From {group.reference} to {row.num_env_runners} runners{where}"
    base = f"T({group.reference}) = {in_words(group.reference_time_s)} s per iteration"
    if found.kind == "weak":
        return f"{scales}, weak efficiency is {in_words(row.efficiency_n)}{per_cpu}; {base}."
    text = (
        f"{scales}, the speed-up is {in_words(row.speed_up)}: {in_words(row.efficiency_n)} per runner{per_cpu}; {base}."
    )
    return f"{text} {group.reading}".strip()


def _drift(found: Sequence[Drift] | str) -> tuple[str, ...]:
    """Return what the cell with most runs says of the machine, and every other one that drifted."""
    if isinstance(found, str):
        return ()
    return tuple(f"Drift of the machine: {each.sentence}" for each in found if each is found[0] or each.drifting)


def _refused(found: Scaling) -> str:
    if found.refusals:
        first = found.refusals[0]
        return (
            f"Efficiency is refused. {_said(first)}" if first.second is not None else f"No efficiency. {_said(first)}"
        )
    return f"No efficiency: no two scales ran equal work with a measured clock. Measure them: {FIRST_COMMAND}"


def _said(refusal: Refusal) -> str:
    if refusal.decomposition is not None:
        return f"{refusal.reason} Taken apart (T7): {refusal.decomposition.sentence}"
    command = f" Run: {refusal.command}" if refusal.command else ""
    if refusal.second is None and not refusal.command:
        command = f" Measure two scales: {FIRST_COMMAND}"
    return f"{refusal.reason}{command}"


def _notes(found: Scaling) -> list[str]:
    named = len(found.groups) > 1
    notes = []
    for group in found.groups:
        where = f"{group.label}: " if named else ""
        notes.append(
            f"{where}n_ref = {group.reference}, T(n_ref) = {in_words(group.reference_time_s)} s per iteration."
        )
        notes += [f"{where}{text}" for text in ((group.reading,) if group.reading and named else ())]
        notes += [f"{where}{note}" for note in group.notes]
    told = found.refusals if found.groups else found.refusals[1:]
    notes += [f"Refused: {_said(refusal)}" for refusal in told[:MOST_REFUSALS]]
    if len(told) > MOST_REFUSALS:
        notes.append(f"… and {len(told) - MOST_REFUSALS} more refusals.")
    return notes
