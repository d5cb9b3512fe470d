"""T2 strong and T3 weak scaling, T4 trials against runners, T7 runners x batch. Views."""

from collections.abc import Iterator, Sequence

from analysis.estimates.results import Results
from analysis.scaling.results import AllocationRow, Decomposition, Refusal, Scaling
from analysis.tables import definitions as words
from analysis.tables.columns import (
    BATCH,
    CPUS,
    FAILED_RUNS,
    FIRST_COMMAND,
    RATE,
    RUNNERS,
    RUNS,
    WORKLOAD,
    count,
    estimate,
    text,
)
from analysis.tables.numbers import in_words
from analysis.tables.table import Layout, Table, left_out, with_command

MOST_REFUSALS = 12
"""Refusals that a table tells; of the rest, how many there are."""
_SCALE = (
    WORKLOAD,
    RUNNERS,
    CPUS,
    count("num_nodes", "nodes", "Nodes that held processes of the trial."),
    BATCH,
    RUNS,
    FAILED_RUNS,
    RATE,
    estimate("iteration_time_s", "s", "iteration", "Seconds per training iteration, T."),
)
_MARGINAL = estimate("marginal", "1", "", "d ln X / d ln P from the next smaller scale: what a CPU more gave.")
_ANSWER = ("num_env_runners", "speed_up", "efficiency_n", "efficiency_p", "env_steps_per_s", "iteration_time_s")
STRONG = Layout(
    key="T2",
    title="Strong scaling: the batch is fixed",
    columns=(
        *_SCALE,
        estimate("speed_up", "1", "speed-up", "S = T(n_ref) / T(n)."),
        estimate("efficiency_n", "1", "efficiency per runner", "S n_ref / n; 1 is ideal."),
        estimate("efficiency_p", "1", "efficiency per CPU", "S P_ref / P; 1 is ideal."),
        _MARGINAL,
        estimate("karp_flatt", "1", "Karp-Flatt", "Serial fraction by S and n."),
    ),
    definitions=(
        words.CPUS,
        words.THROUGHPUT,
        words.SPEED_UP,
        words.EFFICIENCY,
        words.MARGINAL,
        words.KARP_FLATT,
        words.FINGERPRINT,
        words.MEASURED,
        words.INTERVAL,
    ),
    first=_ANSWER,
)
WEAK = Layout(
    key="T3",
    title="Weak scaling: the env steps per runner are fixed",
    columns=(
        *_SCALE,
        estimate("speed_up", "1", "scaled speed-up", "X(n) / X(n_ref)."),
        estimate("efficiency_n", "1", "weak efficiency", "T(n_ref) / T(n); 1 is ideal."),
        estimate("efficiency_p", "1", "weak efficiency per CPU", "Scaled speed-up P_ref / P."),
        _MARGINAL,
    ),
    definitions=(
        words.CPUS,
        words.THROUGHPUT,
        words.WEAK,
        words.MARGINAL,
        words.FINGERPRINT,
        words.MEASURED,
        words.INTERVAL,
    ),
    first=_ANSWER,
)
ALLOCATION = Layout(
    key="T4",
    title="Trials against runners: the same CPUs, spent side by side",
    columns=(
        text("label", "workload", "What tells this allocation from the others."),
        count("num_trials", "trials", "Trials side by side."),
        count("num_env_runners", "runners each", "Environment runners of each."),
        CPUS,
        count("n", "blocks", "Blocks in which all of them were measured."),
        FAILED_RUNS,
        estimate("env_steps_per_s", "1", "steps/s of all", "Sum of a block's rates."),
        estimate("env_steps_per_s_per_cpu", "1", "steps/s per CPU", "The same per CPU."),
        estimate("relative", "1", "", "Over the row with the fewest trials, paired by block."),
    ),
    definitions=(words.ALLOCATION, words.CPUS, words.THROUGHPUT, words.MEASURED, words.INTERVAL),
    first=("num_trials", "num_env_runners", "relative", "env_steps_per_s"),
)
CONFOUND = Layout(
    key="T7",
    title="Runners x batch: what each of them did to the throughput",
    columns=(
        text("comparison", "", "The two cells that somebody would compare."),
        text("changed", "", "What changed besides the runners."),
        text("part", "", "Which part of the ratio of throughputs."),
        estimate("factor", "1", "", "The part as a factor; total = runners x workload."),
        estimate("log", "1", "ln factor", "Its logarithm: these add up."),
    ),
    definitions=(words.DECOMPOSITION, words.THROUGHPUT, words.MEASURED, words.INTERVAL),
)


