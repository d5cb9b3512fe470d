"""Sums over the training iterations of every attempt, in the order of the records. Imports NumPy and pandas.

The sums are added up in the order in which the ledger adds them, so that they are equal to the last bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.load.arrays import check_numbers
from study.metrics import OF_ITERATIONS, WARMUP_ITERATIONS
from study.statistics import FloatArray

_WANTED = (*OF_ITERATIONS, "episode_len_sum")
_HEAD = "slot", "iteration", "env_steps", "wall_time_s"
_PLACE = {name: place for place, name in enumerate(_WANTED)}
_CHUNK = 1 << 16
"""Iterations that are held as Python numbers before they become arrays."""


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
    folded: Mapping[str, FloatArray]
    """By the names of `OF_ITERATIONS`, added up as it says; iterations without the metric do not count."""
    episode_len: FloatArray


_TOTALS = (
    "iterations",
    "env_steps",
    "wall_time_s",
    "timed_iterations",
    "timed_env_steps",
    "timed_s",
    "pressure_s",
    "timed_episodes",
)
_EMPTY = {"largest": np.nan, "smallest": np.nan}
"""What the largest and the smallest value of no iteration are; of the others it is 0."""


class TimedSums:
    """Adds up iterations as they are read."""

    def __init__(self, where: str) -> None:
        """Begin; `where` is the file, for messages."""
        self._where = where
        self._lines: list[int] = []
        self._heads: list[tuple[int, int, int, float]] = []
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
        self._lines.append(number)
        self._heads.append((slot, iteration, env_steps, wall_time_s))
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
        timed, seconds, episodes = totals["timed_iterations"], totals["timed_s"], totals["timed_episodes"]
        told = (present["cpu_pressure"] == timed) & (present["iteration_time_s"] == timed)
        measured = (episodes > 0) & (sums["episode_len_sum"] > 0)
        pressure = _ratio(totals["pressure_s"], seconds, told & (seconds > 0))
        return Sums(
            iterations=totals["iterations"].astype(np.int64),
            env_steps=totals["env_steps"].astype(np.int64),
            wall_time_s=totals["wall_time_s"],
            timed_iterations=timed.astype(np.int64),
            timed_env_steps=totals["timed_env_steps"].astype(np.int64),
            timed_s=seconds,
            folded={
                name: pressure
                if how == "weighted mean"
                else _ratio(sums[name], present[name] if how == "mean" else np.ones(num_attempts), present[name] > 0)
                for name, how in OF_ITERATIONS.items()
            },
            episode_len=_ratio(sums["episode_len_sum"], episodes, measured),
        )

    def _flush(self) -> None:
        if not self._values:
            return
        check_numbers(self._values, [f"metric {name}" for name in _WANTED], self._lines, where=self._where)
        check_numbers(self._heads, _HEAD, self._lines, where=self._where, optional=False)
        heads, values = np.array(self._heads, dtype=np.float64), np.array(self._values, dtype=np.float64)
        self._lines, self._heads, self._values = [], [], []
        slot, iteration = heads[:, 0].astype(np.int64), heads[:, 1]
        self._grow(int(slot.max()) + 1)
        totals = self._totals
        np.add.at(totals["iterations"], slot, 1)
        totals["env_steps"][slot] = heads[:, 2]  # of equal places the last one stays
        totals["wall_time_s"][slot] = heads[:, 3]
        timed = iteration > WARMUP_ITERATIONS
        for name, place in _PLACE.items():
            how = OF_ITERATIONS.get(name, "mean")
            rows = np.ones_like(timed) if how in ("total", "largest", "smallest") else timed
            rows = rows & ~np.isnan(values[:, place])
            adding = {"largest": np.fmax, "smallest": np.fmin}.get(how, np.add)
            adding.at(self._sums[place], slot[rows], values[rows, place])
            np.add.at(self._present[place], slot[rows], 1)
        slot, filled = slot[timed], np.nan_to_num(values[timed])
        seconds = filled[:, _PLACE["iteration_time_s"]]
        np.add.at(totals["timed_iterations"], slot, 1)
        np.add.at(totals["timed_env_steps"], slot, np.trunc(filled[:, _PLACE["train_batch_size_actual"]]))
        np.add.at(totals["timed_s"], slot, seconds)
        np.add.at(totals["pressure_s"], slot, filled[:, _PLACE["cpu_pressure"]] * seconds)
        np.add.at(totals["timed_episodes"], slot, filled[:, _PLACE["num_episodes"]])

    def _grow(self, size: int) -> None:
        """Make room for `size` attempts, and for half as many again, so that copies stay few."""
        have = self._sums.shape[1]
        if size <= have:
            return
        room = (0, max(size, have + have // 2) - have)
        self._totals = {name: np.pad(values, room) for name, values in self._totals.items()}
        added = np.zeros((len(_WANTED), room[1]))
        for name, how in OF_ITERATIONS.items():
            added[_PLACE[name]] = _EMPTY.get(how, 0.0)
        self._sums = np.hstack([self._sums, added])
        self._present = np.pad(self._present, ((0, 0), room))


def columns_of(sums: Sums, place: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Return the columns of `RUN_COLUMNS` that iterations add up to; NaN and -1 where there is nothing.

    Args:
        sums: Of all attempts.
        place: Of each row's attempt in them, shape (rows,).
    """
    timed = sums.timed_iterations[place]
    none = timed == 0
    return {
        "iterations": np.where(sums.iterations[place] > 0, sums.iterations[place], -1),
        "timed_iterations": np.where(sums.iterations[place] > 0, timed, -1),
        "timed_env_steps": np.where(none, -1, sums.timed_env_steps[place]),
        "timed_s": np.where(none, np.nan, sums.timed_s[place]),
        **{name: values[place] for name, values in sums.folded.items()},
        "episode_len": sums.episode_len[place],
    }


def _ratio(above: FloatArray, below: FloatArray, where: NDArray[np.bool_]) -> FloatArray:
    """Return the ratio where it exists, NaN elsewhere."""
    result = np.full(above.shape, np.nan)
    np.divide(above, below, out=result, where=where)
    return result
