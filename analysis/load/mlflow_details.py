"""Metric histories of a study of ours in MLflow, one request per run and metric, only when they are asked for."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.load.arrays import frame_of_lines
from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS
from analysis.load.mlflow_client import Store, StoredRun
from study.metrics import METRICS
from study.mirrors.mlflow_content import TRIAL

_CLOCK = "iteration_time_s"
"""Every iteration has it: its history numbers the iterations."""
_WALL_CLOCK = "wall_time_s"
TIMED = (
    _CLOCK,
    "sampling_time_s",
    "slowest_runner_time_s",
    "learning_time_s",
    "sync_time_s",
    "train_batch_size_actual",
    "cpu_pressure",
    "peak_rss_mb",
)
"""What the means of a run need."""
_ALL = tuple(name for name, metric in METRICS.items() if metric.grain == "iteration" and metric.mirrored)
_PHASES = ("sampling_time_s", "learning_time_s", "sync_time_s")

Row = dict[str, float | None]
"""One iteration: metrics by name, `env_steps` among them."""


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
            if step in rows:
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
