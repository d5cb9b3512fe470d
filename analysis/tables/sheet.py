"""T1, the study sheet: what ran, on what, with which versions; and the table of every trial. Views; no engine."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analysis.estimates.results import Results
from analysis.load import RUN_COLUMNS, StudyData
from analysis.scaling.fingerprint import ABSENT, fields
from analysis.scaling.selection import at_their_scale
from analysis.tables.cells import TableColumn
from analysis.tables.columns import text
from analysis.tables.table import Table, table_of_values, without_rows
from study.space.parameters import PARAMETERS, SCALE
from study.text import count as counted

GROUPS: Mapping[str, tuple[str, ...]] = {
    "study": ("study_id", "digest", "description", "space", "created", "first_record", "last_record", "num_trials"),
    "environment": ("environment",),
    "algorithm": ("algorithm", "runner", "learner", "standardization", "execution", "rllib"),
    "network": ("model",),
    "parameters": ("parameters",),
    "protocol": ("budget", "evaluation", "search", "holdup", "throughput", "resources"),
    "software": ("commit", "dirty", "versions"),
    "hardware": ("hardware", "cluster"),
    "scheduler": ("scheduler",),
}
"""Where an entry of the sheet stands; what is in none comes last."""
TOLD_OTHERWISE = ("name", "counts", "sessions")
SPREAD = ("parameters",)
"""Entries that are shown value by value."""
READ_BACK = ("effective_", "threads.")
"""Fields of the fingerprint that were read back from the built algorithm: the rest of the equal ones stand above."""
MOST_VALUES = 8
"""Values of a differing field that are listed."""
LONGEST = 300
"""Characters of a value that are shown."""

SHEET = (
    text("group", "", "What the entry belongs to."),
    text("entry", "", "Its name, as in the space, the records and MLflow."),
    text("value", "", "Its value; of a field that differs between trials, all values."),
)
TRIALS = "trials"
MOST_TRIALS = 60
"""Trials that a page shows; the CSV has all."""
LABELS: Mapping[str, str] = {
    SCALE: "runners",
    "train_batch_size": "batch",
    "minibatch_size": "minibatch",
    "num_epochs": "epochs",
    "num_envs_per_env_runner": "environments per runner",
    "final_return": "return",
    "env_steps_to_target": "steps to target",
    "env_steps_per_s": "steps/s",
    "wall_time_s": "training time",
    "timing": "clock",
}
SETTING = (SCALE, *(name for name in PARAMETERS if name != SCALE))
OUTCOME = ("final_return", "score", "env_steps_to_target", "env_steps_per_s", "wall_time_s")
OF_A_TRIAL = ("trial", *SETTING, "seed", "stage", *OUTCOME, "status", "timing", "reason")


def study_sheet(results: Results) -> Table:
    """T1: the fingerprint, hardware, versions and scheduler job of a study."""
    data = results.data
    rows = [*_head(data), *_entries(data.sheet), *_sessions(data.sheet), *_fingerprint(data)]
    return table_of_values(
        "T1",
        "Study sheet",
        SHEET,
        {column.name: [row[place] for row in rows] for place, column in enumerate(SHEET)},
        _conclusion(data),
        n=len(data.runs),
        n_failed=results.num_failed,
        notes=data.problems,
    )


def every_trial(results: Results) -> Table:
    """The trials: setting, seed, what came out, and what its clock is worth."""
    data = results.data
    runs = at_their_scale(data.runs)
    if runs.empty:
        return without_rows(TRIALS, "Every trial", "No trial has started.")
    timed = data.kind == "throughput"
    by = [SCALE, "trial"] if timed else ["final_return", "env_steps_to_target", SCALE, "trial"]  # as `Setting.order`
    runs = runs.sort_values(by, ascending=[timed, *[True] * (len(by) - 1)], na_position="last")
    names = [name for name in OF_A_TRIAL if runs[name].notna().any()]
    names = [name for name in names if name == SCALE or name not in PARAMETERS or runs[name].nunique() > 1]
    frame: pd.DataFrame = runs[names].reset_index(drop=True)
    counts = ", ".join(f"{count:,} {status}" for status, count in runs["status"].value_counts().items())
    return Table(
        key=TRIALS,
        title="Every trial",
        frame=frame.astype({name: "string" for name in names if str(frame[name].dtype) == "category"}),
        columns=tuple(
            TableColumn(
                name=name,
                unit=unit if (unit := RUN_COLUMNS[name].unit) in ("s",) else ("1" if unit else ""),
                label=LABELS.get(name, ""),
                meaning=RUN_COLUMNS[name].meaning,
            )
            for name in names
        ),
        n=len(runs),
        n_failed=results.num_failed,
        conclusion=f"{counts}; " + ("by runners." if data.kind == "throughput" else "the best return first."),
        first=(SCALE, *OUTCOME[:2]),
        most_rows=MOST_TRIALS,
    )


def _conclusion(data: StudyData) -> str:
    runs = data.runs
    scales = sorted(int(scale) for scale in at_their_scale(runs)["num_env_runners"].dropna().unique())
    span = "an unknown scale" if not scales else f"{scales[0]} runners" if len(scales) == 1 else ""
    span = span or f"{len(scales)} scales from {scales[0]} to {scales[-1]} runners"
    workloads = int(runs["fingerprint"].nunique())
    measured = int((runs["timing"] == "measured").sum())
    environment = data.sheet.get("environment")
    where = f" on {environment['id']}" if isinstance(environment, Mapping) and environment.get("id") else ""
    trials, loads = counted(len(runs), "trial"), counted(workloads, "workload")
    return f"{data.name}: {trials}{where} at {span}, {loads}; {measured:,} of them with a measured clock."


def _head(data: StudyData) -> Iterator[tuple[str, str, str]]:
    yield "study", "name", data.name
    yield "study", "kind", data.kind
    yield "study", "source", data.source
    for entry, column in (("trials", "status"), ("clocks", "timing"), ("execution", "execution"), ("stages", "stage")):
        counts = data.runs[column].value_counts(dropna=True)
        if len(counts):
            yield "study", entry, ", ".join(f"{count:,} {label}" for label, count in counts.items())


def _entries(sheet: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    placed = {name for names in GROUPS.values() for name in names} | set(TOLD_OTHERWISE)
    rest = tuple(name for name in sheet if name not in placed)
    for group, names in {**GROUPS, "other": rest}.items():
        for name in names:
            for entry, value in _flat(name, sheet.get(name)):
                yield group, entry, value


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield an entry; a mapping that would not fit on a few lines, or whose values are mappings, by its own entries."""
    if value is None or value in ("", {}, []):
        return
    if isinstance(value, Mapping) and (name in SPREAD or len(_words(value)) > LONGEST):
        for inner, each in value.items():
            yield from _flat(f"{name}.{inner}", each)
    else:
        yield name, _text(value)


