"""The models against each other on cells that they were not fitted on.

Every model sees the same runs of the same split and predicts the same held-out cells: only what a cell is (n, k, B, m,
E, L, h, wait) is handed over, never what was measured there. A model that cannot predict a cell says why; it never
leaves the table.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from analysis.models.iteration_time import fit_iteration_time
from analysis.models.laws import amdahl, fit_law, usl
from analysis.models.runs import CELL, FACTORS, KEY, column, numbered, rates
from study.errors import AnalysisError
from study.statistics import FEWEST_RUNS, NUM_RESAMPLES, BoolArray, Estimate, FloatArray

Answer = tuple[FloatArray, list[str]]
"""Predicted seconds per iteration, shape (cells,), NaN where there is none; and why, one reason per cell or ''."""
Model = Callable[[pd.DataFrame, pd.DataFrame], Answer]
"""Fits some runs and predicts bare cells, or says why not."""
SMALL = 16
"""Most runners of the scales that predict the larger ones."""
MOST_FOLDS = 12
"""Folds of a split: each is a fit of every model."""
SETTING = ["num_envs_per_env_runner", "train_batch_size", "minibatch_size", "num_epochs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """How far a model is off on the held-out cells of a split.

    Attributes:
        model: Name in `MODELS`.
        split: Name of the split.
        median_error: Median absolute relative error of iteration times, with a bootstrap interval over the cells
            (none below five cells); None where the model predicts none of them.
        num_held_out: Held-out cells of the split.
        num_fitted: Runs that it was fitted on, the fewest over the folds.
        not_applicable: Cells that it does not predict, by reason.
        cells: Every held-out cell: `CELL`, `observed_s`, `predicted_s` (NaN where it does not apply), `error`.
    """

    model: str
    split: str
    median_error: Estimate | None
    num_held_out: int
    num_fitted: int
    not_applicable: Mapping[str, int]
    cells: pd.DataFrame

    @property
    def worst(self) -> "pd.Series[float] | None":
        """The cell of the largest error; None where it predicts none."""
        return None if self.median_error is None else self.cells.iloc[int(np.nanargmax(self.cells["error"]))]


def splits(runs: pd.DataFrame) -> Iterator[tuple[str, list[BoolArray]]]:
    """Yield the name of each split that the runs allow, and which runs each of its folds holds out."""
    scales = column(runs, "num_env_runners")
    yield "leave one n out", [scales == each for each in np.unique(scales)]
    large = scales > SMALL
    yield f"n <= {SMALL} predicts larger n", [large] if large.any() and not large.all() else []
    numbers = numbered(runs, SETTING)
    distinct = np.unique(numbers)
    yield "leave one (k, B, m, E) out", [numbers == each for each in distinct] if distinct.size > 1 else []


def merged(name: str, folds: list[BoolArray], *, most: int = MOST_FOLDS) -> tuple[str, list[BoolArray]]:
    """Return the split with at most so many folds: several held-out parts become one, in turn."""
    if len(folds) <= most:
        return name, folds
    return f"{name}, {most} folds", [np.logical_or.reduce(folds[place::most]) for place in range(most)]


def held_out(runs: pd.DataFrame, *, rng: np.random.Generator, level: float = 0.95) -> tuple[ModelError, ...]:
    """Return every model's error on every split that the runs allow.

    Args:
        runs: Of one workload (`models.runs`).
        rng: Source of the resamples of the intervals over cells.
        level: Nominal coverage of these.

    Raises:
        AnalysisError: They are of one scale.
    """
    if runs["num_env_runners"].nunique() < 2:
        rule = "to hold a scale out needs measured runs at two scales or more"
        raise AnalysisError(where="models", rule=rule, got="one", fix="Measure a second scale.")
    return tuple(
        _errors(name, split, folds, runs, rng, level)
        for split, folds in (merged(*each) for each in splits(runs))
        if folds
        for name in MODELS
    )


def _errors(
    name: str, split: str, folds: list[BoolArray], runs: pd.DataFrame, rng: np.random.Generator, level: float
) -> ModelError:
    cells = pd.concat([_fold(MODELS[name], runs[~held], runs[held]) for held in folds], ignore_index=True)
    errors = column(cells[cells["reason"] == ""], "error")
    return ModelError(
        model=name,
        split=split,
        median_error=_median(errors, rng, level) if errors.size else None,
        num_held_out=len(cells),
        num_fitted=min(int((~held).sum()) for held in folds),
        not_applicable=dict(Counter(each for each in cells["reason"] if each)),
        cells=cells,
    )


def _fold(model: Model, fitted: pd.DataFrame, held: pd.DataFrame) -> pd.DataFrame:
    numbers = numbered(held)
    first = np.unique(numbers, return_index=True)[1]
    # What is handed over is where, not what: an episode's length is measured there, and is taken away too.
    where = held.iloc[first][list(CELL)].assign(episode_len=np.nan).reset_index(drop=True)
    try:
        predicted, reasons = model(fitted.reset_index(drop=True), where)
    except AnalysisError as error:
        predicted, reasons = np.full(first.size, np.nan), [error.problem.removesuffix(".")] * first.size
    whole = column(held, "iteration_time_s")
    observed = np.array([whole[numbers == number].mean() for number in np.unique(numbers)])
    found = {"observed_s": observed, "predicted_s": predicted, "error": np.abs(predicted / observed - 1)}
    return where.assign(**found, reason=reasons)


def _median(errors: FloatArray, rng: np.random.Generator, level: float) -> Estimate:
    """Return the median with percentiles of resampled cells, none below five cells.

    The cells of one fold share a fit, which this ignores.
    """
    low, high = float("-inf"), float("inf")
    if errors.size >= FEWEST_RUNS:
        drawn = np.median(errors[rng.integers(errors.size, size=(NUM_RESAMPLES, errors.size))], axis=1)
        low, high = (float(end) for end in np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]))
    value = float(np.median(errors))
    return Estimate(value=value, low=low, high=high, n=errors.size, level=level, method="bootstrap over cells")


def _iteration_time(fitted: pd.DataFrame, where: pd.DataFrame) -> Answer:
    return fit_iteration_time(fitted).times(where), [""] * len(where)


def _law(law: Callable[..., FloatArray], fitted: pd.DataFrame, where: pd.DataFrame) -> Answer:
    """Return a law of n as a model: fitted apart to the runs of each workload."""
    fixed = [name for name in KEY if name != FACTORS[0]]
    keys, asked = (frame[fixed].to_numpy(dtype=np.float64) for frame in (fitted, where))
    answers, reasons = np.full(len(where), np.nan), [""] * len(where)
    for key in np.unique(asked, axis=0):
        rows, members = np.flatnonzero((asked == key).all(axis=1)), (keys == key).all(axis=1)
        why = "knows one workload only, and no fitted run is of it"
        if members.any():
            seen, there = fitted[members], where.iloc[rows]
            try:
                found, why = fit_law(law, column(seen, FACTORS[0]), rates(seen)), ""
                answers[rows] = column(there, "train_batch_size") / found.throughput(column(there, FACTORS[0]))
            except AnalysisError as error:
                why = error.problem.removesuffix(".")
        for row in rows:
            reasons[row] = why
    return answers, reasons


MODELS: Mapping[str, Model] = {
    "iteration time": _iteration_time,
    "Amdahl": partial(_law, amdahl),
    "USL": partial(_law, usl),
}
"""Name in tables -> the model."""