# --- T2, T3 -------------------------------------------------------------------------------------------------------


def strong_scaling(results: Results) -> Table:
    """T2: speed-up and efficiency at fixed batch, or the refusal in words."""
    return _scaling(STRONG, results.strong)


def weak_scaling(results: Results) -> Table:
    """T3: weak efficiency, the env steps per runner fixed, or the refusal in words."""
    return _scaling(WEAK, results.weak)


def _scaling(layout: Layout, found: Scaling | str) -> Table:
    if isinstance(found, str):
        return layout.without(found)
    notes = tuple(_notes(found))
    if not found.groups:
        return layout.without(*_refused(found), n_failed=found.n_failed, excluded=found.excluded, notes=notes)
    rows = [row for group in found.groups for row in group.rows]
    hidden = [] if len(found.groups) > 1 else ["workload"]
    hidden += ["num_nodes"] if {row.num_nodes for row in rows} <= {None, 1} else []
    return layout.table(
        rows,
        _gain(found),
        n=found.n,
        n_failed=found.n_failed,
        excluded=found.excluded,
        notes=notes,
        values={"workload": [group.label for group in found.groups for _ in group.rows]},
        hidden=hidden,
    )


def _gain(found: Scaling) -> str:
    group = found.groups[0]
    row = group.rows[-1]
    several = len(found.groups) > 1
    where = f" (of {len(found.groups)} workloads the one with most scales: {group.label})" if several else ""
    per_cpu = "" if row.efficiency_p is None else f" and {in_words(row.efficiency_p)} per CPU"
    scales = f"From {group.reference} to {row.num_env_runners} runners{where}"
    base = f"T({group.reference}) = {in_words(group.reference_time_s)} s per iteration"
    per_runner = in_words(row.efficiency_n)
    if found.kind == "weak":
        return f"{scales}, weak efficiency is {per_runner}{per_cpu}; {base}."
    speed_up = in_words(row.speed_up)
    return f"{scales}, the speed-up is {speed_up}: {per_runner} per runner{per_cpu}; {base}. {group.reading}".strip()


def _refused(found: Scaling) -> tuple[str, str]:
    """Return why there is no row, and what to run."""
    if not found.refusals:
        return "No efficiency: no two scales ran equal work with a measured clock.", FIRST_COMMAND
    first = found.refusals[0]
    head = "Efficiency is refused." if first.second is not None else "No efficiency."
    why, command = _help(first)
    return f"{head} {why}", command


def _help(refusal: Refusal) -> tuple[str, str]:
    """Return why a comparison is refused, with the parts of the ratio if they are known, and what to run."""
    if refusal.decomposition is not None:
        return f"{refusal.reason} Taken apart (T7): {refusal.decomposition.sentence}", ""
    return refusal.reason, refusal.command or ("" if refusal.second is not None else FIRST_COMMAND)


def _notes(found: Scaling) -> Iterator[str]:
    named = len(found.groups) > 1
    for group in found.groups:
        where = f"{group.label}: " if named else ""
        yield f"{where}n_ref = {group.reference}, T(n_ref) = {in_words(group.reference_time_s)} s per iteration."
        if group.reading and named:
            yield f"{where}{group.reading}"
        yield from (f"{where}{note}" for note in group.notes)
    more = found.refusals if found.groups else found.refusals[1:]
    yield from (f"Refused: {with_command(*_help(refusal))}" for refusal in more[:MOST_REFUSALS])
    if len(more) > MOST_REFUSALS:
        yield f"… and {len(more) - MOST_REFUSALS} more refusals."


