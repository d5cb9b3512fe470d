"""Every table of a study: which quantities of the long frame, and a sentence; one that cannot be made says why."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.estimates.certificate import DAMAGE, estimate_of
from analysis.estimates.frame import estimate_of as of_row
from analysis.estimates.frame import frame_of
from analysis.estimates.results import Results
from analysis.estimates.settings import ARMS, arm_in_words
from analysis.models.study import Bound, attempt
from analysis.quantity import Part, unknown
from analysis.scaling.clock import PHASES, SHARES
from analysis.scaling.guard import Refusal, Rerun, cells_of
from analysis.scaling.selection import as_text, at_their_scale, texts
from analysis.tables.columns import FIRST_COMMAND, count, estimate, text
from analysis.tables.numbers import in_words
from analysis.tables.pivot import KEY, pivot, table_of_pivot, told
from analysis.tables.sheet import every_trial, study_sheet
from analysis.tables.table import Table, table_of_values, with_command, without_rows
from study.errors import StudyError
from study.statistics.estimate import Estimate, without_interval
from study.text import count as counted
from study.text import listed

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
CENSORED = (
    "A run that did not get to the target, or failed, is censored, never left out. The target is looked for in "
    "evaluations: the value is the step of the first one at it, and intervals reach down to the one before. A cell of "
    "fewer than five runs has no interval: a bootstrap of so few would cover 62 to 87 %, not 95 %."
)
HOLDS_UP = (
    "A setting holds up if, on seeds that nothing was chosen by, its mean score is not lower than the small scale's "
    "best by more than the tolerance (lower 95 % bound), and enough of its runs end at the target."
)
MOST_REFUSALS = 12
"""Refusals that a table tells; of the rest, how many there are."""
MOST_NAMED = 6
"""Rows that a sentence names; of the rest, how many there are."""
OVERSTEPPING = 0.01
"""Relative difference of the env steps per iteration from which a note tells it."""
STRAGGLING = 0.5
"""Load balance below which a note names a straggler: the slowest runner takes twice as long as the mean one."""
MOST_UNEXPLAINED = 0.02
"""Share of an iteration that the phases may miss before they explain it no more."""


# --- strong and weak scaling --------------------------------------------------------------------------------------

STRONG = "speed_up efficiency_per_runner efficiency_per_cpu marginal_efficiency karp_flatt"
WEAK = "weak_speed_up weak_efficiency weak_efficiency_per_cpu weak_marginal_efficiency"
RATES = "env_steps_per_s iteration_time_s"


UNMEASURED = (
    count("num_env_runners", "runners", "Environment runners, n."),
    count("train_batch_size", "batch", "Env steps per iteration, as asked."),
    count("n", "runs", "Runs behind the row."),
    text("timing", "clock", "Why the times are not the runners' own: the label of their clock."),
    text("timing_reason", "cause", "What gave them the label."),
    estimate("seen", "env steps/s", "throughput as seen", "Not measured: it compares with nothing."),
)


def strong_scaling(results: Results) -> Table:
    """T2: speed-up and efficiency at fixed batch, or the refusal in words, or what ran without a measured clock."""
    if results.measured.empty and (ran := _unmeasured(results)) is not None:
        return ran
    return _scaling(results, results.strong, "T2", "Strong scaling: the batch is fixed", STRONG, "work_ratio")


def weak_scaling(results: Results) -> Table:
    """T3: weak efficiency, the env steps per runner fixed, or the refusal in words."""
    return _scaling(
        results, results.weak, "T3", "Weak scaling: the env steps per runner are fixed", WEAK, "weak_work_ratio"
    )


def _scaling(results: Results, part: Part, key: str, title: str, quantities: str, work: str) -> Table:
    notes = [_refused(each) for each in part.refusals[: MOST_REFUSALS + (not part.rows)]]
    if (more := len(part.refusals) - len(notes)) > 0:
        notes.append(f"… and {more} more refusals.")
    if not part.rows:
        why, command = "No efficiency: no two scales ran equal work with a measured clock.", FIRST_COMMAND
        if part.refusals:
            why, command = _help(part.refusals[0])
            why = f"{'No efficiency.' if part.refusals[0].second is None else 'Efficiency is refused.'} {why}"
        return _without(key, title, part.why or why, "" if part.why else command, part, notes[1:])
    wide = pivot(results.frame, f"{quantities} {RATES} {work}", key=KEY, runs="env_steps_per_s")
    several = wide["workload"].nunique() > 1
    for _, row in wide[(wide[work] - 1).abs() > OVERSTEPPING].iterrows():
        where = f"{row['workload']}: " if several else ""
        each = " for each runner" if key == "T3" else ""
        notes.append(
            f"{where}At {row['num_env_runners']} runners an iteration held {row[work] - 1:+.1%} env steps{each} "
            "against the reference: its time is for that much more or less work."
        )
    lead = wide[wide["workload"] == wide["workload"].iloc[0]]
    readings = [f"{name}: {said}" for name in wide["workload"].unique()[1:] if (said := _reading(results, name))]
    return table_of_pivot(
        wide,
        key=key,
        title=title,
        quantities=f"{quantities} {RATES}",
        conclusion=f"{_gain(wide, lead, quantities)} {_reading(results, lead['workload'].iloc[0])}".strip()
        if key == "T2"
        else _gain(wide, lead, quantities),
        counts=part,
        notes=(*notes, *(readings if key == "T2" else ())),
        definitions=(FINGERPRINT, MEASURED, INTERVAL),
        labels={"efficiency_per_runner": "efficiency per runner"},
        first=f"num_env_runners {' '.join(quantities.split()[:3])} {RATES}",
    )


def _gain(wide: pd.DataFrame, lead: pd.DataFrame, quantities: str) -> str:
    """Return the speed-up of the workload with most scales, in a sentence."""
    first, last = lead.iloc[0], lead.iloc[-1]
    speed_up, per_runner, per_cpu, *_ = quantities.split()
    number = wide["workload"].nunique()
    where = f" (of {number} workloads the one with most scales: {first['workload']})" if number > 1 else ""
    cpu = "" if pd.isna(last[per_cpu]) else f" and {told(last, per_cpu)} per CPU"
    scales = f"From {first['num_env_runners']} to {last['num_env_runners']} runners{where}"
    base = f"T({first['num_env_runners']}) = {told(first, 'iteration_time_s')} s per iteration"
    if speed_up != "speed_up":
        return f"{scales}, weak efficiency is {told(last, per_runner)}{cpu}; {base}."
    return f"{scales}, the speed-up is {told(last, speed_up)}: {told(last, per_runner)} per runner{cpu}; {base}."


def _reading(results: Results, workload: str) -> str:
    """Return what the serial fractions of a workload say, in a sentence; empty where it has none."""
    found = results.frame[results.frame["workload"] == workload]
    fractions = found[found["quantity"] == "karp_flatt"]
    if fractions.empty:
        return ""
    if len(negative := fractions[fractions["high"] < 0]):
        return (
            f"The Karp-Flatt fraction is negative at {listed(negative['num_env_runners'])} runners: faster than the "
            "added runners can explain, so something else changed too, or a cache began to fit; as a speed-up the "
            "comparison is invalid."
        )
    last = fractions.iloc[-1]
    said = f"Karp-Flatt fraction {last['value']:.3f} at {last['num_env_runners']} runners"
    if pd.isna(last["low"]):
        return f"{said}: one block cannot tell a serial part from noise."
    if last["low"] <= 0 <= last["high"]:
        return f"{said}: no serial part is shown, its interval holds 0."
    return f"{said}: constant over the scales it is a serial part, rising an overhead."


def _help(refusal: Refusal) -> tuple[str, str]:
    """Return why a comparison is refused, with the parts of the ratio if they are known, and what to run."""
    if refusal.parts:
        return f"{refusal.reason} Taken apart (T7): {refusal.sentence}", ""
    return refusal.reason, refusal.command or ("" if refusal.second is not None else FIRST_COMMAND)


def _refused(refusal: Refusal) -> str:
    return f"Refused: {with_command(*_help(refusal))}"


def _unmeasured(results: Results) -> Table | None:
    """Return what ran without a measured clock, or None where real runners did at one scale at most.

    It claims nothing: no speed-up stands in it.
    """
    runs = at_their_scale(results.data.runs)
    here = runs[runs["execution"].eq("real").fillna(False) & runs["timed_s"].gt(0).fillna(False)]
    if here["num_env_runners"].nunique() < 2:
        return None
    named = here.assign(reason=texts(here, "timing_reason"), label=texts(here, "timing", "not settled"))
    by = ["fingerprint", "num_env_runners", "train_batch_size", "label", "reason"]
    rows: list[tuple[Any, ...]] = []
    grouped: Any = named.astype({"fingerprint": object}).groupby(by, dropna=False)
    for (_, runners, batch, label, why), part in grouped:
        steps, seconds = float(part["timed_env_steps"].sum()), float(part["timed_s"].sum())
        known = without_interval(steps / seconds, n=len(part), level=0.95, method="not measured")
        rows.append((int(runners), None if pd.isna(batch) else int(batch), len(part), known, label, why))
    names = ("num_env_runners", "train_batch_size", "n", "seen", "timing", "timing_reason")
    labels = ", ".join(f"{number:,} {label}" for label, number in named["label"].value_counts().items())
    table = table_of_values(
        "T2",
        "Strong scaling, provisional: no clock was measured",
        UNMEASURED,
        {name: [row[at] for row in rows] for at, name in enumerate(names)},
        f"Provisional: no run has a measured clock ({labels}), so there is no speed-up and no efficiency.",
        n=len(here),
        n_failed=results.num_failed,
        excluded=results.strong.excluded,
        definitions=(MEASURED,),
        first=names,
    )
    return replace(table, command=_to_measure(results, here), notes=(f"To measure it: {_to_measure(results, here)}",))


def _to_measure(results: Results, runs: pd.DataFrame) -> str:
    """Return the command that measures the scales that fit on the study's machine, each process on a core."""
    cores = (results.data.sheet.get("hardware") or {}).get("physical_cpus")
    stage = ", ".join(sorted(set(texts(runs, "stage")) - {""})) or None
    rerun = Rerun(space=results.data.space_file, study=as_text(runs, "study") or "study", stage=stage)
    fitting = [each for each in cells_of(runs) if cores and each.num_env_runners + 1 <= cores]
    several = len({each.num_env_runners for each in fitting}) > 1
    return (rerun.command(fitting) if several else "") or "python run_study.py --space waiting.yaml"


