"""The unknowns of the iteration-time model, phase by phase, from all runs or many resamples. Imports NumPy, SciPy."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize

from analysis.models.observations import Observations
from analysis.models.phases import GROUPS, INDEX, UNKNOWNS, Design
from analysis.models.regression import nonnegative, nonnegative_of_resamples
from study.statistics import FloatArray

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
