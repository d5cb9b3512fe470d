"""Inverts RLlib's smoothed timers where the history allows it exactly. Pure NumPy.

RLlib reports every timer as an exponential mean m_t = (1 - c) m_(t-1) + c x_t with c = 0.01, begun by its first value.
One slow first iteration still weighs a third of the value a hundred iterations later. The raw values can be had back:
x_t = (m_t - (1 - c) m_(t-1)) / c.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from study.errors import AnalysisError

FloatArray = NDArray[np.float64]

RLLIB_COEFFICIENT = 0.01
"""`ema_coeff` of `MetricsLogger.log_time`. Source: ray/rllib/utils/metrics/metrics_logger.py, Ray 2.60."""
_DOUBLE, _SINGLE = 2.0**-53, 2.0**-24
"""Relative rounding errors of the two floating-point formats."""
_FEWEST = 3
"""Different values of which digits are a sign."""
_MOST_DECIMALS = 9
"""Values that have no more decimals than this were rounded by whoever logged them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverted:
    """Raw values behind a smoothed series.

    Attributes:
        values: Shape (iterations,), in the unit of the series; NaN where the history does not tell.
        errors: Bound of the absolute error of each value by rounding, same shape and unit; NaN where there is no value.
    """

    values: FloatArray
    errors: FloatArray

    @property
    def complete(self) -> bool:
        """Whether every iteration has its value."""
        return not bool(np.isnan(self.values).any())

    @property
    def consistent(self) -> bool:
        """Whether no value is negative beyond its error, which a time cannot be: else this was no such mean."""
        known = ~np.isnan(self.values)
        return bool((self.values[known] >= -self.errors[known]).all())


def invert(smoothed: FloatArray, iterations: NDArray[np.int64]) -> Inverted:
    """Return the raw values behind an exponential mean that its first value began.

    A value needs the mean before it. After a gap in the iterations the first value is not known, nor is that of a
    history that does not begin at iteration 1; nothing is invented for them.

    Args:
        smoothed: The reported means, shape (n,), >= 0; NaN where one is missing.
        iterations: Training iteration of each, shape (n,), from 1, strictly increasing.

    Returns:
        Values and errors for the same iterations.

    Raises:
        AnalysisError: The iterations are not strictly increasing from 1 on.
    """
    if len(iterations) and (iterations[0] < 1 or (np.diff(iterations) <= 0).any()):
        raise AnalysisError(
            where="history",
            rule="iterations must be strictly increasing from 1 on",
            got=f"{iterations[:5].tolist()}…",
            fix="Sort them, and keep one value of each.",
            code="iterations-not-increasing",
        )
    keep = 1.0 - RLLIB_COEFFICIENT  # as RLlib computes it
    before = np.concatenate([[np.nan], smoothed[:-1]]) if len(smoothed) else smoothed
    follows = np.concatenate([[False], np.diff(iterations) == 1]) if len(iterations) else np.zeros(0, dtype=bool)
    values = np.where(follows, (smoothed - keep * before) / RLLIB_COEFFICIENT, np.nan)
    first = iterations == 1
    values = np.where(first, smoothed, values)
    relative, absolute = resolution(smoothed)
    # Reported and previous mean carry the rounding of the format they were kept in. RLlib's own two products and one
    # sum, and ours, round in double precision on top.
    rounding = (relative + 4 * _DOUBLE) * (np.abs(smoothed) + keep * np.abs(before)) + absolute * (1 + keep)
    errors = np.where(first, relative * np.abs(smoothed) + absolute, rounding / RLLIB_COEFFICIENT)
    return Inverted(values=values, errors=np.where(np.isnan(values), np.nan, errors))


def resolution(values: FloatArray) -> tuple[float, float]:
    """Return the relative and the absolute error with which `values` were written down, judged by their digits.

    Loggers keep double precision, single precision, or a few decimals. One value can look shorter than it is by chance,
    several different ones hardly.
    """
    known = np.unique(values[~np.isnan(values) & (values != 0)])
    if len(known) < _FEWEST:
        return _DOUBLE, 0.0
    for decimals in range(_MOST_DECIMALS + 1):
        if np.array_equal(np.round(known, decimals), known):
            return _DOUBLE, 0.5 * 10.0**-decimals
    single = np.array_equal(known.astype(np.float32).astype(np.float64), known)
    return (_SINGLE if single else _DOUBLE), 0.0
