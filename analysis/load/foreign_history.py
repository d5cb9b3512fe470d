"""The metric histories of one run of other people's RLlib script -> its iterations, raw times among them. Pure NumPy.

What the history does not tell exactly stays NaN.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.load import rllib_names as names
from analysis.load.foreign_settings import keys_of
from analysis.load.smoothing import invert

FloatArray = NDArray[np.float64]
History = Callable[[str], Sequence[tuple[int, float]]]
"""Key -> (step, value) of every logged value, in their order; the later of equal steps comes later."""

_PHASES = ("sampling_time_s", "learning_time_s", "sync_time_s")
_HUGE = 1e308
"""MLflow stores infinity as the largest double."""
_RAW = tuple(name for name in names.METRICS if name not in (names.ITERATION, names.EVAL_RETURN))


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

    @property
    def complete(self) -> bool:
        """Whether iterations 1, 2, …, n are all there."""
        return bool(np.array_equal(self.iteration, np.arange(1, len(self.iteration) + 1)))

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
            while numbers and numbers[next(reversed(numbers))] >= number:
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
    return np.where(np.abs(values) < _HUGE, values, np.nan)


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
    inverted = invert(smoothed * timer.unit_s, result.iteration)
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