# --- T4 -----------------------------------------------------------------------------------------------------------


def trials_against_runners(results: Results) -> Table:
    """T4: the same CPUs as one trial of n runners, two of n/2, and so on."""
    found = results.allocation
    if isinstance(found, str) or not found:
        nothing = "No allocation cells: no trials ran side by side, as those of throughput.yaml do."
        why = (found, "") if isinstance(found, str) else (nothing, FIRST_COMMAND)
        return ALLOCATION.without(*why, n_failed=results.num_failed)
    excluded: dict[str, int] = {}
    for row in found:
        for reason, number in left_out(row.excluded).items():
            excluded[reason] = excluded.get(reason, 0) + number
    return ALLOCATION.table(
        found,
        _best_allocation(found),
        n=sum(row.n * row.num_trials for row in found),
        n_failed=sum(row.n_failed for row in found),
        excluded=excluded,
        hidden=() if len({row.label for row in found}) > 1 else ("label",),
    )


def _best_allocation(found: Sequence[AllocationRow]) -> str:
    fewest, *others = found
    rows = [(row, row.relative) for row in others if row.relative is not None]
    if not rows:
        return "Only one way to spend the CPUs was measured: nothing to compare it with."
    best, relative = max(rows, key=lambda pair: pair[1].value)
    return (
        f"On the same CPUs {best.num_trials} trials of {best.num_env_runners} runners step {in_words(relative)} times "
        f"as fast as {fewest.num_trials} of {fewest.num_env_runners}."
    )


# --- T7 -----------------------------------------------------------------------------------------------------------


def decomposition(results: Results) -> Table:
    """T7: the decomposition of every refused comparison, or the command for the cells that are missing."""
    found = results.strong
    if isinstance(found, str):
        return CONFOUND.without(found)
    split = [each.decomposition for each in found.refusals if each.decomposition is not None]
    unknown = [_help(each) for each in found.refusals if each.missing and each.second is not None]
    missing = [with_command(*each) for each in unknown]
    if not split:
        why = unknown[0] if unknown else _nothing_confounded(bool(found.groups))
        return CONFOUND.without(*why, n_failed=found.n_failed, excluded=found.excluded, notes=missing[1:])
    parts = [(each, *part) for each in split for part in _parts(each)]
    cells = {cell.name: rate for each in split for cell, rate in each.rates}
    rates = [f"{name}: {in_words(rate)} env steps/s, n={rate.n}." for name, rate in cells.items()]
    return CONFOUND.table(
        parts,
        split[0].sentence,
        n=sum(cell.n for cell in {cell for each in split for cell, _ in each.rates}),
        n_failed=found.n_failed,
        excluded=found.excluded,
        notes=(*rates, *missing),
        values={
            "comparison": [f"{each.first.name} -> {each.second.name}" for each, *_ in parts],
            "changed": [f"{each.factor}: {each.values[0]} -> {each.values[1]}" for each, *_ in parts],
            "part": [name for _, name, _, _ in parts],
            "factor": [factor for _, _, factor, _ in parts],
            "log": [log for _, _, _, log in parts],
        },
    )


def _parts(split: Decomposition) -> list[tuple[str, object, object]]:
    return [
        ("total", split.total, split.total_log),
        ("runners", split.parallel, split.parallel_log),
        ("workload", split.batch, split.batch_log),
        ("interaction", split.interaction, None),
        ("runners, at the first workload", split.parallel_at_first, None),
        ("runners, at the second workload", split.parallel_at_second, None),
    ]


def _nothing_confounded(comparable: bool) -> tuple[str, str]:
    if comparable:
        return "Nothing to take apart: no comparison between scales is confounded by a batch that changed too.", ""
    return "Nothing to take apart: it needs measured runs at two scales and two batches.", FIRST_COMMAND
