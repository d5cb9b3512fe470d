"""The models against each other on cells that they were not fitted on. Imports NumPy.

Every model sees the same runs of the same split and predicts the same held-out cells: only what a cell is (n, k, B, m,
E, L, h, wait) is handed over, never what was measured there. A model that cannot predict a cell says why; it never
leaves the table.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.models.iteration_time import fit_iteration_time
from analysis.models.laws import AmdahlFit, USLFit, fit_amdahl, fit_usl
from analysis.models.observations import FACTORS, Cells, Observations
from study.errors import AnalysisError
from study.statistics import FEWEST_RUNS, NUM_RESAMPLES, BoolArray, Estimate, FloatArray

Answer = tuple[FloatArray, list[str]]
"""Predicted seconds per iteration, shape (cells,), NaN where there is none; and why, one reason per cell or ''."""
Model = Callable[[Observations, Cells], Answer]
"""Fits some runs and predicts bare cells, or says why not."""
_WORKLOAD = (*(name for name in FACTORS if name != "num_env_runners"), "step_wait_s")
"""What a law of n must keep fixed."""
SMALL = 16
"""Most runners of the scales that predict the larger ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Which runs are fitted on and which are held out, as masks of shape (runs,); one pair per fold."""

    name: str
    folds: tuple[tuple[BoolArray, BoolArray], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One held-out cell as one model predicted it.

    Attributes:
        cell: Its factors by name.
        observed_s: Mean iteration time of its runs.
        predicted_s: NaN where the model does not apply.
        reason: Why not; empty where it does.
    """

    cell: Mapping[str, float]
    observed_s: float
    predicted_s: float
    reason: str

    @property
    def error(self) -> float:
        """Absolute relative error, dimensionless; NaN where the model does not apply."""
        return abs(self.predicted_s / self.observed_s - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """How far a model is off on the held-out cells of a split.

    Attributes:
        model: Name in `MODELS`.
        split: Name of the split.
        median_error: Median absolute relative error of iteration times, with a bootstrap interval over the cells;
            (none below five cells); None where the model predicts none of them.
        max_error: The largest one; None with it.
        worst: The cell of that error.
        num_predicted: Cells that it predicts.
        num_held_out: Held-out cells of the split.
        num_fitted: Runs that it was fitted on, the fewest over the folds.
        not_applicable: Cells that it does not predict, by reason.
        cells: Every held-out cell.
    """

    model: str
    split: str
    median_error: Estimate | None
    max_error: float | None
    worst: Mapping[str, float] | None
    num_predicted: int
    num_held_out: int
    num_fitted: int
    not_applicable: Mapping[str, int]
    cells: tuple[HeldOut, ...]


def leave_one_scale_out(observations: Observations) -> Split:
    """Return a fold for each number of runners, which is held out whole."""
    scales = observations.cells.num_env_runners
    folds = tuple((scales != each, scales == each) for each in np.unique(scales))
    return Split(name="leave one n out", folds=folds)


def larger_scales(observations: Observations) -> Split:
    """Return one fold: fitted on at most `SMALL` runners, the larger scales held out."""
    fitted = observations.cells.num_env_runners <= SMALL
    folds = ((fitted, ~fitted),) if fitted.any() and not fitted.all() else ()
    return Split(name=f"n <= {SMALL} predicts larger n", folds=folds)


def leave_settings_out(observations: Observations) -> Split:
    """Return a fold for each (k, B, m, E), which is held out at every number of runners."""
    numbers = observations.cells.numbered(
        ("num_envs_per_env_runner", "train_batch_size", "minibatch_size", "num_epochs")
    )
    distinct = np.unique(numbers)
    folds = tuple((numbers != each, numbers == each) for each in distinct) if distinct.size > 1 else ()
    return Split(name="leave one (k, B, m, E) out", folds=folds)


def compare(
    observations: Observations,
    splits: Sequence[Split],
    models: Mapping[str, Model],
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
) -> tuple[ModelError, ...]:
    """Return every model's error on every split that the runs allow.

    Args:
        observations: Runs of one workload.
        splits: One without folds gives no row.
        models: By name, such as `MODELS`.
        rng: Source of the resamples.
        level: Nominal coverage of the intervals over cells.
        num_resamples: Resamples of those intervals.
    """
    return tuple(
        _errors(name, model, split, observations, rng, level, num_resamples)
        for split in splits
        if split.folds
        for name, model in models.items()
    )


def _errors(
    name: str,
    model: Model,
    split: Split,
    observations: Observations,
    rng: np.random.Generator,
    level: float,
    num_resamples: int,
) -> ModelError:
    cells: list[HeldOut] = []
    for fitted, held in split.folds:
        cells += _fold(model, observations.take(fitted), observations.take(held))
    known = [each for each in cells if not each.reason]
    errors = np.array([each.error for each in known])
    worst = known[int(errors.argmax())] if known else None
    return ModelError(
        model=name,
        split=split.name,
        median_error=_median(errors, rng, level, num_resamples) if known else None,
        max_error=worst.error if worst else None,
        worst=worst.cell if worst else None,
        num_predicted=len(known),
        num_held_out=len(cells),
        num_fitted=min(int(fitted.sum()) for fitted, _ in split.folds),
        not_applicable=dict(Counter(each.reason for each in cells if each.reason)),
        cells=tuple(cells),
    )


def _fold(model: Model, fitted: Observations, held: Observations) -> list[HeldOut]:
    numbers = held.cells.numbered()
    first = np.unique(numbers, return_index=True)[1]
    # What is handed over is where, not what: an episode's length is measured there, and is taken away too.
    where = replace(held.cells.take(first), episode_len=np.full(first.size, np.nan))
    try:
        predicted, reasons = model(fitted, where)
    except AnalysisError as error:
        predicted, reasons = np.full(first.size, np.nan), [error.problem.removesuffix(".")] * first.size
    return [
        HeldOut(
            cell={name: float(getattr(where, name)[index]) for name in (*FACTORS, "step_wait_s")},
            observed_s=float(held.iteration_time_s[numbers == number].mean()),
            predicted_s=float(predicted[index]),
            reason=reasons[index],
        )
        for index, number in enumerate(np.unique(numbers))
    ]


def _median(errors: FloatArray, rng: np.random.Generator, level: float, num_resamples: int) -> Estimate:
    """Return the median with percentiles of resampled cells, none below five cells.

    The cells of one fold share a fit, which this ignores.
    """
    low, high = float("-inf"), float("inf")
    if errors.size >= FEWEST_RUNS:
        drawn = np.median(errors[rng.integers(errors.size, size=(num_resamples, errors.size))], axis=1)
        low, high = (float(end) for end in np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]))
    return Estimate(
        value=float(np.median(errors)), low=low, high=high, n=errors.size, level=level, method="bootstrap over cells"
    )