# --- phases -----------------------------------------------------------------------------------------------------------


def phases(results: Results) -> Table:
    """T5: seconds per iteration by phase; as notes, stragglers and whether more runners can help."""
    part, key, title = results.phases, "T5", "Phases of a training iteration"
    if not part.rows:
        why = part.why or "No phases: no run is finished with a measured clock."
        return _without(key, title, why, "" if part.why else FIRST_COMMAND, part)
    seconds = " ".join(f"seconds_{name}" for name in PHASES)
    shares = {SHARES.get(name, f"share_{name}"): label for name, (_, label, _) in PHASES.items()}
    wide = pivot(results.frame, f"{seconds} iteration_time_s {' '.join(shares)} load_balance", key=KEY)
    several = wide["workload"].nunique() > 1
    notes = []
    for _, row in wide.iterrows():
        if (row["load_balance"] if pd.isna(row["load_balance_high"]) else row["load_balance_high"]) < STRAGGLING:
            where = f" ({row['workload']})" if several else ""
            notes.append(
                f"Straggler at {row['num_env_runners']} runners{where}: the mean runner takes "
                f"{told(row, 'load_balance')} of the time of the slowest one."
            )
    if not isinstance(bound := attempt(lambda: results.models.bound), str):
        notes.append(_most(results, bound))
    return table_of_pivot(
        wide,
        key=key,
        title=title,
        quantities=f"iteration_time_s {seconds}",
        conclusion=_largest_phase(wide, shares),
        counts=part,
        notes=notes,
        about="workload num_env_runners num_cpus train_batch_size",
        labels={f"seconds_{name}": name for name in PHASES},
        definitions=(MEASURED, INTERVAL),
        first=f"num_env_runners iteration_time_s {seconds}",
    )


