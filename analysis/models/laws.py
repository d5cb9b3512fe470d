"""Laws of n runners at a fixed batch: Amdahl's and Gunther's, fitted by SciPy's `curve_fit`.

Errors are relative: the logarithm of the throughput is fitted, within blocks, so that what a block does to all of its
runs cancels. Intervals are asymptotic (Student's t); how often they hold the truth: `study/statistics/README.md`.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import optimize

from analysis.scaling.blocks import LEVEL
from study.errors import AnalysisError
from study.statistics import Estimate, FloatArray, t_estimate

METHOD = "asymptotic, Student's t"
Law = Callable[..., FloatArray]
"""n and its unknowns -> throughput relative to one runner."""


def amdahl(n: FloatArray, serial: float) -> FloatArray:
    """Return 1 / (f + (1 - f) / n).

    Source: Amdahl, AFIPS Spring Joint Computer Conference 30 (1967).
    """
    return np.asarray(1 / (serial + (1 - serial) / n), dtype=np.float64)


def usl(n: FloatArray, contention: float, coherency: float) -> FloatArray:
    """Return n / (1 + a (n - 1) + b n (n - 1)).

    Source: Gunther, Guerrilla Capacity Planning (2007); the R package usl (Moeding) for the published coefficients.
    """
    return np.asarray(n / (1 + contention * (n - 1) + coherency * n * (n - 1)), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """A law fitted to runs at a fixed batch.

    Attributes:
        single: Throughput of one runner, env steps per second.
        unknowns: Of the law, shape (unknowns,).
        errors: Standard errors of these, shape (unknowns,); infinite where the runs do not tell.
        n: Blocks behind them.
        degrees: Runs beyond the unknowns and the blocks.
    """

    single: float
    unknowns: FloatArray
    errors: FloatArray
    n: int
    degrees: int

    def unknown(self, place: int, *, most: float = np.inf) -> Estimate:
        """Return one of the unknowns, which lie in [0, most]."""
        value, error = float(self.unknowns[place]), float(self.errors[place])
        known = bool(np.isfinite(error))
        spread, degrees = (error**2, self.degrees) if known else (0.0, 0)
        found = t_estimate(value, spread, degrees, n=self.n, level=LEVEL, method=METHOD)
        if not found.has_interval:
            return found
        return replace(found, low=min(max(found.low, 0.0), value), high=max(min(found.high, most), value))


def fit_law(
    law: Law, num_env_runners: npt.ArrayLike, env_steps_per_s: npt.ArrayLike, blocks: Sequence[object]
) -> LawFit:
    """Fit a law by least squares of relative errors; its unknowns stay in their bounds.

    Args:
        law: `amdahl` or `usl`.
        num_env_runners: n of each run, shape (runs,).
        env_steps_per_s: Throughput of each run, shape (runs,), > 0, at one batch.
        blocks: Block of each run. Blocks that hold one scale each cannot be told from the law: their runs then count
            as independent.

    Raises:
        AnalysisError: There are fewer distinct scales than unknowns.
    """
    scales, logs = np.asarray(num_env_runners, dtype=np.float64), np.log(np.asarray(env_steps_per_s, dtype=np.float64))
    start, most = ((0.1,), 1.0) if law is amdahl else ((0.05, 1e-4), np.inf)
    distinct = np.unique(scales).size
    if distinct < len(start) + 1:
        rule = f"needs at least {len(start) + 1} different numbers of runners"
        raise AnalysisError(where="num_env_runners", rule=rule, got=distinct, fix="Measure more scales.")
    number = {block: at for at, block in enumerate(dict.fromkeys(blocks))}
    block = np.array([number[each] for each in blocks])
    if not any(np.unique(scales[block == each]).size > 1 for each in range(len(number))):
        block = np.zeros_like(block)
    sizes = np.bincount(block)

    def means(values: FloatArray) -> FloatArray:
        """Return the mean of each block, shape (blocks,)."""
        return np.asarray(np.bincount(block, weights=values) / sizes)

    def within(n: FloatArray, *unknowns: float) -> FloatArray:
        relative = np.log(law(n, *unknowns))
        return np.asarray(relative - means(relative)[block])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optimize.OptimizeWarning)  # no covariance: the interval is open
        unknowns, covariance = optimize.curve_fit(
            within,
            scales,
            logs - means(logs)[block],
            p0=start,
            bounds=(0.0, most),
            jac="3-point",
            x_scale=(0.1,) if law is amdahl else (0.1, 1e-3),
            absolute_sigma=True,
            sigma=np.ones_like(scales),
            ftol=1e-14,
            xtol=1e-14,
            gtol=1e-14,
            max_nfev=2_000,
        )
    residuals = logs - means(logs)[block] - within(scales, *unknowns)
    degrees = scales.size - len(start) - sizes.size
    variances = np.diag(covariance) * float(residuals @ residuals) / max(degrees, 1)
    level = float(means(logs - np.log(law(scales, *unknowns))).mean())  # of the average block
    return LawFit(
        single=float(np.exp(level)),
        unknowns=np.asarray(unknowns, dtype=np.float64),
        errors=np.sqrt(np.maximum(variances, 0.0)),
        n=len(number),
        degrees=degrees,
    )
