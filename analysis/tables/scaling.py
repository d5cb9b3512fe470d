"""Tables of times: strong and weak scaling, phases, runners x batch. They select estimates; no statistics."""

from collections.abc import Iterable, Mapping

import pandas as pd

from analysis.estimates.results import Results
from analysis.quantity import Part
from analysis.scaling.clock import PHASES, SHARES
from analysis.scaling.guard import Refusal, Rerun, cells_of
from analysis.scaling.selection import as_text, at_their_scale, texts
from analysis.tables.pivot import KEY, pivot, table_of_pivot, told
from analysis.tables.table import Table, TableColumn, table_of, with_command, without_rows
from study.statistics.estimate import without_interval
from study.text import count, listed

MEASURED = (
    "Only rows with timing `measured` enter: every process had a core of its own, or its environments wait and CPU "
    "pressure stayed under 5 %; no runner was lost, no sample dropped."
)
FINGERPRINT = (
    "Equal workload: equal fingerprints (algorithm, environment and its waiting time, batch, minibatch x learners, "
    "epochs, envs per runner, network, learning parameters, evaluation, engine, threads, versions, CPU model). "
    "Efficiency is refused between rows that differ in it."
)
INTERVAL = (
    "[low, high]: 95 % interval where no other level is named; the unit of replication is the run, ratios are paired "
    "by seed where seeds are common."
)
MEASURE = (
    "python run_study.py --space throughput.yaml (on fewer than 47 CPUs: python run_study.py --space waiting.yaml)"
)
"""What measures a study that has no measured rows of equal workload."""
MOST_REFUSALS = 12
"""Refusals that a table tells; of the rest, how many there are."""
OVERSTEPPING = 0.01
"""Relative difference of the env steps per iteration from which a note tells it."""
STRAGGLING = 0.5
"""Load balance below which a note names a straggler: the slowest runner takes twice as long as the mean one."""
MOST_UNEXPLAINED = 0.02
"""Share of an iteration that the phases may miss before they explain it no more."""
STRONG = "speed_up efficiency_per_runner efficiency_per_cpu"
WEAK = "weak_speed_up weak_efficiency weak_efficiency_per_cpu"
UNMEASURED = (
    TableColumn("num_env_runners", "1", "runners", "Environment runners, n."),
    TableColumn("train_batch_size", "1", "batch", "Env steps per iteration, as asked."),
    TableColumn("n", "1", "runs", "Runs behind the row."),
    TableColumn("seen", "env steps/s", "throughput as seen", "Not measured: compares with nothing.", estimate=True),
    TableColumn("timing", "", "clock", "Why the times are not the runners' own: the label of their clock."),
    TableColumn("timing_reason", "", "cause", "What gave them the label."),
)


def strong_scaling(results: Results) -> Table:
    """T2: speed-up and efficiency at fixed batch, or the refusal in words, or what ran without a measured clock."""
    if results.measured.empty and (ran := provisional(results)) is not None:
        return ran
    return _scaling(results, results.strong, "T2", "Strong scaling: the batch is fixed", STRONG, "work_ratio")


def weak_scaling(results: Results) -> Table:
    """T3: weak efficiency, the env steps per runner fixed, or the refusal in words."""
    title = "Weak scaling: the env steps per runner are fixed"
    return _scaling(results, results.weak, "T3", title, WEAK, "weak_work_ratio")


def _scaling(results: Results, part: Part, key: str, title: str, ratios: str, work: str) -> Table:
    strong = key == "T2"
    notes = [f"Refused: {with_command(*_help(each))}" for each in part.refusals[: MOST_REFUSALS + (not part.rows)]]
    if (more := len(part.refusals) - len(notes)) > 0:
        notes.append(f"… and {more} more refusals.")
    if not part.rows:
        why, command = "No efficiency: no two scales ran equal work with a measured clock.", MEASURE
        if part.refusals:
            why, command = _help(part.refusals[0])
            why = f"{'No efficiency.' if part.refusals[0].second is None else 'Efficiency is refused.'} {why}"
        return nothing(part, key, title, why, command, notes[1:])
    rest = "marginal_efficiency karp_flatt" if strong else "weak_marginal_efficiency"
    rates = "env_steps_per_s iteration_time_s"
    wide = pivot(results.frame, f"{ratios} {rates} {rest} {work}", key=KEY, runs="env_steps_per_s")
    workloads = wide["workload"].unique()
    for _, row in wide[(wide[work] - 1).abs() > OVERSTEPPING].iterrows():
        where = f"{row['workload']}: " if len(workloads) > 1 else ""
        each = "" if strong else " for each runner"
        notes.append(
            f"{where}At {row['num_env_runners']} runners an iteration held {row[work] - 1:+.1%} env steps{each} "
            "against the reference: its time is for that much more or less work."
        )
    reading = _serial_part(results.frame, workloads[0]) if strong else ""
    return table_of_pivot(
        wide,
        key,
        title,
        f"workload num_env_runners {ratios} {rates} num_cpus num_nodes train_batch_size n n_failed {rest}",
        f"{_gain(wide, ratios, strong=strong)} {reading}".strip(),
        part,
        notes=notes,
        definitions=(FINGERPRINT, MEASURED, INTERVAL),
        labels={"efficiency_per_runner": "efficiency per runner"},
    )