def _largest_phase(wide: pd.DataFrame, shares: Mapping[str, str]) -> str:
    """Return what takes most of an iteration at the largest scale; of several workloads there, with most runs."""
    row = wide.sort_values(["num_env_runners", "n"], kind="stable").iloc[-1]
    largest = max((name for name in shares if name != "share_rest"), key=lambda name: float(row[name]))
    unexplained = wide[wide["share_rest"].abs() > MOST_UNEXPLAINED]
    closed = f"the phases explain every cell to within {MOST_UNEXPLAINED:.0%}"
    if len(unexplained):
        closed = f"in {len(unexplained)} of {len(wide)} cells more than {MOST_UNEXPLAINED:.0%} stay unexplained"
    found = f"{row[largest]:.0%} (n={row['n']}, no interval)"
    if not pd.isna(row[f"{largest}_low"]):
        found = f"{row[largest]:.0%} [{row[f'{largest}_low']:.0%}, {row[f'{largest}_high']:.0%}]"
    return f"At {row['num_env_runners']} runners {shares[largest]} takes {found} of an iteration; {closed}."


def _most(results: Results, bound: Bound) -> str:
    found = results.frame.set_index("quantity")
    fixed, most = of_row(found.loc["fixed_share"]), of_row(found.loc["most_speed_up"])
    return (
        f"With {counted(bound.num_env_runners, 'runner')} {in_words(fixed)} of an iteration does not get shorter by "
        f"more runners: at this batch they give at most {in_words(most)} times the throughput (extrapolated)."
    )


