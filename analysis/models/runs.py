"""What models are fitted to: a frame of measured runs of one workload, with the numbers that the models take.

A row is a run; its columns are `CELL` (where it ran), `TIMES` (mean seconds of a timed iteration), `block` and
`fingerprint`. A frame with the columns `CELL` alone says where something would run.
"""

import json
from typing import Any

import numpy as np
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
SETTING = ("num_envs_per_env_runner", "train_batch_size", "minibatch_size", "num_epochs", "num_learners", "step_wait_s")
"""k, B (over all learners), m (per learner), E, L, and the known wait of one step of one environment in seconds."""
CELL = ("num_env_runners", *SETTING, "learner_threads", "episode_len")
"""n, the setting, h, and the mean length of episodes in env steps; NaN where none ended."""
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


def from_runs(runs: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the runs of a study whose times and phases may be used, one frame per workload, the largest first.

    A workload is the fingerprint without what the models take as numbers (runners, environments per runner, batch,
    minibatch, epochs, learners, the known wait of a step) and without what leaves the clock alone (learning rate and
    its like, evaluation).

    Args:
        runs: One row per trial (`analysis.load`).
    """
    chosen = select(runs).runs
    numbers = [name for name in (*CELL, *TIMES) if name != "step_wait_s"]
    frame = pd.DataFrame({name: chosen[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in numbers})
    found = [_workload(str(text)) for text in chosen["fingerprint"]]
    frame["workload"], frame["step_wait_s"] = [text for text, _ in found], [wait for _, wait in found]
    frame["fingerprint"], frame["block"] = chosen["fingerprint"].astype(str).to_numpy(), chosen["block"].to_numpy()
    for name in ("num_learners", "learner_threads"):
        frame[name] = np.maximum(np.nan_to_num(frame[name], nan=1.0), 1.0)
    # A setting's minibatch is what all learners take together.
    frame["minibatch_size"] = np.maximum(np.floor(frame["minibatch_size"] / frame["num_learners"]), 1.0)
    frame = frame.dropna(subset=[name for name in numbers if name != "episode_len"])
    groups = [group.drop(columns="workload").reset_index(drop=True) for _, group in frame.groupby("workload")]
    return sorted(groups, key=lambda group: -len(group))


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