def _gain(wide: pd.DataFrame, ratios: str, *, strong: bool) -> str:
    """Return the speed-up of the workload with most scales, which comes first, in a sentence."""
    lead, several = wide[wide["workload"] == wide["workload"].iloc[0]], wide["workload"].nunique()
    first, last = lead.iloc[0], lead.iloc[-1]
    speed_up, per_runner, per_cpu = ratios.split()
    where = f" (of {several} workloads the one with most scales: {first['workload']})" if several > 1 else ""
    gives = f"the speed-up is {told(last, speed_up)}: {told(last, per_runner)} per runner"
    gives = gives if strong else f"weak efficiency is {told(last, per_runner)}"
    gives += "" if pd.isna(last[per_cpu]) else f" and {told(last, per_cpu)} per CPU"
    base = f"T({first['num_env_runners']}) = {told(first, 'iteration_time_s')} s per iteration"
    return f"From {first['num_env_runners']} to {last['num_env_runners']} runners{where}, {gives}; {base}."


def _serial_part(frame: pd.DataFrame, workload: str) -> str:
    """Return what the Karp-Flatt fractions of a workload say, in a sentence; empty where it has none."""
    fractions = frame[(frame["workload"] == workload) & (frame["quantity"] == "karp_flatt")]
    if fractions.empty:
        return ""
    if len(negative := fractions[fractions["high"] < 0]):
        return (
            f"The Karp-Flatt fraction is negative at {listed(negative['num_env_runners'])} runners: faster than the "
            "added runners can explain, so something else changed too, or a cache began to fit; as a speed-up the "
            "comparison is invalid."
        )
    last = fractions.iloc[-1]
    reading = "constant over the scales it is a serial part, rising an overhead"
    if pd.isna(last["low"]):
        reading = "one block cannot tell a serial part from noise"
    elif last["low"] <= 0 <= last["high"]:
        reading = "no serial part is shown, its interval holds 0"
    return f"Karp-Flatt fraction {last['value']:.3f} at {last['num_env_runners']} runners: {reading}."


def _help(refusal: Refusal) -> tuple[str, str]:
    """Return why a comparison is refused, with the parts of the ratio if they are known, and what to run."""
    if refusal.parts:
        return f"{refusal.reason} Taken apart (T7): {refusal.sentence}", ""
    return refusal.reason, refusal.command or ("" if refusal.second is not None else MEASURE)


def provisional(results: Results) -> Table | None:
    """Return what real runners ran without a measured clock, or None where they did at one scale at most.

    It claims nothing: no speed-up stands in it. Its command measures the scales that fit on the study's machine.
    """
    runs = at_their_scale(results.data.runs)
    here = runs[runs["execution"].eq("real").fillna(False) & runs["timed_s"].gt(0).fillna(False)]
    if here["num_env_runners"].nunique() < 2:
        return None
    named = here.assign(timing_reason=texts(here, "timing_reason"), timing=texts(here, "timing", "not settled"))
    by = ["fingerprint", "num_env_runners", "train_batch_size", "timing", "timing_reason"]
    rows = []
    for cell, part in named.astype({"fingerprint": object}).groupby(by, dropna=False):
        rate = float(part["timed_env_steps"].sum()) / float(part["timed_s"].sum())
        n = num_seeds(part)
        seen = without_interval(rate, n=n, level=0.95, method="not measured")
        rows.append(dict(zip(by, cell, strict=True)) | {"n": n, "seen": seen})
    cores = (results.data.sheet.get("hardware") or {}).get("physical_cpus") or 0
    stage = ", ".join(sorted(set(texts(here, "stage")) - {""})) or None
    rerun = Rerun(space=results.data.space_file, study=as_text(here, "study") or "study", stage=stage)
    fitting = [each for each in cells_of(here) if each.num_env_runners + 1 <= cores]
    several = len({each.num_env_runners for each in fitting}) > 1
    command = (rerun.command(fitting) if several else "") or "python run_study.py --space waiting.yaml"
    labels = ", ".join(f"{number:,} {label}" for label, number in named["timing"].value_counts().items())
    return table_of(
        "T2",
        "Strong scaling, provisional: no clock was measured",
        UNMEASURED,
        rows,
        f"Provisional: no run has a measured clock ({labels}), so there is no speed-up and no efficiency.",
        n=len(here),
        n_failed=results.num_failed,
        excluded=results.strong.excluded,
        definitions=(MEASURED,),
        command=command,
        notes=(f"To measure it: {command}",),
    )


