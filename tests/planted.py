"""Invented studies as frames: runs row by row, and studies of known truth that the analysis must find again.

One iteration of n runners on a batch B takes, in seconds,

    T(n, B) = step_s B / n * straggler + transfer_s          sampling; the mean runner takes step_s B / n
            + serial_s + serial_per_step_s B                 learning
            + sync_s + rest_s

times lognormal noise of the run and of its block; one runner has no straggler. A run reaches its target after
steps_min (1 + B / batch_crit) env steps, times lognormal noise.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import EVALUATION_COLUMNS, StudyData
from analysis.load.columns import RUN_COLUMNS
from study.metrics import WARMUP_ITERATIONS

NOISE = (1.00, 1.02, 0.99, 1.01)
"""Factor of every time in block 1, 2, …: what a block does to all cells alike cancels in paired ratios."""
ITERATIONS = 5
SMALLEST = {
    "algorithm": "PPO",
    "cpu_model": "Planted CPU",
    "environment": {"id": "Waiting-v0"},
    "execution": "real",
    "lr": 3e-4,
    "minibatch_times_learners": 128,
    "num_envs_per_env_runner": 4,
    "num_epochs": 4,
}
"""A fingerprint as small as one can be, without its batch."""


def fingerprint(batch: int, **changes: object) -> str:
    return json.dumps({**SMALLEST, "train_batch_size": batch, **changes}, sort_keys=True)


def run(
    trial: int,
    *,
    runners: int = 1,
    batch: int = 3_200,
    seed: int = 1,
    iteration_time_s: float = 1.0,
    timing: str | None = "measured",
    status: str = "finished",
    **columns: Any,
) -> dict[str, Any]:
    """Return one row of `runs`."""
    sampling = 0.7 * iteration_time_s
    times = {
        "iteration_time_s": iteration_time_s,
        "sampling_time_s": sampling,
        "slowest_runner_time_s": 0.95 * sampling,
        "mean_runner_time_s": 0.9 * sampling,
        "learning_time_s": 0.2 * iteration_time_s,
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
        "train_batch_size": batch,
        "num_epochs": 4,
        "num_envs_per_env_runner": 4,
        "minibatch_size": 128,
        "lr": 3e-4,
        "num_learners": 0,
        "num_cpus": runners + 1,
        "num_nodes": 1,
        "execution": "emulated" if timing == "emulated" else "real",
        "timing": timing,
        "timing_reason": "3 processes on 2 cores" if timing == "oversubscribed" else "",
        "learner_threads": 1,
        "fingerprint": fingerprint(batch),
        **(times if status == "finished" else {}),
        **columns,
    }


def amdahl(scales: Iterable[int] = (1, 2, 4, 8, 16), *, blocks: int = 3) -> list[dict[str, Any]]:
    """Return runs with T(n) = 0.2 s + 3 s / n, times the factor of their block."""
    cells = [(seed, n) for seed in range(1, blocks + 1) for n in scales]
    return [
        run(trial, runners=n, seed=seed, iteration_time_s=NOISE[seed - 1] * (0.2 + 3.0 / n))
        for trial, (seed, n) in enumerate(cells)
    ]


def as_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as `analysis.load` would: declared columns and types, NA where a row says nothing."""
    known = {"fingerprint": "{}"}  # no row is without one
    frame = pd.DataFrame({name: [row.get(name, known.get(name)) for row in rows] for name in RUN_COLUMNS})
    return frame.astype({name: column.dtype for name, column in RUN_COLUMNS.items()})


def study(rows: list[dict[str, Any]] | pd.DataFrame, **changes: Any) -> StudyData:
    """Return a study with these trials."""

    def no_evaluations() -> pd.DataFrame:
        return pd.DataFrame({name: pd.Series(dtype=column.dtype) for name, column in EVALUATION_COLUMNS.items()})

    values: dict[str, Any] = {
        "name": "invented",
        "source": "studies/invented",
        "kind": "search",
        "sheet": {"environment": {"id": "Waiting-v0"}, "versions": {"ray": "2.60.0"}, "commit": "abc"},
        "iterations": pd.DataFrame,
        "evaluations": no_evaluations,
    }
    return StudyData(runs=as_frame(rows) if isinstance(rows, list) else rows, **(values | changes))


