"""The runs of a study of ours in MLflow -> its frames: a metric history is one request, made where it is needed."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import orjson
import pandas as pd

from analysis.load.arrays import frame_of_lines
from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS, RUN_COLUMNS
from analysis.load.fingerprint import effective_part, fingerprint, fingerprints
from analysis.load.mlflow_client import Store, StoredRun
from analysis.load.sheet import Session
from study.errors import RecordError
from study.metrics import METRICS, OF_ITERATIONS, WARMUP_ITERATIONS
from study.mirrors.mlflow_content import ATTEMPT, EFFECTIVE, TRIAL
from study.planning.needs import num_cpus
from study.records.folder import StudyIdentity
from study.records.records import LARGEST, Effective, check_plain
from study.records.sums import Sums
from study.space.parameters import PARAMETERS, SCALE, Value
from study.space.sections import LEARNERS
from study.space.settings import spec_of
from study.space.spec import StudySpec

_MOST_DIGITS = 9
"""Of a number in a tag: nothing is counted further."""
_NONE = "none"
"""What the mirror writes for an empty text."""
_COUNTS = frozenset(name for name, column in RUN_COLUMNS.items() if column.dtype == "Int64")
_TRIAL_METRICS = tuple(name for name, metric in METRICS.items() if metric.grain == "trial")
_BATCH = "train_batch_size"
_FAR = 0.03
"""Relative difference from which the CPUs reserved cannot be those that the space gives."""
_SHORT_S = 2.0
"""A trial's summary is made some milliseconds before its end is recorded: below this, a percent of the duration."""
_CLOCK = "iteration_time_s"
"""Every iteration has it: its history numbers the iterations."""
_WALL_CLOCK = "wall_time_s"
TIMED = (_CLOCK, *(name for name in OF_ITERATIONS if name != _CLOCK and METRICS[name].mirrored))
"""What the columns of a run that add up its iterations need."""
_ALL = tuple(name for name, metric in METRICS.items() if metric.grain == "iteration" and metric.mirrored)
_PHASES = ("sampling_time_s", "learning_time_s", "sync_time_s")

Row = dict[str, float | None]
"""One iteration: metrics by name, `env_steps` among them."""


def our_runs(
    identity: StudyIdentity,
    spec: StudySpec | None,
    runs: Sequence[StoredRun],
    sessions: Sequence[Session],
    iterations: Callable[[StoredRun], list[Row]] | None,
    *,
    where: str,
) -> pd.DataFrame:
    """Return one row per trial with the columns of `RUN_COLUMNS`; what MLflow does not hold is NA.

    Args:
        identity: Of the study.
        spec: Its space, if it is known.
        runs: One per trial.
        sessions: Of the study.
        iterations: Reads those of a run; None where histories are not to be read.
        where: Store and experiment, for messages.

    Raises:
        RecordError: A parameter is not of its type; names store, run and column.
        TrackingError: MLflow does not answer.
    """
    sums = [_timed(iterations(run)) if iterations else _implied(run) for run in runs]
    lines = [{"study": identity.name, **_line(run, where), **of_run} for run, of_run in zip(runs, sums, strict=True)]
    if spec is not None:
        _add_resources(lines, spec)
    _add_fingerprints(lines, [effective_of(run) for run in runs], identity.spec, sessions)
    return frame_of_lines(lines, RUN_COLUMNS, where=where)


def _line(run: StoredRun, where: str) -> dict[str, Any]:
    params, tags = run.params, run.tags
    setting: dict[str, Value] = {name: _number(params[name], name, run, where) for name in PARAMETERS if name in params}
    status = tags.get("status", "running")  # what no end was recorded of; MLflow's own KILLED may be the mirror's
    timing, reason = tags.get("timing"), tags.get("timing_reason")
    if status == "running" and timing is not None:
        timing, reason = None, f"not settled yet: {reason}"
    execution = params.get("execution", "real")
    stands_for = _optional(params, "stands_for_runners", run, where)
    nodes, effective = tags.get("nodes"), effective_of(run) or {}
    learners, baseline = effective.get(LEARNERS), params.get("baseline", params.get("anchor"))  # before 0.12.1
    return {
        "trial": whole(run, TRIAL),
        "attempt": attempt_of(run),
        "status": status,
        "reason": tags.get("reason", "").strip() or None,
        "stage": params.get("stage"),
        "variant": params.get("variant"),
        "digest": params.get("setting"),
        "baseline": None if baseline == _NONE else baseline,
        "seed": _optional(params, "seed", run, where),
        **setting,
        LEARNERS: _optional(params, LEARNERS, run, where) if learners is None else learners,
        "learner_threads": effective.get("torch_threads_learner"),
        "max_iterations": _optional(params, "iterations", run, where),
        "stands_for_runners": None if stands_for == setting.get(SCALE) else stands_for,
        "num_nodes": len(nodes.split(", ")) if nodes else None,
        "nodes": nodes,
        "execution": execution,
        "timing": timing,
        "timing_reason": reason,
        **{name: _metric(run, name) for name in _TRIAL_METRICS},
        "started": run.start_time_s,
        "ended": run.end_time_s if status != "running" else None,
    }


