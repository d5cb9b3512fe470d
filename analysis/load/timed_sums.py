"""Sums over the training iterations of every attempt, in the order of the records. Pure NumPy.

The sums are added up in the order in which the ledger adds them, so that they are equal to the last bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.load.columns import MEANS
from study.errors import RecordError
from study.metrics import WARMUP_ITERATIONS

FloatArray = NDArray[np.float64]

_WANTED = (*MEANS, "train_batch_size_actual", "num_episodes", "episode_len_sum", "cpu_pressure", "peak_rss_mb")
_PLACE = {name: place for place, name in enumerate(_WANTED)}
_CHUNK = 1 << 16
"""Iterations that are held as Python numbers before they become arrays."""
_NUMBERS = frozenset((float, int, type(None)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums per attempt, each of shape (attempts,); NaN where a quantity does not exist.

    The timed iterations are those after the warm-up.
    """

    iterations: NDArray[np.int64]
    """Training iterations recorded."""
    env_steps: NDArray[np.int64]
    wall_time_s: FloatArray
    timed_iterations: NDArray[np.int64]
    timed_env_steps: NDArray[np.int64]
    timed_s: FloatArray
    means: Mapping[str, FloatArray]
    """By the names of `MEANS`: the mean over the timed iterations that have the metric."""
    episode_len: FloatArray
    cpu_pressure: FloatArray
    peak_rss_mb: FloatArray
    """Over all iterations."""


_TOTALS = (
    "iterations",
    "env_steps",
    "wall_time_s",
    "timed_iterations",
    "timed_env_steps",
    "timed_s",
    "pressure_s",
    "peak",
)


class TimedSums:
    """Adds up iterations as they are read."""

    def __init__(self, where: str) -> None:
        """Begin; `where` is the file, for messages."""
        self._where = where
        self._heads: list[tuple[int, int, int, int, float]] = []
        self._values: list[tuple[Any, ...]] = []
        self._getter = itemgetter(*_WANTED)
        # One row per quantity, one column per attempt; counts are exact up to 2**53.
        self._totals: dict[str, FloatArray] = {name: np.zeros(0) for name in _TOTALS}
        self._sums = np.zeros((len(_WANTED), 0))
        self._present = np.zeros((len(_WANTED), 0))

    def add(
        self, number: int, slot: int, iteration: int, env_steps: int, wall_time_s: float, metrics: dict[str, Any]
    ) -> None:
        """Take in one iteration of the attempt `slot`, from line `number`."""
        self._heads.append((number, slot, iteration, env_steps, wall_time_s))
        try:
            self._values.append(self._getter(metrics))
        except KeyError:
            self._values.append(tuple(map(metrics.get, _WANTED)))
        if len(self._values) == _CHUNK:
            self._flush()

    def finish(self, num_attempts: int) -> Sums:
        """Return the sums of `num_attempts` attempts.

        Raises:
            RecordError: A metric is no number; names line and column.
        """
        self._flush()
        self._grow(num_attempts)
        totals = {name: values[:num_attempts] for name, values in self._totals.items()}
        sums = dict(zip(_WANTED, self._sums[:, :num_attempts], strict=True))
        present = dict(zip(_WANTED, self._present[:, :num_attempts], strict=True))
        timed, seconds, episodes = totals["timed_iterations"], totals["timed_s"], sums["num_episodes"]
        told = (present["cpu_pressure"] == timed) & (present["iteration_time_s"] == timed)
        measured = (episodes > 0) & (present["episode_len_sum"] > 0)
        return Sums(
            iterations=totals["iterations"].astype(np.int64),
            env_steps=totals["env_steps"].astype(np.int64),
            wall_time_s=totals["wall_time_s"],
            timed_iterations=timed.astype(np.int64),
            timed_env_steps=totals["timed_env_steps"].astype(np.int64),
            timed_s=seconds,
            means={name: _ratio(sums[name], present[name], present[name] > 0) for name in MEANS},
            episode_len=_ratio(sums["episode_len_sum"], episodes, measured),
            cpu_pressure=_ratio(totals["pressure_s"], seconds, told & (seconds > 0)),
            peak_rss_mb=totals["peak"],
        )

    def _flush(self) -> None:
        if not self._values:
            return
        heads, values = self._checked()
        slot, iteration = heads[:, 1].astype(np.int64), heads[:, 2]
        self._grow(int(slot.max()) + 1)
        totals = self._totals
        np.add.at(totals["iterations"], slot, 1)
        totals["env_steps"][slot] = heads[:, 3]  # of equal places the last one stays
        totals["wall_time_s"][slot] = heads[:, 4]
        np.fmax.at(totals["peak"], slot, values[:, _PLACE["peak_rss_mb"]])
        timed = iteration > WARMUP_ITERATIONS
        slot, values = slot[timed], values[timed]
        known = ~np.isnan(values)
        filled = np.where(known, values, 0.0)
        seconds = filled[:, _PLACE["iteration_time_s"]]
        np.add.at(totals["timed_iterations"], slot, 1)
        np.add.at(totals["timed_env_steps"], slot, np.trunc(filled[:, _PLACE["train_batch_size_actual"]]))
        np.add.at(totals["timed_s"], slot, seconds)
        np.add.at(totals["pressure_s"], slot, filled[:, _PLACE["cpu_pressure"]] * seconds)
        for place in range(len(_WANTED)):
            np.add.at(self._sums[place], slot, filled[:, place])
            np.add.at(self._present[place], slot, known[:, place])

    def _checked(self) -> tuple[FloatArray, FloatArray]:
        """Return what was collected as arrays, after a look at the types; forget it.

        Raises:
            RecordError: Something is no number.
        """
        heads, values = self._heads, self._values
        self._heads, self._values = [], []
        if not set(map(type, chain.from_iterable(values))) <= _NUMBERS:
            for head, row in zip(heads, values, strict=True):
                for name, value in zip(_WANTED, row, strict=True):
                    if type(value) not in _NUMBERS:
                        self._refuse(head[0], f"metric {name}", value)
        if not set(map(type, chain.from_iterable(heads))) <= {int, float}:
            for head in heads:
                for name, value in zip(("iteration", "env_steps", "wall_time_s"), head[2:], strict=True):
                    if type(value) not in (int, float):
                        self._refuse(head[0], name, value)
        return np.array(heads, dtype=np.float64), np.array(values, dtype=np.float64)

    def _refuse(self, number: int, name: str, value: object) -> None:
        raise RecordError(
            f"{self._where}: line {number}: {name} must be a number, got {value!r}. "
            "Fix: restore the file from a backup."
        )

    def _grow(self, size: int) -> None:
        """Make room for `size` attempts, and for half as many again, so that copies stay few."""
        have = self._sums.shape[1]
        if size <= have:
            return
        room = (0, max(size, have + have // 2) - have)
        empty = {"peak": np.nan}
        self._totals = {
            name: np.pad(values, room, constant_values=empty.get(name, 0.0)) for name, values in self._totals.items()
        }
        self._sums, self._present = np.pad(self._sums, ((0, 0), room)), np.pad(self._present, ((0, 0), room))


def _ratio(above: FloatArray, below: FloatArray, where: NDArray[np.bool_]) -> FloatArray:
    """Return the ratio where it exists, NaN elsewhere."""
    result = np.full(above.shape, np.nan)
    np.divide(above, below, out=result, where=where)
    return result
