"""Which runs a table of times may rest on, and why the others may not. Imports NumPy, pandas, names of stages."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.fingerprint import labels

_SIDE_BY_SIDE = re.compile(r"allocation (?!1 )\d+ x \d+|shared")
"""Name of several trials that shared the machine, in throughput and hold-up studies before version 0.15."""
BESIDE = "ran beside other trials of its cell"


@dataclass(kw_only=True, eq=False)
class Selection:
    """The runs that enter, and the number of the others by reason.

    Attributes:
        runs: With further columns: `block`, and the logarithms of seconds per iteration (`log_time`) and of env steps
            per second (`log_rate`).
        excluded: Reason -> runs.
        failed: The failed runs among these.
    """

    runs: pd.DataFrame
    excluded: dict[str, int]
    failed: pd.DataFrame

    @cached_property
    def names(self) -> dict[str, str]:
        """What the workloads are called, by fingerprint: equal workloads have equal names in every quantity."""
        known = sorted({str(each) for each in self.runs["fingerprint"].unique()})
        return dict(zip(known, labels(known), strict=True)) if known else {}


def select(runs: pd.DataFrame) -> Selection:
    """Return the runs whose times may be used: finished, timed, and with the label `measured`.

    A run is counted under the first reason that holds: its status, its timing label, no timed iteration, other trials
    at its side.
    """
    status, timing = texts(runs, "status", "status unknown"), texts(runs, "timing", "timing unknown")
    counts, steps, seconds, scales = (
        runs[name].to_numpy(dtype=np.float64, na_value=np.nan)
        for name in ("timed_iterations", "timed_env_steps", "timed_s", "num_env_runners")
    )
    places = zip(texts(runs, "stage"), texts(runs, "baseline"), strict=True)
    beside = [stage in ("measure", "throughput") and bool(_SIDE_BY_SIDE.fullmatch(name)) for stage, name in places]
    reason = np.full(len(runs), "", dtype=object)
    reason[np.array(beside, dtype=bool)] = BESIDE
    reason[~(scales >= 1)] = "number of runners unknown"
    reason[~((counts > 0) & (steps > 0) & (seconds > 0))] = "no timed iterations"
    reason = np.where(timing == "measured", reason, timing)
    reason = np.where(status == "finished", reason, status)
    inside = reason == ""
    kept = runs.loc[inside].copy()
    kept["block"] = blocks(runs)[inside]
    kept["log_time"] = np.log(seconds[inside] / counts[inside])
    kept["log_rate"] = np.log(steps[inside] / seconds[inside])
    excluded = pd.Series(reason[~inside], dtype=object).value_counts()
    return Selection(
        runs=kept,
        excluded={str(name): int(number) for name, number in sorted(excluded.items())},
        failed=runs.loc[status == "failed"],
    )


def blocks(runs: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the block of each run: runs with the same seed are one; a run without a seed is a block of its own."""
    seeds = runs["seed"].astype(object)
    found = [f"run {at}" if pd.isna(seed) else int(seed) for at, seed in enumerate(seeds)]
    return np.array(found, dtype=object)


def at_their_scale(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the runners that each stands for as their number of runners.

    A stock runner may have the environments of 46: it is shown beside them, says so, and its clock is never `measured`.
    """
    return runs.assign(num_env_runners=runs["stands_for_runners"].fillna(runs["num_env_runners"]))


def texts(runs: pd.DataFrame, name: str, absent: str = "") -> npt.NDArray[np.object_]:
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
