"""Each model as the comparison sees it: fits some runs, predicts bare cells, or says why not. Imports NumPy."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from analysis.models.gaussian_process import fit_gaussian_process
from analysis.models.iteration_time import fit_iteration_time
from analysis.models.laws import AmdahlFit, ernest_time_s, fit_amdahl, fit_ernest, fit_gustafson
from analysis.models.observations import FACTORS, Cells, Observations
from analysis.models.usl import USLFit, fit_usl
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
