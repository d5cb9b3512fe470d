"""Studies as frames, invented cell by cell, for tests of tables: times with a planted law, one row per trial."""

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from analysis.load import EVALUATION_COLUMNS, StudyData
from analysis.load.columns import RUN_COLUMNS

NOISE = (1.00, 1.02, 0.99, 1.01)
"""Factor of every time in block 1, 2, …: what a block does to all cells alike cancels in paired ratios."""
ITERATIONS = 5


def run(
    trial: int,
    *,
    runners: int = 1,
    batch: int = 3_200,
    seed: int = 1,
    iteration_time_s: float = 1.0,
    timing: str = "measured",
    status: str = "finished",
    workload: Mapping[str, Any] = MappingProxyType({}),
    **columns: Any,
) -> dict[str, Any]:
    """Return one row of `runs`; `workload` are further entries of the fingerprint."""
    fingerprint = {
        "algorithm": "PPO",
        "environment": {"id": "Waiting-v0", "step_wait_ms": 0.0},
        "train_batch_size": batch,
        "minibatch_times_learners": 128,
        "num_epochs": 4,
        "num_envs_per_env_runner": 4,
        **workload,
    }
    timed = status == "finished"
    learning = 0.2 * iteration_time_s
    sampling = 0.7 * iteration_time_s
    times = {
        "iteration_time_s": iteration_time_s,
        "sampling_time_s": sampling,
        "slowest_runner_time_s": 0.95 * sampling,
        "mean_runner_time_s": 0.9 * sampling,
        "learning_time_s": learning,
        "sync_time_s": 0.06 * iteration_time_s,
        "rest_time_s": 0.04 * iteration_time_s,
        "timed_s": ITERATIONS * iteration_time_s,
        "env_steps_per_s": batch / iteration_time_s,
        "timed_iterations": ITERATIONS,
        "timed_env_steps": ITERATIONS * batch,
    }
    return {
        "study": "invented",
        "trial": trial,
        "status": status,
        "reason": "because" if status == "failed" else None,
        "seed": seed,
        "num_env_runners": runners,
        "num_envs_per_env_runner": 4,
        "train_batch_size": batch,
        "minibatch_size": 128,
        "num_epochs": 4,
        "lr": 3e-4,
        "num_learners": 0,
        "num_cpus": runners + 1,
        "num_nodes": 1,
        "execution": "emulated" if timing == "emulated" else "real",
        "timing": timing,
        "timing_reason": "3 processes on 2 cores" if timing == "oversubscribed" else "",
        "learner_threads": 1,
        "fingerprint": json.dumps(fingerprint, sort_keys=True),
        **(times if timed else {}),
        **columns,
    }


def amdahl(
    scales: Iterable[int] = (1, 2, 4, 8, 16), *, blocks: int = 3, serial_s: float = 0.2, parallel_s: float = 3.0
) -> list[dict[str, Any]]:
    """Return runs with T(n) = serial + parallel / n, times the factor of their block."""
    cells = [(seed, n) for seed in range(1, blocks + 1) for n in scales]
    return [
        run(trial, runners=n, seed=seed, iteration_time_s=NOISE[seed - 1] * (serial_s + parallel_s / n))
        for trial, (seed, n) in enumerate(cells)
    ]


def as_frame(rows: list[dict[str, object]]) -> pd.DataFrame:
    """Return rows as `analysis.load` would: declared columns and types, NA where a row says nothing."""
    known = {"fingerprint": "{}"}  # no row is without one
    frame = pd.DataFrame({name: [row.get(name, known.get(name)) for row in rows] for name in RUN_COLUMNS})
    return frame.astype({name: column.dtype for name, column in RUN_COLUMNS.items()})


def study(rows: list[dict[str, Any]], **changes: Any) -> StudyData:
    """Return a study with these trials."""

    def nothing() -> pd.DataFrame:
        return pd.DataFrame()

    def no_evaluations() -> pd.DataFrame:
        return pd.DataFrame({name: pd.Series(dtype=column.dtype) for name, column in EVALUATION_COLUMNS.items()})

    values: dict[str, Any] = {
        "name": "invented",
        "source": "studies/invented",
        "kind": "search",
        "sheet": {"environment": {"id": "Waiting-v0"}, "versions": {"ray": "2.60.0"}, "commit": "abc"},
        "iterations": nothing,
        "read_evaluations": no_evaluations,
    }
    return StudyData(runs=as_frame(rows), **(values | changes))
