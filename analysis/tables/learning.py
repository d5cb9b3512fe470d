"""T8 steps, time and cost to the target against the batch; T11 the certificate of a hold-up study. Views; no engine."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from analysis.estimates.certificate import DAMAGE, estimate_of
from analysis.estimates.results import Results
from analysis.estimates.settings import ARMS, arm_in_words, arms_of_trials, small_scale
from analysis.load import StudyData
from analysis.scaling.results import TargetGroup, TargetRow
from analysis.scaling.targets import least
from analysis.tables import definitions as words
from analysis.tables.columns import BATCH, CPUS, FAILED_RUNS, RATE, RUNNERS, RUNS, count, estimate, text
from analysis.tables.numbers import in_words
from analysis.tables.table import Layout, Table
from study.statistics import Estimate
from study.statistics.estimate import without_interval
from study.text import count as counted

MOST_NAMED = 6
"""Rows that a sentence names; of the rest, how many there are."""
TARGET = Layout(
    key="T8",
    title="Steps, time and cost to the target against the batch",
    columns=(
        text("label", "setting", "What tells this task and setting from the others."),
        RUNNERS,
        CPUS,
        BATCH,
        RUNS,
        FAILED_RUNS,
        count("n_censored", "never", "Runs that did not reach the target."),
        count("n_timed", "measured", "Measured runs behind the throughput."),
        estimate("steps_to_target", "1", "steps to target", "Restricted mean of env steps up to the horizon."),
        RATE,
        estimate("time_to_target_s", "s", "time to target", "Training seconds."),
        estimate("cpu_h_to_target", "CPU h", "cost", "CPU-hours to the target."),
    ),
    definitions=(words.STEPS_TO_TARGET, words.COST, words.THROUGHPUT, words.INTERVAL),
    first=(
        "num_env_runners",
        "train_batch_size",
        "steps_to_target",
        "time_to_target_s",
        "cpu_h_to_target",
        "n_censored",
    ),
)
CERTIFICATE = Layout(
    key="T11",
    title="Hold-up certificate: the settings on test seeds",
    columns=(
        text("arm", "setting", "All on seeds that nothing was chosen by."),
        RUNNERS,
        RUNS,
        FAILED_RUNS,
        estimate("solve_rate", "1", "solved", "Share of runs that end at the target; a failed run does not."),
        estimate("score", "1", "", "Mean score; floor 0, reference 1; a failed run is 0."),
        estimate("iqm_final_return", "1", "return", "Interquartile mean of the final returns."),
        estimate("env_steps_to_target", "1", "steps to target", "Restricted mean to the horizon."),
        count("n_censored", "never", "Runs that did not reach the target by then."),
        estimate("cpu_s_spent", "CPU s", "CPU time", "Mean CPU time in training."),
        text("timing", "clocks", "Labels of the runs' clocks."),
    ),
    definitions=(words.CERTIFICATE, words.STEPS_TO_TARGET),
    first=("num_env_runners", "iqm_final_return", "solve_rate", "score", "env_steps_to_target", "n_censored"),
)
PASSED = {True: "kept", False: "BROKEN", None: "not judged"}


# --- T8 -----------------------------------------------------------------------------------------------------------


def steps_to_target(results: Results) -> Table:
    """T8: steps, time and cost to the target against the batch."""
    found = results.to_target
    if isinstance(found, str):
        return TARGET.without(found, n_failed=results.num_failed)
    pairs = [(group, row) for group in found.groups for row in group.rows]
    if not pairs:
        why = "No steps to target: no setting has several ended runs of which one reached a target."
        return TARGET.without(
            why, "python run_study.py --space cartpole_ppo.yaml", n_failed=found.n_failed, excluded=found.excluded
        )
    labels = _labels(pairs, results.data)
    named = labels if len(found.groups) > 1 else [""] * len(pairs)
    return TARGET.table(
        [row for _, row in pairs],
        _fewest_steps([(label, row) for label, (_, row) in zip(named, pairs, strict=True)]),
        n=found.n,
        n_failed=found.n_failed,
        excluded=found.excluded,
        notes=(*found.notes, *_horizons(pairs, labels, named=len(found.groups) > 1)),
        values={"label": labels},
        hidden=() if len(found.groups) > 1 else ("label",),
    )


def _labels(pairs: Sequence[tuple[TargetGroup, TargetRow]], data: StudyData) -> list[str]:
    """Return the names of the settings: of a hold-up study those of its arms, else what tells the groups apart."""
    if data.kind != "holdup":
        return [group.label for group, _ in pairs]
    names = arms_of_trials(data.runs, small=small_scale(data))
    arms = [{names.get(trial, "") for trial in row.trials} for _, row in pairs]
    return [arm.pop() if len(arm) == 1 else group.label for arm, (group, _) in zip(arms, pairs, strict=True)]


def _fewest_steps(rows: Sequence[tuple[str, TargetRow]]) -> str:
    """Return what was least, with the rows that cannot be told from it."""
    steps = [(label, row, row.steps_to_target) for label, row in rows if row.steps_to_target is not None]
    if not steps:
        return f"No run of {sum(row.n for _, row in rows)} reached the target within its budget."
    reached = _least(steps, lambda row: f"reached by {row.n - row.n_censored} of {row.n} runs")
    said = f"The fewest env steps to the target: {reached}"
    timed = [(label, row, row.time_to_target_s) for label, row in rows if row.time_to_target_s is not None]
    if not timed:
        return f"{said}. No row has a measured clock: nothing is known of the time to the target."
    return f"{said}. The soonest, in s: {_least(timed, lambda row: f'n={row.n_timed} measured')}."


def _least(found: Sequence[tuple[str, TargetRow, Estimate]], aside: Callable[[TargetRow], str]) -> str:
    """Return the least of some estimates, and every row that cannot be told from it."""
    first, places = least([(row, value) for _, row, value in found])
    (label, row, value), rivals = found[first], [found[place] for place in places]
    said = f"{in_words(value)} at {_where(label, row)}, {aside(row)}"
    if not rivals:
        return said
    if len(found) > 2 and len(rivals) == len(found) - 1:
        return f"{said}; cannot be told from any of the other {len(rivals)} rows"
    named = "; ".join(_where(label, row) for label, row, _ in rivals[:MOST_NAMED])
    more = f"; and {len(rivals) - MOST_NAMED} more" if len(rivals) > MOST_NAMED else ""
    return f"{said}; cannot be told from {named}{more}"


def _where(label: str, row: TargetRow) -> str:
    runners = counted(row.num_env_runners, "runner")
    batch = "" if row.train_batch_size is None else f", batch {row.train_batch_size:,}"
    return f"{runners}{batch}{f' ({label})' if label else ''}"


def _horizons(pairs: Sequence[tuple[TargetGroup, TargetRow]], labels: Sequence[str], *, named: bool) -> Iterator[str]:
    first = {id(group): (group, label) for (group, _), label in reversed(list(zip(pairs, labels, strict=True)))}
    for group, label in reversed(first.values()):
        said = f"horizon {group.horizon:,} env steps."
        if group.resolution:
            said += (
                f" Evaluations are up to {group.resolution:,} env steps apart: a run was at the target at some time "
                "since the one before, and the intervals hold that."
            )
        yield f"{label}: {said}" if named else said


# --- T11 ----------------------------------------------------------------------------------------------------------


def hold_up(results: Results) -> Table:
    """T11: the settings of the confirmation, the rules of the verdict as notes, or what is missing."""
    failed, content = results.num_failed, results.certificate
    if isinstance(content, str):
        return CERTIFICATE.without(content, n_failed=failed)
    try:
        return _certificate(content, results.data)
    except DAMAGE as error:
        damage = (
            f"No certificate. certificate.json must be one, got a damaged file ({type(error).__name__}: {error}). "
            f"Fix: python -m study certificate write {shlex.quote(results.data.source)}"
        )
        return CERTIFICATE.without(damage, n_failed=failed)


def _certificate(content: Mapping[str, Any], data: StudyData) -> Table:
    arms: list[Mapping[str, Any]] = list(content["arms"].values())
    small, target = content["scales"]["small"], content["scales"]["target"]
    estimates = ("solve_rate", "score", "iqm_final_return", "cpu_s_spent")
    n = sum(arm["n"] for arm in arms)
    return CERTIFICATE.table(
        arms,
        _conclusion(content, small, target),
        n=n,
        n_failed=sum(arm["n_failed"] for arm in arms),
        excluded={"of other stages than the confirmation": len(data.runs) - n},
        notes=_notes(content, arms, small),
        values={
            "arm": [_name(arm, small) for arm in arms],
            "num_env_runners": [arm["scale"] for arm in arms],
            **{name: [arm[name] for arm in arms] for name in ("n", "n_failed", "n_censored")},
            **{name: [estimate_of(arm[name]) for arm in arms] for name in estimates},
            "env_steps_to_target": [_without_interval(arm) for arm in arms],
            "timing": [", ".join(f"{number} {label}" for label, number in arm["timing"].items()) for arm in arms],
        },
    )


def _with_names(text: str, small: int) -> str:
    """Return a sentence of the certificate with the settings by their names in words."""
    for name in sorted(ARMS, key=len, reverse=True):
        if "_" in name:
            text = re.sub(rf"`?\b{name}\b`?", arm_in_words(name, small), text)
    return text


def _name(arm: Mapping[str, Any], small: int) -> str:
    return arm_in_words(arm["name"], small, folded=arm["folded"])


def _without_interval(arm: Mapping[str, Any]) -> Estimate | None:
    """Return the steps to the target of an arm: the certificate gives them without an interval."""
    value = arm["env_steps_to_target"]
    return None if value is None else without_interval(value, n=arm["n"], level=0.95, method="none")


def _conclusion(content: Mapping[str, Any], small: int, target: int) -> str:
    verdict = content["verdict"]
    kept = estimate_of(verdict["checks"].get(f"score_kept@{target}", {}).get("value"))
    lead = ""
    if kept is not None:
        lead = f" Its mean score less that of the best of {small} runners: {in_words(kept)}, n={kept.n}."
    return f"At {target} runners the chosen setting {verdict['sentence']}.{lead}"


def _notes(content: Mapping[str, Any], arms: Sequence[Mapping[str, Any]], small: int) -> Iterator[str]:
    for check in content["verdict"]["checks"].values():
        value = estimate_of(check["value"])
        found = "" if value is None else f": {in_words(value)}"
        note = f" ({_with_names(check['note'], small)})" if check["note"] else ""
        yield f"{PASSED[check['passed']]}: {check['law']}{found}{note}."
    yield f"Against the baselines: {_with_names(content['comparisons']['sentence'], small)}."
    yield from (_with_names(note, small) for note in content["notes"])
    if apart := [steps for arm in arms if (steps := arm["resolution_env_steps"])]:
        yield f"Steps to target are those of evaluations, up to {max(apart):,.0f} env steps after the one before."