def _sessions(sheet: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    sessions = sheet.get("sessions") or []
    for session in sessions if len(sessions) > 1 else []:
        said = [session.get("started"), session.get("end"), session.get("commit")]
        job = session.get("scheduler")
        said += [f"{job.get('name')} job {job.get('job')}"] if isinstance(job, Mapping) else []
        said += [(session.get("hardware") or {}).get("hostname")]
        yield "sessions", f"session {session.get('session')}", ", ".join(str(each) for each in said if each)


def _fingerprint(data: StudyData) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of the workload that differ, and the equal ones that the space does not say."""
    distinct = [fields(str(each)) for each in data.runs["fingerprint"].unique()]
    equal: dict[str, Any] = {}
    for name in sorted({name for each in distinct for name in each}):
        values = list(dict.fromkeys(_text(each.get(name, ABSENT)) for each in distinct))
        if len(values) > 1:
            shown = "; ".join(values[:MOST_VALUES]) + (f"; … {len(values)} values" if len(values) > MOST_VALUES else "")
            yield "workload", f"differs: {name}", shown
        elif name.startswith(READ_BACK):
            group, _, inner = name.partition(".")
            equal.setdefault(group, {})[inner] = distinct[0][name]
    for group, values_of in equal.items():
        yield "workload", f"equal: {group}", _text(values_of)


def _text(value: Any) -> str:
    text = _words(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _words(value: Any) -> str:
    """Return JSON values as a person writes them."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        if set(value) == {"choices"}:
            return " or ".join(_words(each) for each in value["choices"])
        if {"low", "high"} <= set(value):
            return f"{_words(value['low'])} to {_words(value['high'])}" + (", log" if value.get("log") else "")
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items() if each not in (None, "", {}, [], ()))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_words(each) for each in value) + "]"
    return str(value)
