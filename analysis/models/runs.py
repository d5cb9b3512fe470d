"""What models are fitted to: a frame of measured runs of one workload, with the numbers that the models take.

A row is a run; its columns are `CELL` (where it ran), `TIMES` (mean seconds of a timed iteration), `block` and
`fingerprint`. A frame with the columns `CELL` alone says where something would run.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.scaling.selection import select
from study.statistics import FloatArray

TIMES = (
    "iteration_time_s",
    "sampling_time_s",
    "learning_time_s",
    "sync_time_s",
    "rest_time_s",
    "slowest_runner_time_s",
    "mean_runner_time_s",
)
FACTORS = (
    "num_env_runners",
    "num_envs_per_env_runner",
    "train_batch_size",
    "minibatch_size",
    "num_epochs",
    "num_learners",
    "learner_threads",
)
"""What tells one cell from another, each >= 1: n, k, B (over all learners), m (per learner), E, L, h."""
KEY = (*FACTORS, "step_wait_s")
"""The same with the known wait of one step of one environment, in seconds."""
CELL = (*KEY, "episode_len")
"""The same with the mean length of episodes in env steps; NaN where none ended."""
CLOCK_FREE = frozenset(
    (
        *("train_batch_size", "minibatch_times_learners", "num_epochs", "num_envs_per_env_runner", "num_learners"),
        "evaluation",
        *("lr", "lr_end_fraction", "gamma", "lambda", "clip_param", "entropy_coeff", "grad_clip"),
        *("vf_clip_param", "vf_loss_coeff"),
        *("kl_coeff", "kl_target"),
    )
)
"""Keys of a fingerprint that the models take as numbers, or that leave the clock alone."""
MOST_RUNS = 400
"""Runs that the models are fitted to: their intervals would be narrower than what the models leave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """The runs that models may be fitted to, one frame per workload, the largest first; and the others by reason."""

    groups: tuple[pd.DataFrame, ...]
    excluded: Mapping[str, int]


def from_runs(runs: pd.DataFrame) -> Fitting:
    """Return the runs of a study whose times may be used (`analysis.scaling.selection`), grouped by workload.

    A workload is the fingerprint without what the models take as numbers (runners, environments per runner, batch,
    minibatch, epochs, learners, the known wait of a step) and without what leaves the clock alone (learning rate and
    its like, evaluation).

    Args:
        runs: One row per trial (`analysis.load`).
    """
    selection = select(runs)
    excluded = Counter(selection.excluded)
    chosen = runs.loc[selection.runs.index]
    frame = pd.DataFrame(
        {
            name: chosen[name].to_numpy(dtype=np.float64, na_value=np.nan)
            for name in (*FACTORS, "episode_len", *TIMES, "seed")
        }
    )
    found = [_workload(str(text)) for text in chosen["fingerprint"]]
    frame["workload"], frame["step_wait_s"] = [text for text, _ in found], [wait for _, wait in found]
    frame["fingerprint"] = chosen["fingerprint"].astype(str).to_numpy()
    for name in ("num_learners", "learner_threads"):
        frame[name] = np.maximum(np.nan_to_num(frame[name], nan=1.0), 1.0)
    # Runs with one seed are a block; one without a seed is a block of its own (as `analysis.scaling.selection`).
    frame["block"] = frame.pop("seed").fillna(pd.Series(-1.0 - frame.index, frame.index)).astype(np.int64)
    known = np.ones(len(frame), dtype=bool)
    for name in (*FACTORS[:5], *TIMES):
        here = known & ~np.isfinite(frame[name].to_numpy())
        if here.any():
            excluded[f"no {name}"] += int(here.sum())
        known &= ~here
    frame = frame[known]
    # A setting's minibatch is what all learners take together.
    share = np.floor(frame["minibatch_size"] / frame["num_learners"])
    frame = frame.assign(minibatch_size=np.maximum(share, 1.0))
    groups = [
        group.drop(columns="workload").reset_index(drop=True) for _, group in frame.groupby("workload", sort=True)
    ]
    return Fitting(groups=tuple(sorted(groups, key=lambda group: -len(group))), excluded=dict(excluded))


def _workload(fingerprint: str) -> tuple[str, float]:
    """Return the part of a fingerprint that the models do not take as numbers, and the wait of a step in seconds."""
    content: dict[str, Any] = json.loads(fingerprint)
    kept = {key: value for key, value in content.items() if key not in CLOCK_FREE}
    environment = dict(kept.get("environment") or {})
    wait_ms = float(environment.pop("step_wait_ms", None) or 0.0)
    # Threads of the learner are a number of the model; the main process is the learner where it has no other.
    threads = {key: value for key, value in (kept.get("threads") or {}).items() if key.endswith("_runner")}
    kept |= {"environment": environment, "threads": threads}
    return json.dumps(kept, sort_keys=True), wait_ms / 1e3


def column(frame: pd.DataFrame, name: str) -> FloatArray:
    """Return a column as an array, shape (rows,)."""
    return np.asarray(frame[name].to_numpy(dtype=np.float64))


def rates(runs: pd.DataFrame) -> FloatArray:
    """Return the env steps per second of each run, shape (runs,)."""
    return column(runs, "train_batch_size") / column(runs, "iteration_time_s")


def numbered(frame: pd.DataFrame, names: Sequence[str] = KEY) -> npt.NDArray[np.int64]:
    """Return the number of each row's group, from 0: rows that agree in all columns are one group."""
    table = frame[list(names)].to_numpy(dtype=np.float64)
    return np.asarray(np.unique(table, axis=0, return_inverse=True)[1], dtype=np.int64).reshape(-1)


def thinned(runs: pd.DataFrame, *, most: int = MOST_RUNS) -> pd.DataFrame:
    """Return at most about `most` runs, equally many of each cell, the first ones; all where there are no more.

    Of more cells than that, those come first that were run most often.
    """
    if len(runs) <= most:
        return runs
    numbers = numbered(runs)
    cells, counts = np.unique(numbers, return_counts=True)
    kept = cells[np.argsort(-counts, kind="stable")[:most]]
    each = max(most // kept.size, 1)
    rows = np.concatenate([np.flatnonzero(numbers == cell)[:each] for cell in kept])
    return runs.iloc[np.sort(rows)].reset_index(drop=True)
