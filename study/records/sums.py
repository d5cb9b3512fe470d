"""What the iterations of a trial add up to: rate, means, totals."""

import operator
from collections.abc import Callable

from msgspec import Struct

from study.metrics import METRICS, OF_ITERATIONS, WARMUP_ITERATIONS
from study.records.records import Metrics

PHASES = {
    "sampling_time_s": "sampling",
    "learning_time_s": "learning",
    "sync_time_s": "weights to runners",
    "rest_time_s": "the rest",
}
"""The parts of a synchronous iteration, and how a person calls them."""
_ADDING: dict[str, Callable[[float, float], float]] = {
    "mean": operator.add,
    "total": operator.add,
    "largest": max,
    "smallest": min,
}
_TIMED = tuple((name, _ADDING[how]) for name, how in OF_ITERATIONS.items() if how in _ADDING)
"""What is combined of an iteration after the warm-up: the name of the metric, and how."""
_WARM_UP = tuple((name, _ADDING[how]) for name, how in OF_ITERATIONS.items() if how in _ADDING and how != "mean")
"""The same for the warm-up, of which means take nothing."""
_WEIGHTED = tuple(name for name, how in OF_ITERATIONS.items() if how == "weighted mean")
"""What is weighted by the time of each iteration after the warm-up."""


class Sums(Struct, kw_only=True):
    """What the iterations of one attempt add up to so far; the timed ones are those after the warm-up."""

    iterations: int = 0
    timed_iterations: int = 0
    timed_env_steps: int = 0
    timed_s: float = 0.0
    _weighted: dict[str, float | None] = {}
    """Of `_WEIGHTED`, the sum of value times seconds after the warm-up; None once an iteration did not tell."""
    _combined: dict[str, float] = {}
    """By the names of `OF_ITERATIONS`: the sum, the largest or the smallest value so far; none where there was none."""
    _num_without: dict[str, int] = {}
    """By the same names: iterations that lacked the metric."""
    _timed_episodes: float = 0.0
    _timed_lengths: float = 0.0
    """Environment steps of the training episodes that ended after the warm-up."""

    def add(self, iteration: int, metrics: Metrics) -> None:
        """Take in one iteration."""
        timed = iteration > WARMUP_ITERATIONS
        self.iterations += 1
        for name, adding in _TIMED if timed else _WARM_UP:
            if (value := metrics.get(name)) is None:
                self._num_without[name] = self._num_without.get(name, 0) + 1
            else:
                self._combined[name] = adding(self._combined[name], value) if name in self._combined else value
        if not timed:
            return
        seconds = metrics.get("iteration_time_s")
        self.timed_iterations += 1
        self.timed_env_steps += int(metrics.get("train_batch_size_actual") or 0)
        self.timed_s += seconds or 0.0
        self._timed_episodes += metrics.get("num_episodes") or 0.0
        self._timed_lengths += metrics.get("episode_len_sum") or 0.0
        for name in _WEIGHTED:
            value, before = metrics.get(name), self._weighted.get(name, 0.0)
            unknown = value is None or seconds is None or before is None
            self._weighted[name] = None if unknown else before + value * seconds  # type: ignore[operator]

    def env_steps_per_s(self) -> float | None:
        """Return env steps over training seconds, without the warm-up iterations; None before there are any."""
        return self.timed_env_steps / self.timed_s if self.timed_s > 0 else None

    def env_steps_per_s_with(self, iteration: int, metrics: Metrics) -> float | None:
        """Return the same as it will be with one more iteration."""
        if iteration <= WARMUP_ITERATIONS:
            return self.env_steps_per_s()
        seconds = self.timed_s + (metrics.get("iteration_time_s") or 0.0)
        steps = self.timed_env_steps + int(metrics.get("train_batch_size_actual") or 0)
        return steps / seconds if seconds > 0 else None

    def worst(self, name: str, absent: float = 0) -> float:
        """Return the largest or the smallest value of a metric so far, as `OF_ITERATIONS` has it."""
        return self._combined.get(name, absent)

    def mean_cpu_pressure(self) -> float | None:
        """Return the mean of cpu_pressure over the training time after the warm-up; None when it is not known."""
        return self._weighted_mean("cpu_pressure")

    def _weighted_mean(self, name: str) -> float | None:
        total = self._weighted.get(name)
        return None if total is None or self.timed_s <= 0 else total / self.timed_s

    def phase_shares(self) -> dict[str, float]:
        """Return the share of each of `PHASES` in the training time after the warm-up; empty when it is not known."""
        if not self.timed_iterations or any(name in self._num_without for name in PHASES):
            return {}
        total = sum(self._combined[name] for name in PHASES)
        return {name: self._combined[name] / total for name in PHASES} if total > 0 else {}

    def columns(self) -> dict[str, float | int | None]:
        """Return what a table of trials says of the iterations; None where it does not exist."""
        values: dict[str, float | int | None] = {
            "iterations": self.iterations or None,
            "timed_iterations": self.timed_iterations if self.iterations else None,
            "timed_env_steps": self.timed_env_steps if self.timed_iterations else None,
            "timed_s": self.timed_s if self.timed_iterations else None,
        }
        for name, how in OF_ITERATIONS.items():
            value = self._weighted_mean(name) if how == "weighted mean" else self._combined.get(name)
            if value is not None and how == "mean":
                value /= self.timed_iterations - self._num_without.get(name, 0)
            values[name] = int(value) if value is not None and METRICS[name].whole else value
        lengths, episodes = self._timed_lengths, self._timed_episodes
        return values | {"episode_len": lengths / episodes if episodes > 0 and lengths > 0 else None}
