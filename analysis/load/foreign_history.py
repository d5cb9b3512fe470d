"""The metric histories of one run of other people's RLlib script -> its iterations, raw times among them. Pure NumPy.

What the history does not tell exactly stays NaN.

RLlib reports every timer as an exponential mean m_t = (1 - c) m_(t-1) + c x_t with c = 0.01, begun by its first value.
One slow first iteration still weighs a third of the value a hundred iterations later. The raw values can be had back:
x_t = (m_t - (1 - c) m_(t-1)) / c.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.load import rllib_names as names
from analysis.load.foreign_settings import keys_of
from study.statistics import FloatArray

History = Callable[[str], Sequence[tuple[int, float]]]
"""Key -> (step, value) of every logged value, in their order; the later of equal steps comes later."""

_PHASES = ("sampling_time_s", "learning_time_s", "sync_time_s")
_RAW = tuple(name for name in names.METRICS if name not in (names.ITERATION, names.EVAL_RETURN))
RLLIB_COEFFICIENT = 0.01
"""`ema_coeff` of `MetricsLogger.log_time`. Source: ray/rllib/utils/metrics/metrics_logger.py, Ray 2.60."""
_DOUBLE, _SINGLE = 2.0**-53, 2.0**-24
"""Relative rounding errors of the two floating-point formats."""
_FEWEST = 3
"""Different values of which digits are a sign."""
_MOST_DECIMALS = 9
"""Values that have no more decimals than this were rounded by whoever logged them."""


@dataclass(slots=True, kw_only=True)
class Iterations:
    """The iterations of a run.

    Attributes:
        iteration: Shape (n,), strictly increasing from 1 on.
        values: By our names, each of shape (n,), NaN where unknown.
        errors: Bounds of the errors by rounding of the inverted timers, same shape, s.
        notes: What the history lacks, in plain words.
    """

    iteration: NDArray[np.int64]
    values: dict[str, FloatArray]
    errors: dict[str, FloatArray] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def rows(self, trial: int) -> Iterator[dict[str, Any]]:
        """Yield the iterations as rows; None where unknown."""
        for place, iteration in enumerate(self.iteration.tolist()):
            row: dict[str, Any] = {"trial": trial, "iteration": iteration}
            for name, values in self.values.items():
                value = float(values[place])
                row[name] = None if np.isnan(value) else int(value) if name == "env_steps" else value
            yield row


def iterations_of(metrics: Mapping[str, float], history: History) -> Iterations:
    """Return the iterations of a run.

    Args:
        metrics: Latest values, for the keys that there are.
        history: Reads one of them.
    """
    found = keys_of(frozenset(metrics))
    notes: list[str] = []
    series: dict[str, dict[int, float]] = {}
    for name in (names.ITERATION, *_RAW):
        if key := found.first(names.METRICS[name]):
            logged = history(key)
            series[name] = dict(logged)
            if name == names.ITERATION and len(logged) > len(series[name]):
                notes.append("steps were logged more than once: the latest values are taken")
    steps = sorted({step for values in series.values() for step in values})
    numbers = _numbered(series.get(names.ITERATION), steps, notes)
    if numbers is None:
        return Iterations(iteration=np.zeros(0, dtype=np.int64), values={}, notes=notes)
    steps = [step for step in steps if step in numbers]
    iteration = np.array([numbers[step] for step in steps], dtype=np.int64)
    values = {name: _aligned(series[name], steps) for name in _RAW if name in series}
    result = Iterations(iteration=iteration, values=values, notes=notes)
    _differences(result)
    for name, timers in names.TIMERS.items():
        for timer in timers:
            if key := found.first(timer.keys):
                _invert(result, name, key, _aligned(dict(history(key)), steps), timer)
                break
    _check_phases(result)
    return result


def _numbered(logged: Mapping[int, float] | None, steps: Sequence[int], notes: list[str]) -> dict[int, int] | None:
    """Return the iteration of every step that has one; None where no step has."""
    if not steps:
        return None
    if logged is None:
        if steps[0] == 1 and steps == list(range(1, len(steps) + 1)):
            return {step: step for step in steps}  # the logger counted iterations
        notes.append("training_iteration was not logged, and its steps are no iterations: nothing per iteration")
        return None
    numbers: dict[int, int] = {}
    set_back = False
    for step in sorted(logged):
        number = logged[step]
        if np.isfinite(number) and number >= 1:
            while numbers and numbers[next(reversed(numbers))] >= int(number):
                numbers.popitem()
                set_back = True
            numbers[step] = int(number)
    if set_back:
        notes.append("the run was set back to an earlier iteration: the later values are taken")
    present = list(numbers.values())
    if present and (missing := present[-1] - len(present)):
        notes.append(f"{missing} of {present[-1]} iterations are missing from its history")
    return numbers or None


def _aligned(logged: Mapping[int, float], steps: Sequence[int]) -> FloatArray:
    values = np.array([logged.get(step, np.nan) for step in steps], dtype=np.float64)
    return np.where(np.abs(values) < names.HUGE, values, np.nan)


def _differences(result: Iterations) -> None:
    """Add what cumulative series say about one iteration, and take a missing duration from the sum of all."""
    follows = np.concatenate([[result.iteration[0] == 1], np.diff(result.iteration) == 1])
    for cumulative, name in (("env_steps", "train_batch_size_actual"), ("wall_time_s", "iteration_time_s")):
        if cumulative not in result.values:
            continue
        total = result.values[cumulative]
        each = np.where(follows, np.diff(total, prepend=0.0), np.nan)
        known = result.values.get(name, np.full(len(total), np.nan))
        result.values[name] = np.where(np.isnan(known), np.where(each >= 0, each, np.nan), known)


def _invert(result: Iterations, name: str, key: str, smoothed: FloatArray, timer: names.Timer) -> None:
    if not timer.smoothed:
        result.notes.append(f"{key} is a moving mean of RLlib's old stack: {name} is not known per iteration")
        return
    inverted = invert(smoothed, result.iteration)
    if not inverted.consistent:
        result.notes.append(f"{key} is no exponential mean of one value per iteration: {name} is not known")
        return
    result.values[name], result.errors[name] = inverted.values, inverted.errors
    if not inverted.complete:
        lost = int(np.isnan(inverted.values).sum())
        result.notes.append(
            f"{key}: {lost} of {len(inverted.values)} values cannot be inverted for lack of the one before"
        )


def _check_phases(result: Iterations) -> None:
    """Compare the phases with the iteration; add the rest, or take the phases back."""
    phases = [result.values[name] for name in _PHASES if name in result.values]
    clock = result.values.get("iteration_time_s")
    if clock is None or not phases:
        return
    slack = sum(result.errors[name] for name in _PHASES if name in result.values) + 0.01 * clock
    rest = clock - np.sum(phases, axis=0)
    if (rest[~np.isnan(rest)] < -np.asarray(slack)[~np.isnan(rest)]).any():
        result.notes.append("the phases by its timers are longer than its iterations: the timers are left out")
        for name in _PHASES:
            result.values.pop(name, None)
    elif len(phases) == len(_PHASES):
        result.values["rest_time_s"] = rest


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
    """
    assert (np.diff(iterations, prepend=0) > 0).all()
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