# --- runners x batch ----------------------------------------------------------------------------------------------


def runners_and_batch(results: Results) -> Table:
    """T7: every refused comparison taken apart, or the command for the cells that are missing."""
    part, key = results.strong, "T7"
    title = "Runners x batch: what each of them did to the throughput"
    names = "ratio_total ratio_runners ratio_workload ratio_interaction ratio_runners_at_first ratio_runners_at_second"
    unknown_ = [_help(each) for each in part.refusals if each.missing and each.second is not None]
    split = [each for each in part.refusals if each.parts]
    if not split:
        why = ("Nothing to take apart: it needs measured runs at two scales and two batches.", FIRST_COMMAND)
        if part.rows:
            why = ("Nothing to take apart: no comparison between scales is confounded by a batch that changed too.", "")
        why = (part.why, "") if part.why else unknown_[0] if unknown_ else why
        return _without(key, title, *why, part, [with_command(*each) for each in unknown_[1:]])
    wide = pivot(results.frame, names)
    wide["arm"] += " (" + wide["workload"] + ")"
    return table_of_pivot(
        wide,
        key=key,
        title=title,
        quantities=names,
        conclusion=split[0].sentence,
        counts=part,
        about="arm",
        labels={"arm": "comparison"},
        notes=[with_command(*each) for each in unknown_],
        definitions=("Runners x workload = total; averaged over both orders (Shapley).", MEASURED, INTERVAL),
    )


# --- steps to the target ------------------------------------------------------------------------------------------


def steps_to_target(results: Results) -> Table:
    """T8: steps, time and cost to the target against the batch."""
    part, key, title = results.targets, "T8", "Steps, time and cost to the target against the batch"
    if not part.rows:
        nothing = "No steps to target: no setting has several ended runs of which one reached a target."
        command = "" if part.why else "python run_study.py --space cartpole_ppo.yaml"
        return _without(key, title, part.why or nothing, command, part)
    names = "steps_to_target time_to_target_s cpu_hours_to_target"
    wide = pivot(results.frame, names)
    wide["arm"] = wide["arm"].where(wide["arm"] != "", wide["workload"])
    return table_of_pivot(
        wide,
        key=key,
        title=title,
        quantities=names,
        conclusion=_fewest(wide),
        counts=part,
        about=f"{'arm ' if wide['arm'].nunique() > 1 else ''}num_env_runners num_cpus train_batch_size",
        notes=part.notes,
        definitions=(CENSORED, INTERVAL),
        first=f"num_env_runners train_batch_size {names} n_censored",
    )


