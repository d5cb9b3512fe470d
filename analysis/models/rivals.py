"""Each model as the comparison sees it: fits some runs, predicts bare cells, or says why not. Imports NumPy.

scikit-learn is imported when the Gaussian process is fitted.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.models.iteration_time import fit_iteration_time
from analysis.models.laws import (
    AmdahlFit,
    USLFit,
    ernest_time_s,
    fit_amdahl,
    fit_ernest,
    fit_gustafson,
    fit_usl,
)
from analysis.models.observations import FACTORS, Cells, Observations
from analysis.models.regression import as_cells, as_curve_data
from study.errors import AnalysisError
from study.statistics import FloatArray

Answer = tuple[FloatArray, list[str]]
"""Predicted seconds per iteration, shape (cells,), NaN where there is none; and why, one reason per cell or ''."""
Model = Callable[[Observations, Cells, np.random.Generator], Answer]

_STEPS = "steps per runner"
_OTHERS = (*(name for name in FACTORS if name not in ("num_env_runners", "train_batch_size")), "step_wait_s")
"""What a model of n and B alone must keep fixed."""
_SHORT = dict(zip((*FACTORS, "step_wait_s", _STEPS), ("n", "k", "B", "m", "E", "L", "h", "wait", "B/n"), strict=True))
"""Symbols of the formula, for reasons."""


def _iteration_time(fitted: Observations, where: Cells, rng: np.random.Generator) -> Answer:
    return fit_iteration_time(fitted).iteration_time_s(where), [""] * len(where)


def _law(fit: Callable[..., AmdahlFit | USLFit]) -> Model:
    """Return a law of n at a fixed batch as a model."""

    def predict(seen: Observations, cells: Cells) -> FloatArray:
        law = fit(seen.cells.num_env_runners, seen.env_steps_per_s)
        return cells.train_batch_size / law.throughput(cells.num_env_runners)

    return lambda fitted, where, rng: _by_workload(fitted, where, (*_OTHERS, "train_batch_size"), predict)


def _gustafson(fitted: Observations, where: Cells, rng: np.random.Generator) -> Answer:
    def predict(seen: Observations, cells: Cells) -> FloatArray:
        fixed, of_runner = fit_gustafson(seen.cells.num_env_runners, seen.env_steps_per_s)
        rates: FloatArray = fixed + of_runner * cells.num_env_runners
        return cells.train_batch_size / rates

    return _by_workload(fitted, where, (*_OTHERS, _STEPS), predict)


def _ernest(fitted: Observations, where: Cells, rng: np.random.Generator) -> Answer:
    def predict(seen: Observations, cells: Cells) -> FloatArray:
        theta = fit_ernest(seen.cells.num_env_runners, seen.cells.train_batch_size, seen.iteration_time_s)
        return ernest_time_s(theta, cells.num_env_runners, cells.train_batch_size)

    return _by_workload(fitted, where, _OTHERS, predict)


def _gaussian_process(fitted: Observations, where: Cells, rng: np.random.Generator) -> Answer:
    def predict(seen: Observations, cells: Cells) -> FloatArray:
        n, batch = seen.cells.num_env_runners, seen.cells.train_batch_size
        process = fit_gaussian_process(n, batch, seen.iteration_time_s, rng=rng)
        return process.iteration_time_s(cells.num_env_runners, cells.train_batch_size)

    return _by_workload(fitted, where, _OTHERS, predict)


def _by_workload(
    fitted: Observations,
    where: Cells,
    factors: Sequence[str],
    predict: Callable[[Observations, Cells], FloatArray],
) -> Answer:
    """Fit apart the runs that agree in `factors`, and predict with each fit the cells that agree with them."""
    keys, asked = _table(fitted.cells, factors), _table(where, factors)
    answers, reasons = np.full(len(where), np.nan), [""] * len(where)
    for key in np.unique(asked, axis=0):
        members, rows = (keys == key).all(axis=1), np.flatnonzero((asked == key).all(axis=1))
        try:
            if not members.any():
                shared = ", ".join(_SHORT[name] for name in factors)
                raise AnalysisError(
                    rule=f"knows one workload only: no fitted run has the same {shared}",
                    fix="Measure that workload.",
                    code="prediction-for-another-workload",
                )
            answers[rows] = predict(fitted.take(members), where.take(rows))
        except AnalysisError as error:
            for row in rows:
                reasons[row] = error.problem.removesuffix(".")
    return answers, reasons


def _table(cells: Cells, factors: Sequence[str]) -> FloatArray:
    columns = {name: getattr(cells, name) for name in factors if name != _STEPS}
    if _STEPS in factors:
        columns[_STEPS] = np.round(cells.train_batch_size / cells.num_env_runners, 6)
    return np.column_stack(list(columns.values()))


MODELS: Mapping[str, Model] = {
    "iteration time": _iteration_time,
    "Amdahl": _law(fit_amdahl),
    "USL": _law(fit_usl),
    "Gustafson": _gustafson,
    "Ernest": _ernest,
    "Gaussian process": _gaussian_process,
}
"""Name in tables -> fits the runs of a split and predicts its held-out cells."""


_RESTARTS = 1
"""Starts of the likelihood's maximisation besides the first: with two length scales it has few maxima."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianProcessFit:
    """ln T as a Gaussian process of (ln n, ln B) with a squared-exponential kernel and white noise.

    Far from the runs it falls back to their mean: it interpolates. A rival in the comparison of models: no interval.

    Attributes:
        length_scales: Of ln n and, where the batch varies, of ln B.
    """

    length_scales: tuple[float, ...]
    process: Any
    centre: float
    spread: float

    def iteration_time_s(self, num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
        """Return seconds per iteration, shape (cells,)."""
        inputs = _inputs(num_env_runners, train_batch_size)[:, : len(self.length_scales)]
        mean = self.process.predict(inputs)
        return np.asarray(np.exp(self.centre + self.spread * mean), dtype=np.float64)


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
        AnalysisError: Fewer than three distinct scales.
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
    return GaussianProcessFit(
        length_scales=tuple(np.atleast_1d(process.kernel_.k1.k2.length_scale).tolist()),
        process=process,
        centre=centre,
        spread=spread,
    )


def _inputs(num_env_runners: npt.ArrayLike, train_batch_size: npt.ArrayLike) -> FloatArray:
    n, batch = as_cells(num_env_runners, train_batch_size)
    return np.column_stack([np.log(n), np.log(batch)])
