"""Ratios of times paired by block, and rates as totals over totals, with intervals. Imports NumPy.

A block is all runs with one seed. Every ratio is estimated on logarithms: a disturbance of a shared machine multiplies
a time, and a ratio and its inverse then say the same.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.fingerprint import labels
from study.statistics import LEVEL, Estimate, t_estimate, t_quantile, variance, without_interval


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

    A run is counted under the first reason that holds: its status, its timing label, no timed iteration.
    """
    status, timing = texts(runs, "status", "status unknown"), texts(runs, "timing", "timing unknown")
    counts, steps, seconds, scales = (
        runs[name].to_numpy(dtype=np.float64, na_value=np.nan)
        for name in ("timed_iterations", "timed_env_steps", "timed_s", "num_env_runners")
    )
    reason = np.full(len(runs), "", dtype=object)
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


Block = Hashable
Logs = Mapping[Block, float]
"""Mean logarithm of a cell's runs by block."""

PAIRED = "paired t on logs"
WELCH = "Welch t on logs"
BY_DEFINITION = "by definition"


def block_means(values: npt.ArrayLike, blocks: Sequence[Block]) -> dict[Block, float]:
    """Return the mean of the runs of each block: repeated runs of a cell in a block count once."""
    collected: dict[Block, list[float]] = {}
    for value, block in zip(np.asarray(values, dtype=np.float64).tolist(), blocks, strict=True):
        collected.setdefault(block, []).append(value)
    # Sorted within a block, so that the order of the rows does not even change the last digit.
    return {block: float(np.mean(np.sort(each))) for block, each in sorted(collected.items(), key=lambda i: str(i[0]))}


def contrast(cells: Sequence[Logs], weights: Sequence[float]) -> Estimate:
    """Return sum(weight x mean log of the cell), on the log scale, with a Student t interval.

    Weights (1, -1) make the log of a ratio. Where all cells share two blocks or more, the contrast is taken within
    each block and the blocks are the replicates: what a block does to all cells alike cancels, and the interval holds
    the truth as often as it says from 2 blocks on (`study/statistics/README.md`). Otherwise the cells are independent
    samples of block means, with Satterthwaite's degrees of freedom. With one block, or a cell with one, there is no
    interval.

    Source:
        Satterthwaite, Biometrics Bulletin 2 (1946), for the unpaired case.
    """
    common = [block for block in cells[0] if all(block in cell for cell in cells)]
    every = {block for cell in cells for block in cell}
    lone = min(len(cell) for cell in cells) == 1
    if len(common) >= 2 or (common and (lone or len(common) == len(every))):
        differences = np.array(
            [sum(weight * cell[block] for cell, weight in zip(cells, weights, strict=True)) for block in common]
        )
        n, spread = len(common), variance(differences) / len(common)
        return t_estimate(float(differences.mean()), spread, n - 1, n=n, level=LEVEL, method=PAIRED)
    samples = [np.array(list(cell.values())) for cell in cells]
    value = float(sum(weight * sample.mean() for sample, weight in zip(samples, weights, strict=True)))
    degrees = np.array([sample.size - 1 for sample in samples])
    if degrees.min() < 1:
        return without_interval(value, n=len(every), level=LEVEL, method=WELCH)
    parts = np.array(
        [weight**2 * variance(sample) / sample.size for sample, weight in zip(samples, weights, strict=True)]
    )
    squared, spread = float(parts.sum()), float(np.sum(parts**2 / degrees))
    pooled = max(squared**2 / spread, 1.0) if spread > 0 else float(degrees.min())
    return t_estimate(value, squared, pooled, n=len(every), level=LEVEL, method=WELCH)


