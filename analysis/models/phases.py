"""The iteration-time model's formula: which unknown each phase has, and what it multiplies. Imports NumPy, SciPy.

With V vector steps and S env steps of one runner, n runners of k environments, batch B, minibatch m, epochs E,
L learners of h threads, episodes of length l, and U = ceil(E B / (L m)) minibatches:

    runner     (V alpha + S beta)(1 + 1/l) + S wait + B gamma
    slowest    the same of the busiest runner, its first term times 1 + cv z(n), z(n) = normal quantile of
               (n - 0.375) / (n + 0.25)
    sampling   slowest + d0 n + d1 B
    learning   c0 + c1 B/L + c2 (n k / L + B / (L l)) + U (a + b m / h) [+ U r where L > 1]
    sync       s0 + s1 n
    rest       r0 + r1 n

The busiest runner takes ceil(B / (n k)) vector steps, since the trial's lanes share the batch as evenly as whole steps
allow. Runners that slow each other down by work in common (memory, shared cores) in proportion to n - 1 take
S (n - 1) = B - S more: gamma holds that, and needs environments per runner that differ, or several n, to be told.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.models.observations import Cells
from study.statistics import FloatArray

UNKNOWNS: Mapping[str, str] = {
    "alpha": "s per vector step",
    "beta": "s per env step of one runner",
    "gamma": "s per env step of the batch, in the runners",
    "cv": "1, spread of the runners' times",
    "d0": "s per runner, collecting",
    "d1": "s per env step, collecting",
    "c0": "s per update",
    "c1": "s per env step of a learner, connecting",
    "c2": "s per episode or piece of one, connecting",
    "a": "s per minibatch",
    "b": "s per env step and epoch of one thread",
    "r": "s per minibatch of several learners, reducing",
    "s0": "s per synchronisation",
    "s1": "s per runner, synchronising",
    "r0": "s per iteration, the rest",
    "r1": "s per runner, the rest",
}
"""Unknowns in the order of the coefficient vector, with their units."""
INDEX: Mapping[str, int] = {name: index for index, name in enumerate(UNKNOWNS)}
PHASES = ("sampling", "learning", "sync", "rest")
"""What adds up to an iteration."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "mean_runner": ("alpha", "beta", "gamma"),
    "collect": ("d0", "d1"),
    "learning": ("c0", "c1", "c2", "a", "b", "r"),
    "sync": ("s0", "s1"),
    "rest": ("r0", "r1"),
}
"""Unknowns that are fitted together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What the unknowns multiply, in cells; matrices of shape (cells, unknowns of the group).

    Attributes:
        mean_runner: Of the mean runner: alpha, beta, gamma.
        slowest_runner: Of the busiest runner: alpha, beta, gamma.
        mean_wait_s: Known wait of the mean runner, shape (cells,).
        slowest_wait_s: Of the busiest runner, shape (cells,).
        straggling: z(n), shape (cells,).
        collect: Of d0, d1.
        learning: Of c0, c1, c2, a, b, r.
        per_runner: Of s0, s1, and of r0, r1.
    """

    mean_runner: FloatArray
    slowest_runner: FloatArray
    mean_wait_s: FloatArray
    slowest_wait_s: FloatArray
    straggling: FloatArray
    collect: FloatArray
    learning: FloatArray
    per_runner: FloatArray


def straggling(num_env_runners: FloatArray) -> FloatArray:
    """Return z(n), the expected largest of n standard normal numbers; 0 at n = 1, shape as given.

    Source:
        Blom, Statistical Estimates and Transformed Beta-Variables (1958).
    """
    return np.asarray(stats.norm.ppf((num_env_runners - 0.375) / (num_env_runners + 0.25)), dtype=np.float64)


def num_minibatches(cells: Cells) -> FloatArray:
    """Return U = ceil(E B / (L m)), shape (cells,)."""
    exact = cells.num_epochs * cells.train_batch_size / (cells.num_learners * cells.minibatch_size)
    return np.asarray(np.ceil(exact - 1e-9), dtype=np.float64)


def design(cells: Cells, *, whole_steps: bool = True) -> Design:
    """Return what the unknowns multiply.

    Args:
        cells: Where. An unknown episode length counts as endless.
        whole_steps: Whether a runner takes whole vector steps and the learner whole minibatches, as they do; without,
            times are smooth in n and B, for derivatives.
    """
    n, k, batch = cells.num_env_runners, cells.num_envs_per_env_runner, cells.train_batch_size
    learners, threads, size = cells.num_learners, cells.learner_threads, cells.minibatch_size
    resets = np.where(np.isfinite(cells.episode_len), 1 / cells.episode_len, 0.0)
    even = batch / (n * k)
    steps = np.ceil(even - 1e-9) if whole_steps else even
    # The busiest runner is the first: all its lanes take the whole steps, and those of the remainder one more.
    remainder = batch - np.floor(even + 1e-9) * n * k
    busiest = np.floor(even + 1e-9) * k + np.minimum(remainder, k) if whole_steps else batch / n
    updates = num_minibatches(cells) if whole_steps else cells.num_epochs * batch / (cells.num_learners * size)
    one = np.ones_like(n)
    return Design(
        mean_runner=np.column_stack([even * (1 + resets), batch / n * (1 + resets), batch]),
        slowest_runner=np.column_stack([steps * (1 + resets), busiest * (1 + resets), batch]),
        mean_wait_s=cells.step_wait_s * batch / n,
        slowest_wait_s=cells.step_wait_s * busiest,
        straggling=straggling(n),
        collect=np.column_stack([n, batch]),
        learning=np.column_stack(
            [
                one,
                batch / learners,
                (n * k + batch * resets) / learners,
                updates,
                updates * size / threads,
                updates * (learners > 1),
            ]
        ),
        per_runner=np.column_stack([one, n]),
    )


def phase_times(coefficients: FloatArray, at: Design) -> dict[str, FloatArray]:
    """Return seconds of each phase and of its parts.

    Args:
        coefficients: In the order of `UNKNOWNS`, shape (…, unknowns).
        at: Cells.

    Returns:
        By name, shape (…, cells): `mean_runner`, `slowest_runner`, `collect`, the `PHASES` and `iteration`.
    """
    part = {name: coefficients[..., [INDEX[each] for each in names]] for name, names in GROUPS.items()}
    cv = coefficients[..., [INDEX["cv"]]]
    shared = part["mean_runner"][..., 2:] @ at.mean_runner[:, 2:].T
    own = part["mean_runner"][..., :2] @ at.slowest_runner[:, :2].T
    times = {
        "mean_runner": part["mean_runner"] @ at.mean_runner.T + at.mean_wait_s,
        "slowest_runner": own * (1 + cv * at.straggling) + shared + at.slowest_wait_s,
        "learning": part["learning"] @ at.learning.T,
        "sync": part["sync"] @ at.per_runner.T,
        "rest": part["rest"] @ at.per_runner.T,
    }
    times["collect"] = part["collect"] @ at.collect.T
    times["sampling"] = times["slowest_runner"] + times["collect"]
    times["iteration"] = np.sum([times[name] for name in PHASES], axis=0)
    return times
