"""A Gaussian process on (ln n, ln B), the rival that knows no law. Imports NumPy; scikit-learn when it is fitted."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.models.regression import as_cells, as_curve_data
from study.statistics import FloatArray

_RESTARTS = 1
"""Starts of the likelihood's maximisation besides the first: with two length scales it has few maxima."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianProcessFit:
    """ln T as a Gaussian process of (ln n, ln B) with a squared-exponential kernel and white noise.

    Far from the runs it falls back to their mean: it interpolates. A rival in the comparison of models: no interval.

    Attributes:
        length_scales: Of ln n and, where the batch varies, of ln B.
        noise: Variance of the white noise, of standardised logarithms.
    """

    length_scales: tuple[float, ...]
    process: Any
    centre: float
    spread: float
    noise: float

    def iteration_time_s(self, num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
        """Return seconds per iteration, shape (cells,)."""
        mean = self.process.predict(self._inputs(num_env_runners, train_batch_size))
        return np.asarray(np.exp(self.centre + self.spread * mean), dtype=np.float64)

    def _inputs(self, num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
        return _inputs(num_env_runners, train_batch_size)[:, : len(self.length_scales)]


def fit_gaussian_process(
    num_env_runners: npt.ArrayLike,
    train_batch_size: npt.ArrayLike,
    iteration_time_s: npt.ArrayLike,
    *,
    rng: np.random.Generator,
) -> GaussianProcessFit:
    """Fit the process by maximal marginal likelihood.

    Args:
        num_env_runners: n of each run, shape (runs,).
        train_batch_size: B of each run in env steps, shape (runs,).
        iteration_time_s: Time of each run's iterations, shape (runs,).
        rng: Source of the restarts.

    Raises:
        AnalysisError: Fewer than three distinct scales, or a number that is not positive.
    """
    times_s = np.asarray(iteration_time_s, dtype=np.float64)
    as_curve_data(num_env_runners, 1 / times_s, least=3)
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
    from sklearn.gaussian_process import GaussianProcessRegressor  # type: ignore[import-untyped]
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel  # type: ignore[import-untyped]

    inputs = _inputs(num_env_runners, train_batch_size)
    inputs = inputs[:, : 1 + bool(np.ptp(inputs[:, 1]) > 0)]
    logs = np.log(times_s)
    centre, spread = float(logs.mean()), float(logs.std()) or 1.0
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * RBF(np.ones(inputs.shape[1]), (0.1, 100.0))
    process = GaussianProcessRegressor(
        kernel + WhiteKernel(1e-2, (1e-8, 1.0)),
        n_restarts_optimizer=_RESTARTS,
        random_state=int(rng.integers(2**31)),
    )
    # A length scale at its bound says that a factor hardly matters; that is a finding, not a fault.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(inputs, (logs - centre) / spread)
    signal, white = process.kernel_.k1, process.kernel_.k2
    return GaussianProcessFit(
        length_scales=tuple(np.atleast_1d(signal.k2.length_scale).tolist()),
        process=process,
        centre=centre,
        spread=spread,
        noise=float(white.noise_level),
    )


def _inputs(num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
    n, batch = as_cells(num_env_runners, train_batch_size)
    return np.column_stack([np.log(n), np.log(batch)])