def ratio_of_totals(numerators: npt.ArrayLike, denominators: npt.ArrayLike, blocks: Sequence[Block]) -> Estimate:
    """Return sum(numerators) / sum(denominators), total over total, with an interval over the blocks.

    The ratio estimator of survey sampling: with block totals y and x and r = sum(y) / sum(x), the error of r is
    sqrt(m / (m - 1) * sum((y - r x)^2)) / sum(x) over m blocks; the interval is Student's t on ln r, so that it
    stays positive and a rate and its inverse agree.

    Numerators, such as env steps, are >= 0, denominators > 0, each of shape (runs,). With one block, or a rate of 0,
    there is no interval.

    Source:
        Cochran, Sampling Techniques (1977), section 6.4.
    """
    above, below = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    totals: dict[Block, tuple[float, float]] = {}
    for y, x, block in sorted(zip(above.tolist(), below.tolist(), blocks, strict=True), key=lambda item: item[:2]):
        before = totals.get(block, (0.0, 0.0))
        totals[block] = (before[0] + y, before[1] + x)
    y_sums, x_sums = np.array(sorted(totals.values())).T
    value, m, method = float(y_sums.sum() / x_sums.sum()), y_sums.size, "ratio of totals, t on the log"
    if m < 2 or value <= 0:
        return without_interval(value, n=m, level=LEVEL, method=method)
    residuals = y_sums - value * x_sums
    error = float(np.sqrt(m / (m - 1) * np.sum(residuals**2)) / x_sums.sum()) / value
    factor = _exp(t_quantile((1 + LEVEL) / 2, m - 1) * error)
    return Estimate(value=value, low=value / factor, high=value * factor, n=m, level=LEVEL, method=method)


def exponential(estimate: Estimate) -> Estimate:
    """Return the factor that a logarithm stands for; without a lower end, one above 0, unless nothing is known."""
    value, low, high = (_exp(each) for each in (estimate.value, estimate.low, estimate.high))
    if not estimate.has_interval:
        return replace(estimate, value=value)
    return replace(estimate, value=value, low=low, high=high)


def quotient_of(first: Estimate, second: Estimate) -> Estimate:
    """Return first / second of two independent positive estimates, with the interval of recovered variances.

    On logarithms: low = a - b - sqrt((a - low_a)^2 + (high_b - b)^2), and likewise above; an end that one does not
    have stays open.

    Source:
        Zou and Donner, Statistics in Medicine 27 (2008), MOVER.
    """
    (a, low_a, high_a), (b, low_b, high_b) = _logs(first), _logs(second)
    value = a - b
    low, high = value - math.hypot(a - low_a, high_b - b), value + math.hypot(high_a - a, b - low_b)
    n = min(first.n, second.n)
    return exponential(Estimate(value=value, low=low, high=high, n=n, level=first.level, method="MOVER"))


def _logs(estimate: Estimate) -> tuple[float, float, float]:
    """Return the logarithms of value and ends; an end at 0 or at infinity is open."""
    known = estimate.has_interval
    low = math.log(estimate.low) if known and estimate.low > 0 else -math.inf
    high = math.log(estimate.high) if known and math.isfinite(estimate.high) else math.inf
    return math.log(estimate.value), low, high


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Return the estimate times a known positive number; an open end stays open."""
    return replace(estimate, value=estimate.value * factor, low=estimate.low * factor, high=estimate.high * factor)


def falling(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    """Return a decreasing function of a quantity > 0: its ends change places; one that is not above 0 is open."""
    low, high = (
        function(end) if math.isfinite(end) and end > 0 else open_
        for end, open_ in ((estimate.high, -math.inf), (estimate.low, math.inf))
    )
    return replace(estimate, value=function(estimate.value), low=low, high=high)


def exact(value: float) -> Estimate:
    """Return a value that holds by definition, such as the reference's efficiency of 1."""
    return Estimate(value=value, low=value, high=value, n=1, level=LEVEL, method=BY_DEFINITION)


def in_frame(estimate: Estimate) -> tuple[float, float | None, float | None, int | None]:
    """Return value, ends and n as a frame holds them, None where there is nothing.

    There are both ends or none. What holds by definition has neither ends nor n: an interval of width 0 would say that
    runs did not differ.
    """
    if estimate.method == BY_DEFINITION:
        return estimate.value, None, None, None
    low, high = (estimate.low, estimate.high) if estimate.has_interval else (None, None)
    return estimate.value, low, high, estimate.n