def _iteration_time(fitted: Observations, where: Cells) -> Answer:
    return fit_iteration_time(fitted).iteration_time_s(where), [""] * len(where)


def _law(fit: Callable[..., AmdahlFit | USLFit]) -> Model:
    """Return a law of n as a model: fitted apart to the runs of each workload."""

    def predict(fitted: Observations, where: Cells) -> Answer:
        keys, asked = (np.column_stack([getattr(cells, name) for name in _WORKLOAD]) for cells in (fitted.cells, where))
        answers, reasons = np.full(len(where), np.nan), [""] * len(where)
        for key in np.unique(asked, axis=0):
            rows, members = np.flatnonzero((asked == key).all(axis=1)), (keys == key).all(axis=1)
            why = "knows one workload only, and no fitted run is of it"
            if members.any():
                seen, there = fitted.take(members), where.take(rows)
                try:
                    law, why = fit(seen.cells.num_env_runners, seen.env_steps_per_s), ""
                    answers[rows] = there.train_batch_size / law.throughput(there.num_env_runners)
                except AnalysisError as error:
                    why = error.problem.removesuffix(".")
            for row in rows:
                reasons[row] = why
        return answers, reasons

    return predict


MODELS: Mapping[str, Model] = {
    "iteration time": _iteration_time,
    "Amdahl": _law(fit_amdahl),
    "USL": _law(fit_usl),
}
"""Name in tables -> the model."""
