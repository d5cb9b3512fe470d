"""What the models are fitted on: cells of a throughput study and the times measured there. Imports NumPy.

`from_runs` is the only place that knows the frame of `analysis.load`; everything else takes these arrays.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from study.statistics import BoolArray, FloatArray

if TYPE_CHECKING:
    import pandas as pd

IntArray = npt.NDArray[np.int64]

TIMES = ("iteration_time_s", "sampling_time_s", "learning_time_s", "sync_time_s", "rest_time_s")
"""Times that every run has."""
RUNNER_TIMES = ("slowest_runner_time_s", "mean_runner_time_s")
"""Times that only runners which time themselves have; NaN for the others."""
FACTORS = (
    "num_env_runners",
    "num_envs_per_env_runner",
    "train_batch_size",
    "minibatch_size",
    "num_epochs",
    "num_learners",
    "learner_threads",
)
"""What tells one cell from another; with them the wait of a step."""
_CLOCK_FREE = frozenset(
    (
        *("train_batch_size", "minibatch_times_learners", "num_epochs", "num_envs_per_env_runner", "num_learners"),
        "evaluation",
        *("lr", "lr_end_fraction", "gamma", "lambda", "clip_param", "entropy_coeff", "grad_clip"),
        *("vf_clip_param", "vf_loss_coeff"),
        *("kl_coeff", "kl_target", "vtrace_clip_rho_threshold", "vtrace_clip_pg_rho_threshold"),
    )
)
"""Keys of a fingerprint that the model takes as numbers, or that leave the clock alone."""
_WAIT = "step_wait_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Where an iteration runs, or would run: one entry per cell (or run), every array of shape (cells,).

    Attributes:
        num_env_runners: n, >= 1.
        num_envs_per_env_runner: k, >= 1.
        train_batch_size: B, env steps of one iteration over all learners, >= 1.
        minibatch_size: m, env steps per learner, >= 1.
        num_epochs: E, >= 1.
        num_learners: L, >= 1; the learner in the main process counts as one.
        learner_threads: h, >= 1.
        episode_len: l, mean length of episodes in env steps; NaN where none ended or it is not known.
        step_wait_s: Known wait of one step of one environment, in seconds, >= 0.
    """

    num_env_runners: FloatArray
    num_envs_per_env_runner: FloatArray
    train_batch_size: FloatArray
    minibatch_size: FloatArray
    num_epochs: FloatArray
    num_learners: FloatArray
    learner_threads: FloatArray
    episode_len: FloatArray
    step_wait_s: FloatArray

    def __post_init__(self) -> None:
        assert len({getattr(self, name).shape for name in self.__slots__}) == 1 and self.num_env_runners.ndim == 1
        assert all(bool((getattr(self, name) >= 1).all()) for name in FACTORS), "a cell counts from 1"
        assert (self.step_wait_s >= 0).all()

    def __len__(self) -> int:
        return int(self.num_env_runners.size)

    def take(self, rows: IntArray | BoolArray) -> "Cells":
        """Return some of the cells, by index or mask."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__slots__})

    def numbered(self, factors: Sequence[str] = (*FACTORS, "step_wait_s")) -> IntArray:
        """Return the number of each entry's group, from 0: entries that agree in all `factors` are one group."""
        table = np.column_stack([getattr(self, name) for name in factors])
        return np.asarray(np.unique(table, axis=0, return_inverse=True)[1], dtype=np.int64).reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Mean times per timed iteration of runs on one machine type and one workload, shape (runs,) each, in seconds.

    Attributes:
        cells: Where each run ran.
        block: Number of each run's block, shape (runs,): runs of a cell in one block are one replicate, not several.
            None where each run is a block of its own.
        fingerprint: Of each run (`analysis.load`), shape (runs,); None where the runs are of no study.
    """

    cells: Cells
    iteration_time_s: FloatArray
    sampling_time_s: FloatArray
    learning_time_s: FloatArray
    sync_time_s: FloatArray
    rest_time_s: FloatArray
    slowest_runner_time_s: FloatArray
    mean_runner_time_s: FloatArray
    block: IntArray | None = None
    fingerprint: npt.NDArray[np.object_] | None = None

    def __post_init__(self) -> None:
        shapes = {getattr(self, name).shape for name in (*TIMES, *RUNNER_TIMES)}
        assert shapes | {(len(self.cells),)} == {(len(self.cells),)}, "one time for each run"
        assert all(bool(np.isfinite(getattr(self, name)).all()) for name in TIMES)
        assert self.block is None or self.block.shape == (len(self.cells),)
        assert len(self.cells) and (self.iteration_time_s > 0).all()

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def env_steps_per_s(self) -> FloatArray:
        """Throughput of each run, shape (runs,)."""
        return self.cells.train_batch_size / self.iteration_time_s

    @property
    def has_runner_times(self) -> bool:
        """Whether every run's runners timed themselves."""
        return all(bool(np.isfinite(getattr(self, name)).all()) for name in RUNNER_TIMES)

    def take(self, rows: IntArray | BoolArray) -> "Observations":
        """Return some of the runs, by index or mask."""
        times = {name: getattr(self, name)[rows] for name in (*TIMES, *RUNNER_TIMES)}
        block = None if self.block is None else self.block[rows]
        fingerprint = None if self.fingerprint is None else self.fingerprint[rows]
        return replace(self, cells=self.cells.take(rows), block=block, fingerprint=fingerprint, **times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The runs that models may be fitted on, one group per workload, the largest first.

    Attributes:
        groups: Runs that differ only in what the models take as numbers.
        excluded: Rows that are in no group, by reason.
    """

    groups: tuple[Observations, ...]
    excluded: Mapping[str, int]


def from_runs(runs: "pd.DataFrame") -> Selection:
    """Return the runs of a study whose times may be used (`analysis.scaling.selection`), grouped by workload.

    A workload is the fingerprint without what the models take as numbers (runners, environments per runner, batch,
    minibatch, epochs, learners, the known wait of a step) and without what leaves the clock alone (learning rate and
    its like, evaluation).

    Args:
        runs: The frame that `analysis.load` makes, one row per trial.
    """
    from analysis.scaling.selection import select  # pandas: whoever has a frame has it

    selection = select(runs)
    excluded = Counter(selection.excluded)
    runs = runs.loc[selection.runs.index]
    numbers = {name: _numbers(runs, name) for name in (*FACTORS, *TIMES, *RUNNER_TIMES, "episode_len", "seed")}
    members: dict[str, list[int]] = {}
    waits_s = np.zeros(len(runs))
    for row, text in enumerate(runs["fingerprint"]):
        missing = [name for name in (*FACTORS[:5], *TIMES) if not np.isfinite(numbers[name][row])]
        if missing:
            excluded[f"no {missing[0]}"] += 1
        else:
            label, waits_s[row] = _workload(text)
            members.setdefault(label, []).append(row)
    for name in ("num_learners", "learner_threads"):
        numbers[name] = np.maximum(np.nan_to_num(numbers[name], nan=1.0), 1.0)
    # A setting's minibatch is what all learners take together.
    numbers["minibatch_size"] = np.maximum(np.floor(numbers["minibatch_size"] / numbers["num_learners"]), 1.0)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    texts = runs["fingerprint"].to_numpy(dtype=object)
    groups = tuple(_group(np.array(rows), numbers, waits_s, texts) for _, rows in ordered)
    return Selection(groups=groups, excluded=dict(excluded))


def _group(
    rows: IntArray,
    numbers: Mapping[str, FloatArray],
    waits_s: FloatArray,
    texts: npt.NDArray[np.object_],
) -> Observations:
    factors = {name: numbers[name][rows] for name in (*FACTORS, "episode_len")}
    times = {name: numbers[name][rows] for name in (*TIMES, *RUNNER_TIMES)}
    # Runs with one seed are a block; one without a seed is a block of its own (as `analysis.scaling.selection`).
    seeds = numbers["seed"][rows]
    block = np.where(np.isfinite(seeds), seeds, -1.0 - rows).astype(np.int64)
    cells = Cells(**factors, step_wait_s=waits_s[rows])
    return Observations(cells=cells, block=block, fingerprint=texts[rows], **times)


def _workload(fingerprint: str) -> tuple[str, float]:
    """Return the part of a fingerprint that the models do not take as numbers, and the wait of a step in seconds."""
    content: dict[str, Any] = json.loads(fingerprint)
    kept = {key: value for key, value in content.items() if key not in _CLOCK_FREE}
    environment = dict(kept.get("environment") or {})
    wait_ms = float(environment.pop(_WAIT, None) or 0.0)
    # Threads of the learner are a number of the model; the main process is the learner where it has no other.
    threads = {key: value for key, value in (kept.get("threads") or {}).items() if key.endswith("_runner")}
    kept |= {"environment": environment, "threads": threads}
    return json.dumps(kept, sort_keys=True), wait_ms / 1e3


def _numbers(runs: "pd.DataFrame", name: str) -> FloatArray:
    return np.asarray(runs[name].to_numpy(dtype=np.float64, na_value=np.nan))
