"""Which runs a resample holds, and the interval that resamples give. Imports NumPy, SciPy, `study.statistics`."""

import numpy as np
import numpy.typing as npt
from scipy import stats

from study.statistics import FEWEST_RUNS, Estimate, FloatArray

NUM_RESAMPLES = 1_000
"""Resamples of a model's bootstrap: the ends of a 90 % interval then move by about 3 % of its width."""
FEWEST_DEGREES = FEWEST_RUNS - 1
"""Degrees of freedom below which resamples give no interval: they cannot leave the range of so few runs."""
METHOD = "rescaled bootstrap over runs within cells, expanded percentiles"


def run_weights(
    cells: npt.NDArray[np.int64],
    *,
    num_resamples: int,
    rng: np.random.Generator,
    blocks: npt.NDArray[np.int64] | None = None,
) -> FloatArray:
    """Return weights of the runs in each resample: r - 1 of the r runs of a cell are drawn, each counting r / (r - 1).

    Runs of a cell in one block are drawn together, as one: what a block does to them is common.

    Drawing all r would understate the variance by (r - 1) / r, which is a half at two runs per cell. Runs that are
    alone in their cell are drawn as if they were one cell, all of them: their scatter then includes what the model
    does not explain.

    Args:
        cells: Cell of each run, shape (runs,).
        num_resamples: R, >= 1.
        rng: Source of the draws.
        blocks: Block of each run, shape (runs,); None where each run is a block of its own.

    Returns:
        Shape (R, runs); every row's sum is the number of runs, where a cell has equally many in each block.

    Source:
        Rao and Wu, JASA 83 (1988), the rescaling bootstrap for strata with few units.
    """
    replicates, replicate_of_run = _replicates(cells, blocks)
    weights = np.ones((num_resamples, replicates.size))
    numbers, counts = np.unique(replicates, return_counts=True)
    alone = np.flatnonzero(np.isin(replicates, numbers[counts == 1]))
    strata = [np.flatnonzero(replicates == number) for number in numbers[counts > 1]]
    for members in [*strata, alone]:
        size = members.size
        if size < 2:
            continue
        drawn = rng.multinomial(size - 1, np.full(size, 1 / size), size=num_resamples)
        weights[:, members] = drawn * (size / (size - 1))
    return weights[:, replicate_of_run]


def block_levels(
    deviations: FloatArray,
    cells: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64] | None,
    *,
    degrees: int,
    level: float,
    num_resamples: int,
    rng: np.random.Generator,
) -> FloatArray | None:
    """Return, per resample, by what factor the mean block may be off; None with one block, which says nothing of it.

    `run_weights` draws the blocks of each cell by themselves. What a block does to all cells alike, such as a slow
    hour of the machine, does not average out over the cells: it is drawn here, once for all of them, with the width of
    Student's t of the blocks.

    Args:
        deviations: (observed - fitted) / fitted of each run, shape (runs,).
        cells: Cell of each run, shape (runs,).
        blocks: Block of each run, shape (runs,); None where each run is a block of its own.
        degrees: Degrees of freedom with which `percentile_estimate` spreads the resamples.
        level: Nominal coverage, in (0, 1).
        num_resamples: R, >= 1.
        rng: Source of the draws.

    Returns:
        Shape (R,), > 0; 1 where no block holds two cells.
    """
    ones = np.ones(num_resamples)
    if blocks is None:
        return ones
    numbers = np.unique(blocks, return_inverse=True)[1]
    count = int(numbers.max()) + 1
    if not any(np.unique(cells[numbers == number]).size > 1 for number in range(count)):
        return ones
    if count == 1:
        return None
    means = np.bincount(numbers, weights=deviations) / np.bincount(numbers)
    tail = (1 + level) / 2
    wider = float(stats.t.ppf(tail, count - 1) / stats.t.ppf(tail, degrees))
    return np.asarray(np.exp(rng.normal(size=num_resamples) * wider * means.std(ddof=1) / np.sqrt(count)))


def _replicates(
    cells: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the cell of each replicate (the runs of one cell in one block), and the replicate of each run."""
    if blocks is None:
        return cells, np.arange(cells.size)
    pairs, replicate = np.unique(np.column_stack([cells, blocks]), axis=0, return_inverse=True)
    return pairs[:, 0], replicate.reshape(-1)


def degrees_of_freedom(cells: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64] | None = None) -> int:
    """Return the degrees of freedom of the scatter: replicates beyond the first of each cell, or of all lone ones."""
    counts = np.unique(_replicates(cells, blocks)[0], return_counts=True)[1]
    alone = int((counts == 1).sum())
    return int((counts[counts > 1] - 1).sum()) + max(alone - 1, 0)


def percentile_estimate(value: float, draws: FloatArray, *, n: int, degrees: int, level: float) -> Estimate:
    """Return `value` with percentiles of its resamples, spread as Student's t with so many degrees of freedom.

    Args:
        value: From all runs.
        draws: The same from each resample, shape (resamples,); infinite where a resample has no such value.
        n: Runs behind it.
        degrees: From `degrees_of_freedom`; below `FEWEST_DEGREES` there is no interval.
        level: Nominal coverage, in (0, 1).
    """
    low, high = float("-inf"), float("inf")
    if degrees >= FEWEST_DEGREES and draws.size > 1:
        tail = float(stats.norm.sf(stats.t.ppf((1 + level) / 2, degrees)))
        low, high = (float(end) for end in np.quantile(draws, [tail, 1 - tail], method="inverted_cdf"))
        low, high = min(low, value), max(high, value)
    return Estimate(value=value, low=low, high=high, n=n, level=level, method=METHOD)