def attempt_of(run: StoredRun) -> int:
    """Return which attempt of its trial a run is; 1 where somebody has changed the tag."""
    return whole(run, ATTEMPT) or 1


def whole(run: StoredRun, tag: str) -> int | None:
    """Return the whole number in a tag; None where there is none, or where somebody has changed it to another text."""
    text = run.tags.get(tag, "")
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def effective_of(run: StoredRun) -> dict[str, Any] | None:
    """Return what was read back from the built algorithm; None where MLflow does not hold it."""
    try:
        content = orjson.loads(run.tags.get(EFFECTIVE, ""))
        check_plain(content, Effective)
    except ValueError:
        return None
    return content  # type: ignore[no-any-return]


def _add_fingerprints(
    lines: Sequence[dict[str, Any]],
    effective: Sequence[Mapping[str, Any] | None],
    spec: Mapping[str, Any],
    sessions: Sequence[Session],
) -> None:
    begun, provenances = [each.started for each in sessions], [each.opened.provenance for each in sessions]
    started = [max(bisect_right(begun, line["started"] or 0.0) - 1, 0) for line in lines]
    texts, engines = fingerprints(
        spec,
        provenances,
        [
            (session, line["variant"], line["execution"], line[LEARNERS])
            for line, session in zip(lines, started, strict=True)
        ],
        [{name: line[name] for name in PARAMETERS if name in line} for line in lines],
        [
            None if each is None else fingerprint(effective_part(each, provenances[session]))
            for each, session in zip(effective, started, strict=True)
        ],
    )
    for line, text, engine in zip(lines, texts, engines, strict=True):
        line |= {"fingerprint": text, "engine": engine}


def _add_resources(lines: Sequence[dict[str, Any]], spec: StudySpec) -> None:
    """Add CPUs and unknown learners by the space, except to cells whose CPU-seconds reserved speak against them.

    The cells of a throughput study can have learners of their own, which MLflow need not tell.
    """
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        if SCALE in line:
            cell = line[SCALE], line[LEARNERS], line["execution"], line["stage"], line["baseline"]
            cells.setdefault(cell, []).append(line)
    for (scale, learners, execution, *_), of_cell in cells.items():
        own = spec_of(spec, "study", num_learners=learners)
        cpus = num_cpus(own, int(scale), "emulated" if execution == "emulated" else "real")
        seen = [each for line in of_cell if (each := _reserved(line)) is not None]
        if not seen or abs(median(seen) / cpus - 1) <= _FAR:
            for line in of_cell:
                line |= {LEARNERS: own.resources.num_learners, "num_cpus": cpus}


def _reserved(line: Mapping[str, Any]) -> float | None:
    """Return the CPUs that a run's CPU-seconds reserved come from; None where it was too short to tell."""
    reserved, begun, ended = line["cpu_s_reserved"], line["started"], line["ended"]
    if reserved is None or begun is None or ended is None or ended - begun < _SHORT_S:
        return None
    return float(reserved / (ended - begun))


def _metric(run: StoredRun, name: str) -> float | int | None:
    value = run.metrics.get(name)
    return int(value) if value is not None and name in _COUNTS else value


def _optional(params: Mapping[str, str], name: str, run: StoredRun, where: str) -> Any:
    return _number(params[name], name, run, where) if name in params else None


def _number(text: str, name: str, run: StoredRun, where: str) -> Value:
    """Return a parameter's value.

    Raises:
        RecordError: It is no number.
    """
    try:
        value = int(text) if name in _COUNTS else float(text)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"beyond {LARGEST}")
        return value
    except ValueError as error:
        raise RecordError(
            where=f"{where}: run {run.name!r} ({run.id})",
            rule=f"parameter {name} must be a number",
            got=f"{text!r}",
            fix="Leave runs of this project as they are, or read the study from its folder.",
        ) from error


