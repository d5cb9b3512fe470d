"""Which runs a table of times may rest on, and why the others may not. Imports NumPy, pandas, names of stages."""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

_SIDE_BY_SIDE = re.compile(r"allocation (?!1 )\d+ x \d+|shared")
"""Name of several trials that shared the machine, in throughput and hold-up studies before version 0.15."""
BESIDE = "ran beside other trials of its cell"
CLOCKS = {
    "oversubscribed": "more processes than cores",
    "emulated": "a few processes did the work of all runners: they learn as real ones do, the times are not theirs",
    "tainted": "the trial failed, lost a runner or a sample, or other programs used its nodes",
}
"""Label of a clock that is not measured -> what it means."""
ADDED = ("block", "log_time", "log_rate")
"""Columns that `select` adds: the block, ln of seconds per iteration, ln of env steps per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The runs that enter, and the number of the others by reason."""

    runs: pd.DataFrame
    """With the columns `ADDED`, in the order of the frame."""
    excluded: dict[str, int]
    n_failed: int
    failed: pd.DataFrame


def select(runs: pd.DataFrame) -> Selection:
    """Return the runs whose times may be used: finished, timed, and with the label `measured`.

    A run is counted under the first reason that holds: its status, its timing label, no timed iteration, other trials
    at its side. Runs with the same seed are a block; a run without a seed is a block of its own.

    Args:
        runs: One row per trial (`analysis.load`).
    """
    status, timing = texts(runs, "status", "status unknown"), texts(runs, "timing", "timing unknown")
    numbers = {
        name: runs[name].to_numpy(dtype=np.float64, na_value=np.nan)
        for name in ("timed_iterations", "timed_env_steps", "timed_s", "num_env_runners")
    }
    timed = (numbers["timed_iterations"] > 0) & (numbers["timed_env_steps"] > 0) & (numbers["timed_s"] > 0)
    reason = np.full(len(runs), "", dtype=object)
    for holds, text in (
        (beside_others(runs), BESIDE),
        (~(numbers["num_env_runners"] >= 1), "number of runners unknown"),
        (~timed, "no timed iterations"),
    ):
        reason[holds] = text
    unfit = timing != "measured"
    reason[unfit] = timing[unfit]
    unfinished = status != "finished"
    reason[unfinished] = status[unfinished]
    inside = reason == ""
    kept = runs.loc[inside].copy()
    seeds = runs["seed"].astype(object).to_numpy()[inside]
    kept["block"] = [
        f"run {index}" if pd.isna(seed) else int(seed)
        for index, seed in zip(np.flatnonzero(inside), seeds, strict=True)
    ]
    kept["log_time"] = np.log(numbers["timed_s"][inside] / numbers["timed_iterations"][inside])
    kept["log_rate"] = np.log(numbers["timed_env_steps"][inside] / numbers["timed_s"][inside])
    counts = pd.Series(reason[~inside], dtype=object).value_counts()
    failed = status == "failed"
    return Selection(
        runs=kept,
        excluded={str(name): int(count) for name, count in sorted(counts.items())},
        n_failed=int(failed.sum()),
        failed=runs.loc[failed],
    )


def beside_others(runs: pd.DataFrame) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return which runs shared the machine with others of their cell: their clock is not that of a trial alone.

    Records keep no group, but nothing else is asked for by these names.
    """
    names, stages = texts(runs, "baseline"), texts(runs, "stage")
    return np.array(
        [
            stage in ("measure", "throughput") and bool(_SIDE_BY_SIDE.fullmatch(name))
            for stage, name in zip(stages, names, strict=True)
        ],
        dtype=bool,
    )


def at_their_scale(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the runners that each stands for as their number of runners.

    A stock runner may have the environments of 46: it is shown beside them, says so, and its clock is never `measured`.
    """
    return runs.assign(num_env_runners=runs["stands_for_runners"].fillna(runs["num_env_runners"]))


def texts(runs: pd.DataFrame, name: str, absent: str = "") -> "np.ndarray[tuple[int], np.dtype[np.object_]]":
    """Return a text column with a text in place of NA."""
    values = runs[name].astype(object)
    return np.asarray(values.where(values.notna(), absent), dtype=object)


def as_int(runs: pd.DataFrame, name: str) -> int | None:
    """Return the value of an integer column that all runs share; None where it is unknown or not shared."""
    values = runs[name].unique()
    return None if len(values) != 1 or pd.isna(values[0]) else int(values[0])


def as_text(runs: pd.DataFrame, name: str) -> str | None:
    """Return the value of a text column that all runs share, else None."""
    values = runs[name].unique()
    return None if len(values) != 1 or pd.isna(values[0]) else str(values[0])