def _fewest(wide: pd.DataFrame) -> str:
    """Return what was least, with the rows that cannot be told from it."""
    steps = _least(wide, "steps_to_target")
    timed = wide[wide["time_to_target_s"].notna()]
    if timed.empty:
        return (
            f"The fewest env steps to the target: {steps}. No row has a measured clock: nothing is known of the time."
        )
    return f"The fewest env steps to the target: {steps}. The soonest, in s: {_least(timed, 'time_to_target_s')}."


def _least(wide: pd.DataFrame, name: str) -> str:
    """Return the least of some means to the target, and every row that cannot be told from it.

    A mean in which runs never got there is only a lower bound. It is chosen only if all are such, and differs from
    another mean only where its lower end is above that mean's upper end.
    """
    sure = wide[wide["n_censored"] == 0] if (wide["n_censored"] == 0).any() else wide
    best = sure.iloc[int(sure[name].astype(float).argmin())]
    low = wide[f"{name}_low"].astype(float).fillna(float("-inf"))
    high = wide[f"{name}_high"].astype(float).fillna(float("inf")).where(wide["n_censored"] == 0, float("inf"))
    at = wide.index.get_loc(best.name)
    same = (low <= high.iloc[at]) & (low.iloc[at] <= high) & (wide.index != best.name)
    rivals = [_where(wide, row) for _, row in wide[same].iterrows()]
    said = (
        f"{told(best, name)} at {_where(wide, best)}, reached by {best['n'] - best['n_censored']} of {best['n']} runs"
    )
    if not rivals:
        return said
    if len(wide) > 2 and len(rivals) == len(wide) - 1:
        return f"{said}; cannot be told from any of the other {len(rivals)} rows"
    more = f"; and {len(rivals) - MOST_NAMED} more" if len(rivals) > MOST_NAMED else ""
    return f"{said}; cannot be told from {'; '.join(rivals[:MOST_NAMED])}{more}"


def _where(wide: pd.DataFrame, row: Any) -> str:
    batch = "" if pd.isna(row["train_batch_size"]) else f", batch {row['train_batch_size']:,}"
    arm = f" ({row['arm']})" if wide["arm"].nunique() > 1 else ""
    return f"{counted(row['num_env_runners'], 'runner')}{batch}{arm}"


# --- certificate --------------------------------------------------------------------------------------------------

PASSED = {True: "kept", False: "BROKEN", None: "not judged"}
JUDGED = {
    "final_return": "iqm_final_return",
    "solved_share": "solve_rate",
    "score": "score",
    "steps_to_target": "env_steps_to_target",
    "cpu_s_spent": "cpu_s_spent",
}
"""Quantity -> what the certificate calls it."""


def hold_up(results: Results) -> Table:
    """T11: the settings of the confirmation, the rules of the verdict as notes, or what is missing."""
    content, key, title = results.certificate, "T11", "Hold-up certificate: the settings on test seeds"
    part = Part(n_failed=results.num_failed)
    if isinstance(content, str):
        return _without(key, title, content, "", part)
    try:
        return _certificate(content, results, key, title)
    except DAMAGE as error:
        damage = (
            f"No certificate. certificate.json must be one, got a damaged file ({type(error).__name__}: {error}). "
            f"Fix: python -m study certificate write {shlex.quote(results.data.source)}"
        )
        return _without(key, title, damage, "", part)


def _certificate(content: Mapping[str, Any], results: Results, key: str, title: str) -> Table:
    arms: list[Mapping[str, Any]] = list(content["arms"].values())
    small, target = content["scales"]["small"], content["scales"]["target"]
    rows = []
    for arm in arms:
        place = {"num_env_runners": arm["scale"], **{name: arm[name] for name in ("n_failed", "n_censored")}}
        place["arm"] = arm_in_words(arm["name"], small, folded=arm["folded"])
        for name, called in JUDGED.items():
            if (value := _judged(arm, called)) is not None:
                rows.append({**place, "quantity": name, "estimate": value})
    wide = pivot(frame_of(rows, kind="holdup", engine=results.engine), " ".join(JUDGED))
    clocks = [", ".join(f"{number} {label}" for label, number in arm["timing"].items()) for arm in arms]
    wide["n"], wide["timing"] = [arm["n"] for arm in arms], clocks
    n = sum(arm["n"] for arm in arms)
    excluded = {"of other stages than the confirmation": len(results.data.runs) - n}
    return table_of_pivot(
        wide,
        key=key,
        title=title,
        quantities=" ".join(JUDGED),
        conclusion=_verdict(content, small, target),
        counts=Part(n=n, n_failed=sum(arm["n_failed"] for arm in arms), excluded=excluded),
        about="arm num_env_runners",
        more=(text("timing", "clocks", "Labels of the runs' clocks."),),
        notes=list(_rules(content, arms, small)),
        definitions=(HOLDS_UP, CENSORED),
        first=f"num_env_runners {' '.join(JUDGED)} n_censored",
    )


