"""What several figures draw alike: error bars, and which workloads a picture has room for. No statistics."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.figures import style
from analysis.figures.words import counted
from study.statistics import Estimate

if TYPE_CHECKING:
    from analysis.scaling.results import Scaling, ScalingGroup, ScalingRow

NO_MEASURED_ROWS = (
    "No run has a measured clock, so times and rates cannot be compared. Fix: give every process a core of its own, or "
    "run a throughput study in an environment that waits (step_wait_ms)."
)


def shown(scaling: "Scaling") -> tuple[list["ScalingGroup"], str]:
    """Return the workloads for which one picture has room, in the order of `scaling`, and what is left out."""
    groups = [group for group in scaling.groups if group.rows]
    rest = len(groups) - style.MAX_SERIES
    words = f"{counted(rest, 'more workload')}: see the table." if rest > 0 else ""
    return groups[: style.MAX_SERIES], words


def series(group: "ScalingGroup") -> Iterator[tuple[str, list["ScalingRow"]]]:
    """Yield (label, rows by scale) such that a scale comes once: a group may hold one scale on 1 and on 2 nodes."""
    scales = [row.num_env_runners for row in group.rows]
    if len(set(scales)) == len(scales):
        yield group.label, list(group.rows)
        return
    placements: dict[tuple[int | None, int | None], list[ScalingRow]] = {}
    by_nodes = len({(row.num_env_runners, row.num_nodes) for row in group.rows}) == len(scales)
    for row in group.rows:
        placements.setdefault((row.num_nodes, None if by_nodes else row.num_cpus), []).append(row)
    for (nodes, cpus), rows in placements.items():
        where = "nodes unknown" if nodes is None else counted(nodes, "node")
        yield f"{group.label}, {where}" + ("" if cpus is None else f", {cpus} CPUs"), rows


def ends(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of an interval; NaN where an end is not known."""
    low, high = estimate.low, estimate.high
    return low if np.isfinite(low) else np.nan, high if np.isfinite(high) else np.nan


def whiskers(frame: pd.DataFrame, value: str) -> npt.NDArray[np.float64]:
    """Return the lengths of error bars below and above, shape (2, rows); 0 where there is no interval."""
    middle = frame[value].to_numpy(float)
    below, above = middle - frame["low"].to_numpy(float), frame["high"].to_numpy(float) - middle
    lengths: npt.NDArray[np.float64] = np.nan_to_num(np.stack([below, above]), nan=0.0).clip(0.0)
    return lengths