def _timed(iterations: Sequence[Row]) -> dict[str, Any]:
    """Return what the iterations of a run add up to, by the rules of those in a folder."""
    sums = Sums()
    for number, row in enumerate(iterations, start=1):
        sums.add(number, row)
    rate = sums.env_steps_per_s()
    return sums.columns() | ({} if rate is None else {"env_steps_per_s": rate})


def _implied(run: StoredRun) -> dict[str, Any]:
    """Return what a run's latest values imply, where all its batches can only have had the size of the last one.

    The rate leaves the first iteration out: with equal batches the steps of the others are known, and so their seconds.
    """
    batch, steps = run.metrics.get("train_batch_size_actual"), run.metrics.get("env_steps")
    rate, wall = run.metrics.get("env_steps_per_s"), run.metrics.get("wall_time_s")
    if not batch or not steps or not rate or wall is None or steps % batch or run.params.get(_BATCH) != f"{batch:.0f}":
        return {}
    timed_steps, iterations = steps - WARMUP_ITERATIONS * batch, round(steps / batch)
    seconds = timed_steps / rate
    if timed_steps <= 0 or seconds > wall:
        return {}
    timed = iterations - WARMUP_ITERATIONS
    return {
        "iterations": iterations,
        "timed_iterations": timed,
        "timed_env_steps": int(timed_steps),
        "timed_s": seconds,
        "iteration_time_s": seconds / timed,
    }


def iterations_of(store: Store, run: StoredRun, names: Sequence[str] = TIMED) -> list[Row]:
    """Return the run's iterations in their order, with some metrics; one without a value there is absent.

    The step of a point is the environment steps so far, which grow from iteration to iteration; what the end of a
    trial adds has the last step again and is no iteration.
    """
    if _CLOCK not in run.metrics:
        return []
    rows: dict[int, Row] = {}
    for name in (_CLOCK, *(name for name in names if name != _CLOCK)):
        if name not in run.metrics:
            continue
        for step, value in store.history(run.id, name):
            if name == _CLOCK:
                rows.setdefault(step, {"env_steps": step})
            if step in rows and not math.isnan(value):
                rows[step].setdefault(name, value)
    ordered = [rows[step] for step in sorted(rows)]
    for row in ordered:
        row["rest_time_s"] = _rest(row)
    return ordered


def _rest(row: Mapping[str, float | None]) -> float | None:
    """Return what is left of an iteration beside its phases: the mirror leaves it out since it follows from them."""
    phases = [row.get(name) for name in _PHASES]
    clock = row.get(_CLOCK)
    if clock is None or any(value is None for value in phases):
        return None
    return clock - math.fsum(value for value in phases if value is not None)


def our_iterations(store: Store, runs: Sequence[StoredRun], *, where: str) -> pd.DataFrame:
    """Return one row per training iteration; what the mirror leaves out is NA.

    Raises:
        TrackingError: MLflow does not answer.
    """
    lines = [
        {"trial": int(run.tags[TRIAL]), "iteration": number, **row}
        for run in runs
        for number, row in enumerate(iterations_of(store, run, (*_ALL, _WALL_CLOCK)), start=1)
    ]
    return frame_of_lines(lines, ITERATION_COLUMNS, where=where)


def our_evaluations(store: Store, runs: Sequence[StoredRun], *, where: str) -> pd.DataFrame:
    """Return one row per evaluation: its mean return, its step and the clock of the iteration before it.

    MLflow holds no more of it.

    Raises:
        TrackingError: MLflow does not answer.
    """
    lines: list[dict[str, Any]] = []
    for run in runs:
        if "eval_return" not in run.metrics:
            continue
        clock: dict[int, float] = {}
        for step, value in store.history(run.id, _WALL_CLOCK) if _WALL_CLOCK in run.metrics else ():
            clock.setdefault(step, value)  # what the end of a trial adds has the last step again
        lines += [
            {
                "trial": int(run.tags[TRIAL]),
                "env_steps": step,
                _WALL_CLOCK: clock.get(step),
                "eval_return": value,
            }
            for step, value in store.history(run.id, "eval_return")
        ]
    return frame_of_lines(lines, EVALUATION_COLUMNS, where=where)
