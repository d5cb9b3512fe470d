"""Tables of times: strong and weak scaling, phases. They select estimates."""

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis.quantity import Part
from analysis.scaling.blocks import at_their_scale, texts
from analysis.scaling.clock import PHASES, SHARES
from analysis.scaling.guard import Refusal
from analysis.tables.pivot import KEY, pivot, table_of_pivot, told
from analysis.tables.table import Table, TableColumn, table_of, without_rows
from study.statistics import LEVEL, without_interval
from study.text import count, listed

if TYPE_CHECKING:
    from analysis.opened import Study

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
OVERSTEPPING = 0.01
"""Relative difference of the env steps per iteration from which a note tells it."""
MOST_UNEXPLAINED = 0.02
"""Share of an iteration that the phases may miss before they explain it no more."""
RATE = "env_steps_per_s"
PLACED = "num_cpus num_nodes train_batch_size n n_failed"
STRONG = "speed_up efficiency_per_runner efficiency_per_cpu"
WEAK = "weak_efficiency"
UNMEASURED = (
    TableColumn("num_env_runners", "1", "runners", "Environment runners, n."),
    TableColumn("train_batch_size", "1", "batch", "Env steps per iteration, as asked."),
    TableColumn("n", "1", "runs", "Runs behind the row."),
    TableColumn("seen", "env steps/s", "throughput as seen", "Not measured: compares with nothing.", estimate=True),
    TableColumn("timing", "", "clock", "Why the times are not the runners' own: the label of their clock."),
    TableColumn("timing_reason", "", "cause", "What gave them the label."),
)


def strong_scaling(study: "Study") -> Table:
    """T2: speed-up and efficiency at fixed batch, or the refusal in words, or what ran without a measured clock."""
    if study.measured.empty and (ran := provisional(study)) is not None:
        return ran
    key, title, part = "T2", "Strong scaling: the batch is fixed", study.strong
    notes = [f"Refused: {_reason(each)}" for each in part.refusals]
    if not part.rows:
        return _no_efficiency(part, key, title, notes)
    rest = "marginal_efficiency"
    wide = pivot(study.frame, f"{STRONG} env_steps_per_s iteration_time_s {rest} work_ratio", key=KEY, runs=RATE)
    for _, row in wide[(wide["work_ratio"] - 1).abs() > OVERSTEPPING].iterrows():
        where = f"{row['workload']}: " if wide["workload"].nunique() > 1 else ""
        notes.append(
            f"{where}At {row['num_env_runners']} runners an iteration held {row['work_ratio'] - 1:+.1%} env steps "
            "against the reference: its time is for that much more or less work."
        )
    if len(faster := wide[(wide["efficiency_per_runner_low"] > 1).fillna(False)]):
        notes.append(
            f"The efficiency is above 1 at {listed(faster['num_env_runners'])} runners: faster than the added runners "
            "can explain, so something else changed too, or a cache began to fit; as a speed-up it is invalid."
        )
    first, last, base = _ends(wide)
    per_cpu = "" if pd.isna(last["efficiency_per_cpu"]) else f" and {told(last, 'efficiency_per_cpu')} per CPU"
    gives = f"the speed-up is {told(last, 'speed_up')}: {told(last, 'efficiency_per_runner')} per runner{per_cpu}"
    return _scaling(wide, key, title, STRONG, rest, f"{first}, {gives}; {base}", part, notes)


def weak_scaling(study: "Study") -> Table:
    """T3: weak efficiency, the env steps per runner fixed, or the refusal in words."""
    key, title, part = "T3", "Weak scaling: the env steps per runner are fixed", study.weak
    notes = [f"Refused: {_reason(each)}" for each in part.refusals]
    if not part.rows:
        return _no_efficiency(part, key, title, notes)
    wide = pivot(study.frame, f"{WEAK} env_steps_per_s iteration_time_s", key=KEY, runs=RATE)
    first, last, base = _ends(wide)
    said = f"{first}, weak efficiency is {told(last, 'weak_efficiency')}; {base}"
    return _scaling(wide, key, title, WEAK, "", said, part, notes)


def _ends(wide: pd.DataFrame) -> "tuple[str, pd.Series[Any], str]":
    """Return where the workload with most scales, which comes first, goes from and to, its last row, and its base."""
    lead, several = wide[wide["workload"] == wide["workload"].iloc[0]], wide["workload"].nunique()
    first, last = lead.iloc[0], lead.iloc[-1]
    where = f" (of {several} workloads the one with most scales: {first['workload']})" if several > 1 else ""
    goes = f"From {first['num_env_runners']} to {last['num_env_runners']} runners{where}"
    return goes, last, f"T({first['num_env_runners']}) = {told(first, 'iteration_time_s')} s per iteration."


def _scaling(
    wide: pd.DataFrame, key: str, title: str, ratios: str, rest: str, conclusion: str, part: Part, notes: list[str]
) -> Table:
    return table_of_pivot(
        wide,
        key,
        title,
        f"workload num_env_runners {ratios} {RATE} iteration_time_s {PLACED} {rest}",
        conclusion,
        part,
        notes=notes,
        definitions=(FINGERPRINT, MEASURED, INTERVAL),
        labels={"efficiency_per_runner": "efficiency per runner"},
    )


