"""Times to target, right-censored: restricted mean and ratio. Imports NumPy, SciPy, `study.errors`."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from study.errors import AnalysisError
from study.statistics.estimate import (
    BOOTSTRAP,
    FEWEST_RUNS,
    NUM_RESAMPLES,
    TOO_FEW,
    BoolArray,
    Estimate,
    FloatArray,
    as_sample,
    bootstrap,
    without_interval,
)

RESOLVED = f"{BOOTSTRAP}, with the time between two looks"
_Sample = tuple[FloatArray, BoolArray]
"""Times, and whether each is one to the target."""


def restricted_mean(times: npt.ArrayLike, reached: npt.ArrayLike, *, horizon: float) -> float:
    """Return the mean of min(time to target, horizon) under right-censoring: the area under Kaplan-Meier's curve.

    A run that failed did not leave the study by chance: the caller writes its time as the budget, not reached.

    Args:
        times: Time to target, or the time observed without reaching it, shape (runs,), > 0, any unit.
        reached: Whether the target was reached at that time, shape (runs,), boolean.
        horizon: Where the mean is cut, > 0, in the unit of `times`.

    Returns:
        The restricted mean, in the unit of `times`, in (0, horizon].

    Raises:
        AnalysisError: The samples are empty, not finite or not positive, `horizon` is not
            positive, or it lies behind the last run's end while some run was still without the target.

    Source:
        Kaplan and Meier, JASA 53 (1958); Royston and Parmar, BMC Med. Res. Methodol. 13:152 (2013).
    """
    return float(_restricted_means(*_checked("times", times, reached, horizon), horizon))


def ratio_of_restricted_means(
    first: npt.ArrayLike,
    first_reached: npt.ArrayLike,
    second: npt.ArrayLike,
    second_reached: npt.ArrayLike,
    *,
    horizon: float,
    level: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    first_since: npt.ArrayLike | None = None,
    second_since: npt.ArrayLike | None = None,
) -> Estimate:
    """Return the restricted mean of `first` over that of `second`: above 1 says that `second` is faster.

    With censoring the ratio understates: it is then a bound, not the speed-up. The interval is for this ratio, by the
    expanded percentile bootstrap; the resamples are always the same, so that equal runs have equal intervals.

    Where evaluations are apart, the target is reached at some time since the evaluation before, which resamples do not
    know. With `first_since` or `second_since` the lower end is that of the earliest times of `first` over the recorded
    ones of `second`, the upper end that of the recorded ones over the earliest: the interval holds wherever in between
    the truth lies (`test_a_ratio_known_to_a_grid_holds_the_truth`).

    Args:
        first: Times, shape (runs of the first,), > 0, any unit.
        first_reached: Whether each is a time to target, shape (runs of the first,), boolean.
        second: Times, shape (runs of the second,), > 0, in the same unit.
        second_reached: Whether each is a time to target, shape (runs of the second,), boolean.
        horizon: Where both means are cut, > 0, in the same unit. A resample whose last run ends before it without
            the target keeps its survival up to the horizon.
        level: Nominal coverage, in (0, 1).
        num_resamples: Resamples, >= 1.
        first_since: When each run of `first` was last seen without the target, shape as `first`, >= 0; None where the
            times are exact.
        second_since: The same of `second`.

    Returns:
        A ratio, > 0, of the recorded times. No interval when a sample has fewer than `FEWEST_RUNS` runs, of which a
        bootstrap would cover 62-87 %, or when no run of either reached the target by the horizon: the ratio is then 1
        and says nothing. No upper end where the earliest times of `second` are 0, and no interval where those of
        `first` are 0 as well.

    Raises:
        AnalysisError: As `restricted_mean` for each sample.
    """
    one, one_events = _checked("first", first, first_reached, horizon)
    two, two_events = _checked("second", second, second_reached, horizon)
    value = float(_restricted_means(one, one_events, horizon) / _restricted_means(two, two_events, horizon))
    few = min(one.size, two.size) < FEWEST_RUNS
    nothing = without_interval(value, n=one.size + two.size, level=level, method=TOO_FEW if few else BOOTSTRAP)
    if not ((one_events & (one <= horizon)).any() or (two_events & (two <= horizon)).any()):
        return nothing

    def resampled(above: _Sample, below: _Sample) -> Estimate:
        def statistic(ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64], axis: int) -> FloatArray:
            means = _restricted_means(above[0][ours], above[1][ours], horizon)
            return means / _restricted_means(below[0][theirs], below[1][theirs], horizon)

        above, below = _in_order(above), _in_order(below)
        indices = (np.arange(above[0].size), np.arange(below[0].size))
        return bootstrap(value, indices, statistic, level=level, num_resamples=num_resamples)

    recorded = (one, one_events), (two, two_events)
    if first_since is None and second_since is None:
        return resampled(*recorded)
    early_one = _earliest("first_since", first_since, *recorded[0])
    early_two = _earliest("second_since", second_since, *recorded[1])
    # The upper end by the inverse ratio: its denominator is never 0.
    low, inverse = resampled(early_one, recorded[1]).low, resampled(early_two, recorded[0]).low
    if not np.isfinite(low) or (low <= 0 and inverse <= 0):
        return nothing
    high = 1 / inverse if inverse > 0 else float("inf")
    return replace(nothing, low=min(low, value), high=max(high, value), method=RESOLVED)


def _in_order(sample: _Sample) -> _Sample:
    order = np.lexsort(sample[::-1])
    return sample[0][order], sample[1][order]


def _restricted_means(times: FloatArray, reached: BoolArray, horizon: float) -> FloatArray:
    """Return areas under Kaplan-Meier's curves up to the horizon: shape (…, runs) -> (…).

    For thousands of resamples at once; SciPy's `ecdf`, one sample at a time, agrees (tested). Behind the last run
    the survival stays as it is.
    """
    # At equal times those that reached go first: the others were still under observation.
    order = np.lexsort((~reached, times), axis=-1)
    ends = np.minimum(np.take_along_axis(times, order, axis=-1), horizon)
    events = np.take_along_axis(reached, order, axis=-1)
    at_risk = np.arange(times.shape[-1], 0, -1)
    after = np.cumprod(1 - events / at_risk, axis=-1)
    before = np.concatenate([np.ones_like(after[..., :1]), after[..., :-1]], axis=-1)
    area = (before * np.diff(ends, prepend=0.0, axis=-1)).sum(axis=-1)
    return np.asarray(area + after[..., -1] * (horizon - ends[..., -1]), dtype=np.float64)


def _earliest(where: str, since: npt.ArrayLike | None, times: FloatArray, reached: BoolArray) -> _Sample:
    """Return the earliest times that the evaluations allow: that of the last one without the target."""
    if since is None:
        return times, reached
    seen = as_sample(where, since)
    if seen.shape != times.shape or seen.min() < 0 or (seen > times).any():
        rule = "must be one time >= 0 for each run, at most its own"
        raise AnalysisError(where=where, rule=rule, got=seen.tolist(), fix="Pass the time of the evaluation before.")
    return seen, reached | (seen < times)


def _checked(where: str, times: npt.ArrayLike, reached: npt.ArrayLike, horizon: float) -> _Sample:
    """Return a sample of which the mean up to the horizon is known."""
    ends, events = as_sample(where, times), np.asarray(reached, dtype=np.bool_)
    if ends.min() <= 0:
        rule, fix = "every time must be > 0", "Measure from the run's start."
        raise AnalysisError(where=where, rule=rule, got=ends.min(), fix=fix)
    last, rule, fix = ends.max(), "must be finite and > 0", "Pass the budget of the runs."
    if np.isfinite(horizon) and horizon > 0:
        if last >= horizon or events[ends == last].all():
            return ends, events
        rule = f"must not lie behind the end of {where} ({last}) while a run is still without the target"
        fix = f"Pass at most {last}."
    raise AnalysisError(where="horizon", rule=rule, got=horizon, fix=fix)
