"""The iteration-time model's formula: the unknowns of each phase, what they multiply, their fit. Imports NumPy, SciPy.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from analysis.models.observations import Cells, Observations
from analysis.models.regression import nonnegative, nonnegative_of_resamples
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


_OWN_SHARE = 0.02
"""An unknown whose factor varies by less than this share apart from the others' is not told by the runs."""
_JOINT = ("alpha", "beta", "d1", "d0")
"""Unknowns of sampling that are fitted together where runners did not time themselves."""
_MOST_CV = 1.0
"""Largest spread of the runners' times that is looked for."""


def solve(seen: Observations, at: Design) -> FloatArray:
    """Return the unknowns, shape (unknowns,)."""
    found: dict[str, FloatArray | float] = {}

    def fit(names: Sequence[str], features: FloatArray, target: FloatArray, offset: FloatArray | float = 0.0) -> None:
        found.update(zip(names, nonnegative(features, target, offset=offset), strict=False))

    if seen.has_runner_times:
        fit(GROUPS["mean_runner"], at.mean_runner, seen.mean_runner_time_s, at.mean_wait_s)
        found["cv"] = _spread(np.array([[found[name] for name in GROUPS["mean_runner"]]]), seen, at, None)[0]
        fit(GROUPS["collect"], at.collect, seen.sampling_time_s - seen.slowest_runner_time_s)
    else:
        found |= {"gamma": 0.0, "cv": _profiled_spread(seen, at, None)}
        fit(_JOINT, _joint_features(at, float(found["cv"])), seen.sampling_time_s, at.slowest_wait_s)
    fit(GROUPS["learning"], at.learning, seen.learning_time_s)
    fit(GROUPS["sync"], at.per_runner, seen.sync_time_s)
    fit(GROUPS["rest"], at.per_runner, seen.rest_time_s)
    return np.array([float(found[name]) for name in UNKNOWNS])


def solve_resamples(seen: Observations, at: Design, weights: FloatArray, times: Mapping[str, FloatArray]) -> FloatArray:
    """Return the unknowns of each resample, shape (resamples, unknowns); `times` are those that all runs gave."""
    found = np.zeros((len(weights), len(UNKNOWNS)))

    def fit(
        names: Sequence[str], features: FloatArray, target: FloatArray, phase: str, offset: FloatArray | float = 0.0
    ) -> None:
        theta = nonnegative_of_resamples(features, target, weights, fitted=times[phase], offset=offset)
        found[:, [INDEX[name] for name in names]] = theta[:, : len(names)]

    if seen.has_runner_times:
        runner = GROUPS["mean_runner"]
        fit(runner, at.mean_runner, seen.mean_runner_time_s, "mean_runner", at.mean_wait_s)
        found[:, INDEX["cv"]] = _spread(found[:, [INDEX[name] for name in runner]], seen, at, weights)
        fit(GROUPS["collect"], at.collect, seen.sampling_time_s - seen.slowest_runner_time_s, "collect")
    else:
        for row, each in zip(found, weights, strict=True):
            row[INDEX["cv"]] = _profiled_spread(seen, at, each)
            features = _joint_features(at, row[INDEX["cv"]])
            row[[INDEX[name] for name in _JOINT]] = nonnegative_of_resamples(
                features, seen.sampling_time_s, each[None], fitted=times["sampling"], offset=at.slowest_wait_s
            )[0]
    fit(GROUPS["learning"], at.learning, seen.learning_time_s, "learning")
    fit(GROUPS["sync"], at.per_runner, seen.sync_time_s, "sync")
    fit(GROUPS["rest"], at.per_runner, seen.rest_time_s, "rest")
    return found


def _spread(runner: FloatArray, seen: Observations, at: Design, weights: FloatArray | None) -> FloatArray:
    """Return the cv >= 0 that brings the busiest runner nearest to the slowest runners' times, relative to them.

    Args:
        runner: alpha, beta and gamma, shape (resamples, 3).
        seen: The runs.
        at: Their design.
        weights: Shape (resamples, runs); None for 1.
    """
    own = runner[:, :2] @ at.slowest_runner[:, :2].T
    even = own + runner[:, 2:] @ at.slowest_runner[:, 2:].T + at.slowest_wait_s
    lever = own * at.straggling
    weight = (1.0 if weights is None else weights) / np.maximum(even, 1e-300) ** 2
    below = np.sum(weight * lever**2, axis=1)
    above = np.sum(weight * lever * (seen.slowest_runner_time_s - even), axis=1)
    ratio = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return np.asarray(np.maximum(ratio, 0.0), dtype=np.float64)


def _joint_features(at: Design, cv: float) -> FloatArray:
    spread = (1 + cv * at.straggling)[:, None]
    # gamma and d1 multiply the same thing here: their sum goes by the name of d1.
    return np.column_stack([at.slowest_runner[:, :2] * spread, at.slowest_runner[:, 2], at.collect[:, 0]])


def _profiled_spread(seen: Observations, at: Design, weights: FloatArray | None) -> float:
    def error(cv: float) -> float:
        features = _joint_features(at, cv)
        theta = nonnegative(features, seen.sampling_time_s, offset=at.slowest_wait_s, weights=weights, rounds=2)
        fitted = features @ theta + at.slowest_wait_s
        return float(np.sum((1.0 if weights is None else weights) * np.log(fitted / seen.sampling_time_s) ** 2))

    least = optimize.minimize_scalar(error, bounds=(0.0, _MOST_CV), method="bounded", options={"xatol": 1e-3})
    return float(least.x) if least.fun < error(0.0) else 0.0


def unidentified(seen: Observations, at: Design) -> tuple[str, ...]:
    """Return unknowns whose factor is nearly a combination of the others' over the runs."""
    sampling = at.mean_runner if seen.has_runner_times else _joint_features(at, 0.0)
    names = GROUPS["mean_runner"] if seen.has_runner_times else _JOINT
    groups = [
        (names, sampling / seen.sampling_time_s[:, None]),
        (GROUPS["learning"], at.learning / seen.learning_time_s[:, None]),
    ]
    if seen.has_runner_times:
        groups.append((GROUPS["collect"], at.collect / seen.sampling_time_s[:, None]))
    found = [] if seen.has_runner_times else ["gamma"]
    for members, matrix in groups:
        size = np.linalg.norm(matrix, axis=0)
        for index, name in enumerate(members):
            others = np.delete(matrix, index, axis=1)
            if size[index] == 0:
                found.append(name)
                continue
            rest = matrix[:, index] - others @ np.linalg.lstsq(others, matrix[:, index], rcond=None)[0]
            if np.linalg.norm(rest) < _OWN_SHARE * size[index]:
                found.append(name)
    return tuple(name for name in UNKNOWNS if name in found)