def _judged(arm: Mapping[str, Any], called: str) -> Estimate | None:
    """Return an estimate of an arm; the certificate gives steps to the target without an interval."""
    value = arm[called]
    if value is None or isinstance(value, Mapping):
        return estimate_of(value)
    return without_interval(value, n=arm["n"], level=0.95, method="none")


def _verdict(content: Mapping[str, Any], small: int, target: int) -> str:
    verdict = content["verdict"]
    kept = estimate_of(verdict["checks"].get(f"score_kept@{target}", {}).get("value"))
    lead = "" if kept is None else (
        f" Its mean score less that of the best of {small} runners: {in_words(kept)}, n={kept.n}."
    )  # fmt: skip
    return f"At {target} runners the chosen setting {verdict['sentence']}.{lead}"


def _rules(content: Mapping[str, Any], arms: Sequence[Mapping[str, Any]], small: int) -> Iterator[str]:
    for check in content["verdict"]["checks"].values():
        value = estimate_of(check["value"])
        found = "" if value is None else f": {in_words(value)}"
        note = f" ({_with_names(check['note'], small)})" if check["note"] else ""
        yield f"{PASSED[check['passed']]}: {check['law']}{found}{note}."
    yield f"Against the baselines: {_with_names(content['comparisons']['sentence'], small)}."
    yield from content.get("signs", ())  # versions before 0.15.0 had none
    if apart := [steps for arm in arms if (steps := arm["resolution_env_steps"])]:
        yield f"Steps to target are those of evaluations, up to {max(apart):,.0f} env steps after the one before."


def _with_names(said: str, small: int) -> str:
    """Return a sentence of the certificate with the settings by their names in words."""
    for name in sorted(ARMS, key=len, reverse=True):
        if "_" in name:
            said = re.sub(rf"`?\b{name}\b`?", arm_in_words(name, small), said)
    return said


# --- the catalogue ------------------------------------------------------------------------------------------------

TABLES: Mapping[str, tuple[str, str, Callable[[Results], Table]]] = {
    "study_sheet": ("T1", "Study sheet", study_sheet),
    "strong_scaling": ("T2", "Strong scaling", strong_scaling),
    "weak_scaling": ("T3", "Weak scaling", weak_scaling),
    "phases": ("T5", "Phases", phases),
    "runners_and_batch": ("T7", "Runners x batch", runners_and_batch),
    "steps_to_target": ("T8", "Steps to target", steps_to_target),
    "certificate": ("T11", "Hold-up certificate", hold_up),
    "trials": ("trials", "Every trial", every_trial),
}
"""Name -> key in the report, title of a table that could not be made, and what makes it."""


def all_tables(results: Results) -> tuple[Table, ...]:
    """Return every table, in order."""
    return tuple(table_of(name, results) for name in TABLES)


def table_of(name: str, results: Results) -> Table:
    """Return one table by its name, such as `strong_scaling`, or by its key, such as `T2`.

    Raises:
        AnalysisError: There is no such table.
    """
    found = next((each for each in TABLES if name in (each, TABLES[each][0])), None)
    if found is None:
        raise unknown("table", name, TABLES)
    key, title, make = TABLES[found]
    try:
        return replace(make(results), engine=results.engine)
    except StudyError as error:
        return without_rows(key, title, f"It could not be made. {error}", n_failed=results.num_failed)


def _without(key: str, title: str, why: str, command: str, part: Part, notes: Sequence[str] = ()) -> Table:
    """Return a table without rows; `why` says what is missing, and `command` is what would make it."""
    return without_rows(key, title, why, command, n_failed=part.n_failed, excluded=part.excluded, notes=notes)