def evaluations_of(frame: pd.DataFrame, *, every: int) -> pd.DataFrame:
    """Return evaluations at each multiple of `every`, at the target from the time to it on."""
    numbers = frame[["trial", "env_steps", "env_steps_to_target"]].fillna(10**9).to_numpy(float)
    rows = [
        {"trial": trial, "env_steps": step, "wall_time_s": step / 1000, "eval_return": 500.0 if step >= hit else 0.0}
        for trial, end, hit in numbers
        for step in np.arange(every, end + 1, every)
    ]
    return pd.DataFrame(rows).astype({name: EVALUATION_COLUMNS[name].dtype for name in rows[0]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is planted. Defaults: a strong-scaling study of four scales in three blocks."""

    cells: tuple[tuple[int, int], ...] = ((2, 2048), (4, 2048), (8, 2048), (16, 2048))
    """(environment runners, train batch size)."""
    blocks: int = 3
    step_s: float = 1e-3
    straggler: float = 1.2
    """Slowest runner's time over the mean runner's, from two runners on."""
    transfer_s: float = 0.01
    serial_s: float = 0.05
    serial_per_step_s: float = 2e-5
    sync_s: float = 0.005
    rest_s: float = 0.005
    noise: float = 0.03
    """Standard deviation of the log of a run's times; then of the straggler factor's, and of a block's."""
    phase_noise: float = 0.01
    block_noise: float = 0.05
    budget_steps: int = 32 * 2048
    steps_min: float = 10_000
    batch_crit: float = 2048
    steps_noise: float = 0.2
    failed: int = 0
    """Trials of the first cell that failed, besides the others."""

    def phases(self, n: int, batch: int, ratio: float) -> dict[str, float]:
        """Return seconds of a mean iteration by metric; `ratio`: the slowest runner's time over the mean one's."""
        mean = self.step_s * batch / n
        parts = {
            "sampling_time_s": mean * ratio + self.transfer_s,
            "learning_time_s": self.learning_s(batch),
            "sync_time_s": self.sync_s,
            "rest_time_s": self.rest_s,
        }
        whole = {"iteration_time_s": sum(parts.values()), "mean_runner_time_s": mean}
        return parts | whole | {"slowest_runner_time_s": mean * ratio}

    def learning_s(self, batch: int) -> float:
        return self.serial_s + self.serial_per_step_s * batch

    def iteration_s(self, n: int, batch: int) -> float:
        return self.phases(n, batch, self.straggler if n > 1 else 1.0)["iteration_time_s"]

    def rate(self, n: int, batch: int) -> float:
        return batch / self.iteration_s(n, batch)


def planted_runs(truth: Truth, rng: np.random.Generator) -> pd.DataFrame:
    """Return the frame `runs` of a study of that truth: each block in an order of its own, failed runs at the end."""
    effects, rows = rng.normal(0, truth.block_noise, truth.blocks), list[dict[str, Any]]()
    for block, effect in enumerate(effects, 1):
        for n, batch in (truth.cells[at] for at in rng.permutation(len(truth.cells))):
            factor = float(np.exp(effect + rng.normal(0, truth.noise)))
            ratio = max(truth.straggler * float(np.exp(rng.normal(0, truth.phase_noise))), 1.0) if n > 1 else 1.0
            phases = {name: seconds * factor for name, seconds in truth.phases(n, batch, ratio).items()}
            iterations = max(truth.budget_steps // batch, WARMUP_ITERATIONS + 1)
            steps = truth.steps_min * (1 + batch / truth.batch_crit) * np.exp(rng.normal(0, truth.steps_noise))
            needed, timed = int(np.ceil(steps / batch)), iterations - WARMUP_ITERATIONS
            times = {
                "iterations": iterations,
                "timed_iterations": timed,
                "timed_env_steps": timed * batch,
                "timed_s": timed * phases["iteration_time_s"],
                "env_steps_per_s": batch / phases["iteration_time_s"],
                "env_steps": iterations * batch,
                "env_steps_to_target": needed * batch if needed < iterations else None,
                "episode_len": 100.0,
                **phases,
            }
            rows.append(run(len(rows), runners=n, batch=batch, seed=block, **times))
    n, batch = truth.cells[0]
    failed: dict[str, Any] = {"status": "failed", "timing": "tainted"}
    rows += [run(len(rows) + at, runners=n, batch=batch, **failed) for at in range(truth.failed)]
    return as_frame(rows)