def _no_efficiency(part: Part, key: str, title: str, notes: list[str]) -> Table:
    why, command = "No efficiency: no two scales ran equal work with a measured clock.", MEASURE
    if part.refusals:
        first = part.refusals[0]
        why = f"{'No efficiency.' if first.second is None else 'Efficiency is refused.'} {_reason(first)}"
        command = MEASURE if first.second is None else ""
    return nothing(part, key, title, why, command, notes[1:])


def _reason(refusal: Refusal) -> str:
    return f"{refusal.reason} Taken apart: {refusal.sentence}" if refusal.parts else refusal.reason


def provisional(study: "Study") -> Table | None:
    """Return what real runners ran without a measured clock, or None where they did at one scale at most.

    It claims nothing: no speed-up stands in it. Its command measures the scales that fit on the study's machine.
    """
    data = study.data
    runs = at_their_scale(data.runs)
    here = runs[runs["execution"].eq("real").fillna(False) & runs["timed_s"].gt(0).fillna(False)]
    if here["num_env_runners"].nunique() < 2:
        return None
    named = here.assign(timing_reason=texts(here, "timing_reason"), timing=texts(here, "timing", "not settled"))
    by = ["fingerprint", "num_env_runners", "train_batch_size", "timing", "timing_reason"]
    rows = []
    for cell, part in named.astype({"fingerprint": object}).groupby(by, dropna=False):
        rate = float(part["timed_env_steps"].sum()) / float(part["timed_s"].sum())
        seen = without_interval(rate, n=num_seeds(part), level=LEVEL, method="not measured")
        rows.append(dict(zip(by, cell, strict=True)) | {"n": seen.n, "seen": seen})
    labels = ", ".join(f"{number:,} {label}" for label, number in named["timing"].value_counts().items())
    cores = (data.sheet.get("hardware") or {}).get("physical_cpus") or 0
    command = _on_this_machine(study, sorted({int(n) for n in here["num_env_runners"] if n < cores}))
    return table_of(
        "T2",
        "Strong scaling, provisional: no clock was measured",
        UNMEASURED,
        rows,
        f"Provisional: no run has a measured clock ({labels}), so there is no speed-up and no efficiency.",
        n=len(here),
        n_failed=study.num_failed,
        excluded=study.strong.excluded,
        definitions=(MEASURED,),
        command=command,
        notes=(f"To measure it: {command}",),
    )


def _on_this_machine(study: "Study", fitting: list[int]) -> str:
    """Return what measures scaling where the study ran: itself at the scales that leave a core to the main process."""
    if len(fitting) < 2 or study.kind != "search" or (space := study.data.space_file) is None:
        return "python run_study.py --space waiting.yaml"
    words = ["--space", space, "--name", f"{study.name}_measured", "--set", f"parameters.num_env_runners={fitting}"]
    return shlex.join(["python", "run_study.py", *words, "--set", "execution=real"])


def num_seeds(runs: pd.DataFrame) -> int:
    """Return how many runs count: those with one seed are one, as they say the same; one without a seed is its own."""
    return int(runs["seed"].nunique() + runs["seed"].isna().sum())


def phases(study: "Study") -> Table:
    """T5: seconds per iteration by phase; as a note, whether more runners can help."""
    part, key, title = study.phases, "T5", "Phases of a training iteration"
    if not part.rows:
        return nothing(part, key, title, "No phases: no run is finished with a measured clock.", MEASURE)
    seconds = " ".join(f"seconds_{name}" for name in PHASES)
    shares = {SHARES[name]: label for name, (_, label, _) in PHASES.items()}
    more = "fixed_share most_speed_up"
    wide = pivot(study.frame, f"{seconds} iteration_time_s {' '.join(shares)} {more}", key=KEY)
    notes = list[str]()
    widest = wide[wide["workload"] == wide["workload"].value_counts(sort=False).idxmax()]
    last = widest.sort_values("num_env_runners", kind="stable").iloc[-1]
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
        _largest_phase(wide, last, shares),
        part,
        notes=notes,
        labels={f"seconds_{name}": name for name in PHASES},
        definitions=(MEASURED, INTERVAL),
    )


def _largest_phase(wide: pd.DataFrame, last: "pd.Series[Any]", shares: Mapping[str, str]) -> str:
    largest = max((name for name in shares if name != "share_rest"), key=lambda name: float(last[name]))
    unexplained = int((wide["share_rest"].abs() > MOST_UNEXPLAINED).sum())
    closed = f"the phases explain every cell to within {MOST_UNEXPLAINED:.0%}"
    if unexplained:
        closed = f"in {unexplained} of {len(wide)} cells more than {MOST_UNEXPLAINED:.0%} stay unexplained"
    scale = count(last["num_env_runners"], "runner")
    return f"With {scale} {shares[largest]} takes {told(last, largest)} of an iteration; {closed}."


def nothing(part: Part, key: str, title: str, why: str, command: str = "", notes: Iterable[str] = ()) -> Table:
    """Return a table without rows, which counts what the part left out."""
    return without_rows(key, title, why, command, n_failed=part.n_failed, excluded=part.excluded, notes=tuple(notes))