def num_seeds(runs: pd.DataFrame) -> int:
    """Return how many runs count: those with one seed are one, as they say the same; one without a seed is its own."""
    return int(runs["seed"].nunique() + runs["seed"].isna().sum())


def phases(results: Results) -> Table:
    """T5: seconds per iteration by phase; as notes, stragglers and whether more runners can help."""
    part, key, title = results.phases, "T5", "Phases of a training iteration"
    if not part.rows:
        return nothing(part, key, title, "No phases: no run is finished with a measured clock.", MEASURE)
    seconds = " ".join(f"seconds_{name}" for name in PHASES)
    shares = {SHARES.get(name, f"share_{name}"): label for name, (_, label, _) in PHASES.items()}
    more = "load_balance fixed_share most_speed_up"
    wide = pivot(results.frame, f"{seconds} iteration_time_s {' '.join(shares)} {more}", key=KEY)
    balance = wide["load_balance_high"].fillna(wide["load_balance"])
    notes = [
        f"Straggler at {row['num_env_runners']} runners ({row['workload']}): the mean runner takes "
        f"{told(row, 'load_balance')} of the time of the slowest one."
        for _, row in wide[(balance < STRAGGLING).fillna(False)].iterrows()
    ]
    scales = wide.groupby("workload")["num_env_runners"].transform("nunique")
    widest = wide.assign(scales=scales).sort_values(["scales", "num_env_runners"], ascending=False, kind="stable")
    last = widest.iloc[0]
    if pd.notna(last["most_speed_up"]):
        place = f"With {count(last['num_env_runners'], 'runner')} ({last['workload']})"
        notes.append(
            f"{place} {told(last, 'fixed_share')} of an iteration does not get shorter by more runners: at this batch "
            f"they give at most {told(last, 'most_speed_up')} times the throughput (extrapolated)."
        )
    return table_of_pivot(
        wide,
        key,
        title,
        f"workload num_env_runners iteration_time_s {seconds} num_cpus train_batch_size n n_failed",
        _largest_phase(wide, shares),
        part,
        notes=notes,
        labels={f"seconds_{name}": name for name in PHASES},
        definitions=(MEASURED, INTERVAL),
    )


def _largest_phase(wide: pd.DataFrame, shares: Mapping[str, str]) -> str:
    """Return what takes most of an iteration at the largest scale of the workload that ran at most of them."""
    lead = wide[wide["workload"] == wide["workload"].value_counts(sort=False).idxmax()]
    row = lead.sort_values("num_env_runners", kind="stable").iloc[-1]
    largest = max((name for name in shares if name != "share_rest"), key=lambda name: float(row[name]))
    unexplained = int((wide["share_rest"].abs() > MOST_UNEXPLAINED).sum())
    closed = f"the phases explain every cell to within {MOST_UNEXPLAINED:.0%}"
    if unexplained:
        closed = f"in {unexplained} of {len(wide)} cells more than {MOST_UNEXPLAINED:.0%} stay unexplained"
    scale = count(row["num_env_runners"], "runner")
    return f"With {scale} {shares[largest]} takes {told(row, largest)} of an iteration; {closed}."


def runners_and_batch(results: Results) -> Table:
    """T7: every refused comparison taken apart, or the command for the cells that are missing."""
    part, key, title = results.strong, "T7", "Runners x batch: what each of them did to the throughput"
    missing = [_help(each) for each in part.refusals if each.missing and each.second is not None]
    split = [each for each in part.refusals if each.parts]
    if not split:
        why = ("Nothing to take apart: it needs measured runs at two scales and two batches.", MEASURE)
        if part.rows:
            why = ("Nothing to take apart: no comparison between scales is confounded by a batch that changed too.", "")
        return nothing(part, key, title, *(missing or [why])[0], [with_command(*each) for each in missing[1:]])
    names = "ratio_total ratio_runners ratio_workload ratio_interaction ratio_runners_at_first ratio_runners_at_second"
    wide = pivot(results.frame, names)
    wide["arm"] += " (" + wide["workload"] + ")"
    return table_of_pivot(
        wide,
        key,
        title,
        f"arm {names} n n_failed",
        split[0].sentence,
        part,
        labels={"arm": "comparison"},
        notes=[with_command(*each) for each in missing],
        definitions=("Runners x workload = total; averaged over both orders (Shapley).", MEASURED, INTERVAL),
    )


def nothing(part: Part, key: str, title: str, why: str, command: str = "", notes: Iterable[str] = ()) -> Table:
    """Return a table without rows, which counts what the part left out."""
    return without_rows(key, title, why, command, n_failed=part.n_failed, excluded=part.excluded, notes=tuple(notes))
