"""A value with its interval; what estimators share: checked samples, and the bootstrap.

Imports NumPy, SciPy, `study.errors`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from study.errors import AnalysisError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Side = Literal["both", "lower"]

NUM_RESAMPLES = 2_000
"""Resamples of a bootstrap: the ends of a 95 % interval then move by about 2 % of its width between two seeds."""
BOOTSTRAP = "expanded percentile bootstrap"
_SEED = 20_251_121
FEWEST_RUNS = 5
"""Runs of the smallest sample below which no bootstrap interval is given.

The resamples of fewer runs cannot leave their range: a nominal 95 % would cover 49 / 74 / 87 % at 2 / 3 / 4 runs.
"""
TOO_FEW = f"none: a bootstrap needs {FEWEST_RUNS} runs of each sample"
"""Method of an estimate that has no interval for that reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with the interval that goes with it.

    `low` is -inf and `high` is inf where the data allow no interval, as with one run; a one-sided lower bound has
    only `high` infinite. An interval of width 0 says that the runs did not differ, not that the value is certain.
    """

    value: float
    low: float
    high: float
    n: int
    """Runs behind the value, those of both samples together; pairs where runs are paired."""
    level: float
    """Nominal coverage of the interval, in (0, 1)."""
    method: str

    def __post_init__(self) -> None:
        if not (self.low <= self.high and np.isfinite(self.value) and self.n >= 1):
            got = f"{self.value} [{self.low}, {self.high}], n={self.n}, level={self.level}"
            raise AnalysisError(
                where="estimate",
                rule="`low <= high`, a finite value and `n >= 1` must hold",
                got=got,
                fix="Check the values and the level that it was computed from.",
            )

    @property
    def has_interval(self) -> bool:
        """Whether at least one end is known."""
        return bool(np.isfinite(self.low) or np.isfinite(self.high))

    @property
    def rounded(self) -> float | None:
        """The value in as many digits as its interval supports; None where it has not both ends.

        The last digit is the largest power of ten within half the width, so that the value rounded stays inside a
        symmetric interval.
        """
        half = (self.high - self.low) / 2
        if not math.isfinite(half):
            return None
        return self.value if half == 0 else round(self.value, -math.floor(math.log10(half))) + 0.0  # never -0

    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        if not self.has_interval:
            return f"{self.value:{spec}} (n={self.n}, no interval)"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}] (n={self.n})"

    def __str__(self) -> str:
        return format(self)


def as_sample(where: str, values: npt.ArrayLike) -> FloatArray:
    """Return `values` as a checked sample: not empty, finite, shape (runs,)."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size == 0:
        raise AnalysisError(
            where=where,
            rule="must hold at least one number in 1 dimension",
            got=f"shape {numbers.shape}",
            fix="Pass one number per run.",
        )
    finite = np.isfinite(numbers)
    if not finite.all():
        fix = "Write a failed run as score 0, or as a time that is not reached."
        raise AnalysisError(where=where, rule="every value must be finite", got=numbers[~finite][0], fix=fix)
    return numbers


def variance(sample: FloatArray) -> float:
    """Return the unbiased variance; exactly 0 where all values are equal, and for one run."""
    return float(sample.var(ddof=1)) if np.ptp(sample) > 0 else 0.0


def without_interval(value: float, *, n: int, level: float, method: str) -> Estimate:
    """Return `value` with nothing known about it, as from one run."""
    return Estimate(value=value, low=float("-inf"), high=float("inf"), n=n, level=level, method=method)


@lru_cache
def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t. SciPy takes a tenth of a millisecond for it, and the same ones come again."""
    return float(stats.t.ppf(probability, degrees))


def t_estimate(
    value: float, squared_error: float, degrees: float, *, n: int, level: float, method: str, side: Side = "both"
) -> Estimate:
    """Return value +- t * sqrt(squared_error); `degrees` below 1 says that the error is unknown."""
    if degrees < 1:
        return without_interval(value, n=n, level=level, method=method)
    half = t_quantile((1 + level) / 2 if side == "both" else level, degrees) * float(np.sqrt(squared_error))
    high = value + half if side == "both" else float("inf")
    return Estimate(value=value, low=value - half, high=high, n=n, level=level, method=method)


def resamples() -> np.random.Generator:
    """Return the source of every bootstrap's resamples: the same runs, sorted, have the same interval everywhere."""
    return np.random.default_rng(_SEED)


def bootstrap(
    value: float,
    samples: tuple[npt.NDArray[Any], ...],
    statistic: Callable[..., FloatArray],
    *,
    level: float,
    num_resamples: int,
) -> Estimate:
    """Return `value` with percentiles of resamples within each sample, spread as Student's t would be.

    The percentile bootstrap ignores that a resample varies less than the sample's source (by (n - 1) / n) and that
    the spread is itself estimated. Its tails are therefore taken at the normal probability of
    sqrt(n / (n - 1)) * t(level, n - 1), n being the runs of the smallest sample. Callers sort the samples, so that the
    order of runs does not matter. With fewer than `FEWEST_RUNS` runs in a sample there is no interval.

    Source:
        Hesterberg, The American Statistician 69 (2015), section 4.3 (expanded percentile).
    """
    sizes = [sample.size for sample in samples]
    n, least = sum(sizes), min(sizes)
    if least < FEWEST_RUNS:
        return without_interval(value, n=n, level=level, method=TOO_FEW)
    quantile = np.sqrt(least / (least - 1)) * stats.t.ppf((1 + level) / 2, least - 1)
    interval = stats.bootstrap(
        samples,
        statistic,
        vectorized=True,
        n_resamples=num_resamples,
        confidence_level=float(1 - 2 * stats.norm.sf(quantile)),
        method="percentile",
        rng=resamples(),
    ).confidence_interval
    # Of equal runs the two ends may differ by a rounding error, in either order.
    low, high = sorted((float(interval.low), float(interval.high)))
    return Estimate(value=value, low=low, high=high, n=n, level=level, method=BOOTSTRAP)
