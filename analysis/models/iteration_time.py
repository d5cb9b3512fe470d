"""The iteration-time model: seconds of each phase from runners, batch and setting, by non-negative least squares.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import optimize, stats

from analysis.models.runs import column, numbered
from study.errors import AnalysisError
from study.statistics import FEWEST_RUNS, Estimate, FloatArray

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
GROUPS: Mapping[str, list[int]] = {
    phase: [INDEX[name] for name in names.split()]
    for phase, names in {
        "mean_runner": "alpha beta gamma",
        "collect": "d0 d1",
        "learning": "c0 c1 c2 a b r",
        "sync": "s0 s1",
        "rest": "r0 r1",
    }.items()
}
"""Unknowns that are fitted together."""
NUM_RESAMPLES = 1_000
"""Resamples of the bootstrap: the ends of a 90 % interval then move by about 3 % of its width."""
FEWEST_DEGREES = FEWEST_RUNS - 1
"""Degrees of freedom below which resamples give no interval: they cannot leave the range of so few runs."""
METHOD = "rescaled bootstrap over runs within cells, expanded percentiles"
MOST_LIMIT = 512
"""Runners up to which a limit is looked for."""
MARGINAL_THRESHOLD = 0.5
"""Marginal efficiency below which a runner counts as not worth its CPU: a tenth more CPUs gives half a tenth more."""
_ROUNDS = 4
"""Reweightings. The weights settle to 1e-4 within three where errors are below 30 %."""
_FLOOR = 0.1
"""Least weight denominator, as a share of the median target: a phase that takes next to no time must not rule."""
_MOST_CONDITION = 1e10
"""Condition of normal equations up to which they keep six digits."""
_OWN_SHARE = 0.02
"""An unknown whose factor varies by less than this share apart from the others' is not told by the runs."""


class Design(NamedTuple):
    """What the unknowns multiply in cells: matrices of shape (cells, unknowns of the group), vectors (cells,)."""

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


def design(cells: pd.DataFrame, *, whole_steps: bool = True) -> Design:
    """Return what the unknowns multiply.

    Args:
        cells: The columns `runs.CELL`. An unknown episode length counts as endless.
        whole_steps: Whether a runner takes whole vector steps and the learner whole minibatches, as they do; without,
            times are smooth in n and B, for derivatives.
    """
    n, k, batch = (column(cells, name) for name in ("num_env_runners", "num_envs_per_env_runner", "train_batch_size"))
    learners, threads = column(cells, "num_learners"), column(cells, "learner_threads")
    size, wait = column(cells, "minibatch_size"), column(cells, "step_wait_s")
    length = column(cells, "episode_len")
    resets = np.where(np.isfinite(length), 1 / length, 0.0)
    even = batch / (n * k)
    steps = np.ceil(even - 1e-9) if whole_steps else even
    # The busiest runner is the first: all its lanes take the whole steps, and those of the remainder one more.
    remainder = batch - np.floor(even + 1e-9) * n * k
    busiest = np.floor(even + 1e-9) * k + np.minimum(remainder, k) if whole_steps else batch / n
    exact = column(cells, "num_epochs") * batch / (learners * size)
    updates = np.ceil(exact - 1e-9) if whole_steps else exact
    one = np.ones_like(n)
    episodes = (n * k + batch * resets) / learners
    learning = [one, batch / learners, episodes, updates, updates * size / threads, updates * (learners > 1)]
    return Design(
        mean_runner=np.column_stack([even * (1 + resets), batch / n * (1 + resets), batch]),
        slowest_runner=np.column_stack([steps * (1 + resets), busiest * (1 + resets), batch]),
        mean_wait_s=wait * batch / n,
        slowest_wait_s=wait * busiest,
        straggling=straggling(n),
        collect=np.column_stack([n, batch]),
        learning=np.column_stack(learning),
        per_runner=np.column_stack([one, n]),
    )


def phase_times(coefficients: FloatArray, at: Design) -> dict[str, FloatArray]:
    """Return seconds of each phase and of its parts.

    Args:
        coefficients: In the order of `UNKNOWNS`, shape (…, unknowns).
        at: Cells.

    Returns:
        By name, shape (…, cells): `mean_runner`, `slowest_runner`, `collect`, `sampling`, `learning`, `sync`, `rest`
        and `iteration`, the sum of the last four.
    """
    part = {name: coefficients[..., places] for name, places in GROUPS.items()}
    cv = coefficients[..., [INDEX["cv"]]]
    shared = part["mean_runner"][..., 2:] @ at.mean_runner[:, 2:].T
    own = part["mean_runner"][..., :2] @ at.slowest_runner[:, :2].T
    times = {
        "mean_runner": part["mean_runner"] @ at.mean_runner.T + at.mean_wait_s,
        "slowest_runner": own * (1 + cv * at.straggling) + shared + at.slowest_wait_s,
        "learning": part["learning"] @ at.learning.T,
        "sync": part["sync"] @ at.per_runner.T,
        "rest": part["rest"] @ at.per_runner.T,
        "collect": part["collect"] @ at.collect.T,
    }
    times["sampling"] = times["slowest_runner"] + times["collect"]
    times["iteration"] = np.sum([times[name] for name in ("sampling", "learning", "sync", "rest")], axis=0)
    return times


# --- the fit ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimeFit:
    """Fitted unknowns of the iteration-time model.

    Attributes:
        coefficients: In the order of `UNKNOWNS`, shape (unknowns,).
        draws: The same of each resample, shape (resamples, unknowns); empty without intervals.
        n: Runs behind it.
        episode_len: Mean episode length of the runs, for cells that do not name one; NaN where not known.
        unidentified: Unknowns that the runs do not tell apart from others: their sum is meaningful, they are not.
        closure: Median over the runs of |predicted - observed| / observed iteration time.
        degrees: Degrees of freedom of the intervals.
        level: Nominal coverage of the intervals.
    """

    coefficients: FloatArray
    draws: FloatArray
    n: int
    episode_len: float
    unidentified: tuple[str, ...]
    closure: float
    degrees: int
    level: float

    @property
    def parameters(self) -> dict[str, Estimate]:
        """Unknowns by name, in the units of `UNKNOWNS`."""
        return {name: self.estimate(float(self.coefficients[at]), self.draws[:, at]) for name, at in INDEX.items()}

    def estimate(self, value: float, draws: FloatArray) -> Estimate:
        """Return a function of the unknowns from its value and its value in each resample, shape (resamples,).

        Percentiles of the resamples, spread as Student's t; a resample without such a value is infinite.
        """
        low, high = float("-inf"), float("inf")
        if self.degrees >= FEWEST_DEGREES and draws.size > 1:
            tail = float(stats.norm.sf(stats.t.ppf((1 + self.level) / 2, self.degrees)))
            low, high = (float(end) for end in np.quantile(draws, [tail, 1 - tail], method="inverted_cdf"))
            low, high = min(low, value), max(high, value)
        return Estimate(value=value, low=low, high=high, n=self.n, level=self.level, method=METHOD)

    def times(
        self, cells: pd.DataFrame, coefficients: FloatArray | None = None, *, whole_steps: bool = True
    ) -> FloatArray:
        """Return seconds per iteration, shape (cells,), or (resamples, cells) of the coefficients of resamples."""
        known = cells.assign(episode_len=cells["episode_len"].fillna(self.episode_len))
        at = design(known, whole_steps=whole_steps)
        return phase_times(self.coefficients if coefficients is None else coefficients, at)["iteration"]

    def predict(self, cells: pd.DataFrame) -> tuple[Estimate, ...]:
        """Return the env steps per second of each cell; the interval is for the expected rate, not for a run's."""
        batch = column(cells, "train_batch_size")
        rates, draws = batch / self.times(cells), batch / self.times(cells, self.draws)
        return tuple(self.estimate(float(rates[at]), draws[:, at]) for at in range(len(cells)))

    def runner_limit(self, cell: pd.DataFrame) -> Estimate | None:
        """Return the n beyond which one more runner is not worth its CPU, for one cell's batch and setting.

        Worth it: d ln X / d ln P between n and n + 1 is at least `MARGINAL_THRESHOLD`, with P = n + 1 CPUs. More lanes
        than env steps of the batch can do nothing: the limit is B / k at most, whatever the model says.

        Returns:
            None where every n up to `MOST_LIMIT` is worth it; without an upper end where that is so in some resamples.
        """
        batch, k = (float(cell[name].iloc[0]) for name in ("train_batch_size", "num_envs_per_env_runner"))
        lanes = max(int(batch // k), 1)
        cap = min(MOST_LIMIT, lanes)
        scales = np.arange(1, cap + 2, dtype=np.float64)
        growth = np.diff(np.log(1 + scales))
        along = at_scales(cell, scales)
        # Behind the cap: no lane has a step left, or nobody has looked.
        limits = np.append(scales[:cap], cap if cap == lanes else np.inf)
        value, draws = (
            limits[_last_worth(batch / self.times(along, each, whole_steps=False), growth)]
            for each in (self.coefficients, self.draws)
        )
        return self.estimate(float(value), draws) if np.isfinite(value) else None


def at_scales(cell: pd.DataFrame, scales: npt.ArrayLike) -> pd.DataFrame:
    """Return one cell at other numbers of runners."""
    numbers = np.asarray(scales, dtype=np.float64)
    return cell.iloc[np.zeros(numbers.size, dtype=np.int64)].assign(num_env_runners=numbers)


def _last_worth(rates: FloatArray, growth: FloatArray) -> npt.NDArray[np.int64]:
    """Return the index of the last scale before the first step that is not worth it, that of the last one if none is.

    Shape (…, scales) -> (…,).
    """
    poor = np.diff(np.log(rates), axis=-1) / growth < MARGINAL_THRESHOLD
    return np.asarray(np.where(poor.any(axis=-1), poor.argmax(axis=-1), poor.shape[-1]), dtype=np.int64)


def fit_iteration_time(
    runs: pd.DataFrame,
    *,
    rng: np.random.Generator | None = None,
    level: float = 0.9,
    num_resamples: int = NUM_RESAMPLES,
) -> IterationTimeFit:
    """Fit every phase by non-negative least squares on relative error.

    Intervals come from resampling blocks within cells (see `run_weights`) and from what the blocks differ by in all
    cells alike (`block_levels`); of one block there are none. With n <= 16 in four settings, on planted truth with
    lognormal noise, a nominal 90 % covers 84-95 % for each unknown and 85-90 % for an iteration at 8 to 46 runners at
    3 and 5 runs per cell (3 % noise), and 84-93 % and 82-88 % at 2 runs (5 % noise), in 200 simulated studies each.
    What the model leaves out is in no interval.

    Args:
        runs: Of one workload (`models.runs`), at least two scales.
        rng: Source of the resamples; None for no intervals.
        level: Nominal coverage, in (0, 1).
        num_resamples: Resamples, >= 1.

    Raises:
        AnalysisError: Fewer than two distinct numbers of runners, or a phase that took no time in some run.
    """
    if runs["num_env_runners"].nunique() < 2:
        rule = "the iteration-time model needs at least two different numbers of runners"
        raise AnalysisError(where="num_env_runners", rule=rule, got="one", fix="Measure a second scale.")
    for name in ("sampling_time_s", "learning_time_s", "slowest_runner_time_s", "mean_runner_time_s"):
        if not (times := column(runs, name)).min() > 0:
            rule = "must be > 0 in every run, since errors are relative to it"
            got = f"{times.min():g} (not > 0 in {int((times <= 0).sum())} of {times.size} runs)"
            raise AnalysisError(where=name, rule=rule, got=got, fix="Leave out runs whose clock lacks the phase.")
    lengths = column(runs, "episode_len")
    known = lengths[np.isfinite(lengths)]
    episode_len = float(1 / np.mean(1 / known)) if known.size else float("nan")
    at = design(runs.assign(episode_len=episode_len))
    whole, blocks = column(runs, "iteration_time_s"), runs["block"].to_numpy(dtype=np.int64)
    coefficients = _solve(runs, at)
    fitted = phase_times(coefficients, at)
    numbers = numbered(runs)
    draws = np.zeros((0, len(UNKNOWNS)))
    degrees = degrees_of_freedom(numbers, blocks) if rng is not None else 0
    if rng is not None and degrees >= FEWEST_DEGREES:
        deviations = (whole - fitted["iteration"]) / (fitted["iteration"] - at.slowest_wait_s)
        levels = block_levels(
            deviations, numbers, blocks, degrees=degrees, level=level, num_resamples=num_resamples, rng=rng
        )
        if levels is None:
            degrees = 0
        else:
            weights = run_weights(numbers, blocks, num_resamples=num_resamples, rng=rng)
            draws = _solve(runs, at, weights, fitted)
            draws[:, np.arange(len(UNKNOWNS)) != INDEX["cv"]] *= levels[:, None]
    return IterationTimeFit(
        coefficients=coefficients,
        draws=draws,
        n=len(runs),
        episode_len=episode_len,
        unidentified=tuple(_unidentified(runs, at)),
        closure=float(np.median(np.abs(fitted["iteration"] - whole) / whole)),
        degrees=degrees,
        level=level,
    )


def _targets(runs: pd.DataFrame, at: Design) -> Iterator[tuple[str, FloatArray, FloatArray, FloatArray | float]]:
    """Yield group, factors, times and what is known of these, for each group of unknowns."""
    yield "mean_runner", at.mean_runner, column(runs, "mean_runner_time_s"), at.mean_wait_s
    collect = column(runs, "sampling_time_s") - column(runs, "slowest_runner_time_s")
    yield "collect", at.collect, collect, 0.0
    yield "learning", at.learning, column(runs, "learning_time_s"), 0.0
    yield "sync", at.per_runner, column(runs, "sync_time_s"), 0.0
    yield "rest", at.per_runner, column(runs, "rest_time_s"), 0.0


def _solve(
    runs: pd.DataFrame, at: Design, weights: FloatArray | None = None, fitted: Mapping[str, FloatArray] | None = None
) -> FloatArray:
    """Return the unknowns, shape (unknowns,), or (resamples, unknowns) with the weights of resamples.

    Args:
        runs: The runs.
        at: Their design.
        weights: Of the runs in each resample, shape (resamples, runs).
        fitted: With them, the times that all runs gave.
    """
    found = np.zeros((1 if weights is None else len(weights), len(UNKNOWNS)))
    for group, features, target, offset in _targets(runs, at):
        if weights is None or fitted is None:
            found[:, GROUPS[group]] = nonnegative(features, target, offset=offset)
        else:
            found[:, GROUPS[group]] = nonnegative_of_resamples(
                features, target, weights, fitted=fitted[group], offset=offset
            )
    # cv: the spread >= 0 that brings the busiest runner nearest to the slowest runners' times, relative to them.
    runner = found[:, GROUPS["mean_runner"]]
    own = runner[:, :2] @ at.slowest_runner[:, :2].T
    even = own + runner[:, 2:] @ at.slowest_runner[:, 2:].T + at.slowest_wait_s
    lever = own * at.straggling
    weight = (1.0 if weights is None else weights) / np.maximum(even, 1e-300) ** 2
    below = np.sum(weight * lever**2, axis=1)
    above = np.sum(weight * lever * (column(runs, "slowest_runner_time_s") - even), axis=1)
    found[:, INDEX["cv"]] = np.maximum(np.divide(above, below, out=np.zeros_like(above), where=below > 0), 0.0)
    return found[0] if weights is None else found


def _unidentified(runs: pd.DataFrame, at: Design) -> Iterator[str]:
    """Yield unknowns whose factor is nearly a combination of the others' over the runs."""
    sampling, names = column(runs, "sampling_time_s")[:, None], list(UNKNOWNS)
    for group, matrix in (
        ("mean_runner", at.mean_runner / sampling),
        ("collect", at.collect / sampling),
        ("learning", at.learning / column(runs, "learning_time_s")[:, None]),
    ):
        for index, place in enumerate(GROUPS[group]):
            others, own = np.delete(matrix, index, axis=1), matrix[:, index]
            rest = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
            size = np.linalg.norm(own)
            if size == 0 or np.linalg.norm(rest) < _OWN_SHARE * size:
                yield names[place]


# --- non-negative least squares of relative errors ----------------------------------------------------------------


def nonnegative(features: FloatArray, target: FloatArray, *, offset: FloatArray | float = 0.0) -> FloatArray:
    """Return theta >= 0, shape (unknowns,), that minimises sum ((offset + features @ theta - target) / fitted)^2.

    Dividing by the fitted value and not by the observed one keeps the fit at the mean: with lognormal noise of
    coefficient of variation v the latter lies 1.5 v^2 too low.

    Args:
        features: Shape (runs, unknowns), >= 0.
        target: Times, shape (runs,).
        offset: What is known of the target, shape (runs,) or one number.
    """
    known = np.broadcast_to(np.asarray(offset, dtype=np.float64), target.shape)
    size = np.linalg.norm(features, axis=0)
    size[size == 0] = 1.0
    scaled = features / size
    floor = _floor(target)
    fitted, theta = target, np.zeros(features.shape[1])
    for _ in range(_ROUNDS):
        weight = 1 / np.maximum(fitted, floor)
        theta = optimize.nnls(scaled * weight[:, None], (target - known) * weight)[0]
        fitted = known + scaled @ theta
    return np.asarray(theta / size, dtype=np.float64)


def nonnegative_of_resamples(
    features: FloatArray,
    target: FloatArray,
    weights: FloatArray,
    *,
    fitted: FloatArray,
    offset: FloatArray | float = 0.0,
) -> FloatArray:
    """Return theta >= 0 of many resamples at once: least sum w ((offset + features @ theta - target) / fitted)^2.

    Errors are relative to a given fit, that to all runs, which saves the reweighting. Most resamples need no bound and
    are solved together by their normal equations; the others one by one.

    Args:
        features: Shape (runs, unknowns), >= 0.
        target: Shape (runs,).
        weights: Shape (resamples, runs), >= 0.
        fitted: What errors are relative to, shape (runs,).
        offset: What is known of the target, shape (runs,) or one number.

    Returns:
        Shape (resamples, unknowns).
    """
    size = np.linalg.norm(features, axis=0)
    used = size > 0
    scaled = features[:, used] / size[used]
    precision = weights / np.maximum(fitted, _floor(target)) ** 2
    wanted = np.broadcast_to(target - offset, precision.shape)
    runs, unknowns = scaled.shape
    products = (scaled[:, :, None] * scaled[:, None, :]).reshape(runs, unknowns**2)
    gram = (precision @ products).reshape(-1, unknowns, unknowns)
    moments = (precision * wanted) @ scaled
    solved = np.full_like(moments, -1.0)
    told = np.linalg.cond(gram) < _MOST_CONDITION
    if told.any():
        solved[told] = np.linalg.solve(gram[told], moments[told][..., None])[..., 0]
    for index in np.flatnonzero((solved < 0).any(axis=1)):
        root = np.sqrt(precision[index])
        solved[index] = optimize.nnls(scaled * root[:, None], wanted[index] * root)[0]
    theta = np.zeros((len(solved), features.shape[1]))
    theta[:, used] = solved / size[used]
    return theta


def _floor(target: FloatArray) -> float:
    """Return the least weight denominator; the mean, and at last any number, where most or all of the times are 0."""
    size = np.abs(target)
    return _FLOOR * (float(np.median(size)) or float(size.mean()) or 1.0)


# --- resampling ---------------------------------------------------------------------------------------------------


def run_weights(
    cells: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64], *, num_resamples: int, rng: np.random.Generator
) -> FloatArray:
    """Return weights of the runs in each resample: r - 1 of the r runs of a cell are drawn, each counting r / (r - 1).

    Runs of a cell in one block are drawn together, as one: what a block does to them is common. Drawing all r would
    understate the variance by (r - 1) / r, which is a half at two runs per cell. Runs that are alone in their cell are
    drawn as if they were one cell, all of them: their scatter then includes what the model does not explain.

    Args:
        cells: Cell of each run, shape (runs,).
        blocks: Block of each run, shape (runs,).
        num_resamples: R, >= 1.
        rng: Source of the draws.

    Returns:
        Shape (R, runs); every row's sum is the number of runs, where a cell has equally many in each block.

    Source:
        Rao and Wu, JASA 83 (1988), the rescaling bootstrap for strata with few units.
    """
    replicates, replicate_of_run = _replicates(cells, blocks)
    weights = np.ones((num_resamples, replicates.size))
    numbers, counts = np.unique(replicates, return_counts=True)
    alone = np.flatnonzero(np.isin(replicates, numbers[counts == 1]))
    strata = [np.flatnonzero(replicates == number) for number in numbers[counts > 1]]
    for members in [*strata, alone]:
        size = members.size
        if size < 2:
            continue
        drawn = rng.multinomial(size - 1, np.full(size, 1 / size), size=num_resamples)
        weights[:, members] = drawn * (size / (size - 1))
    return weights[:, replicate_of_run]


def block_levels(
    deviations: FloatArray,
    cells: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    *,
    degrees: int,
    level: float,
    num_resamples: int,
    rng: np.random.Generator,
) -> FloatArray | None:
    """Return, per resample, by what factor the mean block may be off; None with one block, which says nothing of it.

    `run_weights` draws the blocks of each cell by themselves. What a block does to all cells alike, such as a slow
    hour of the machine, does not average out over the cells: it is drawn here, once for all of them, with the width of
    Student's t of the blocks.

    Args:
        deviations: (observed - fitted) / fitted of each run, shape (runs,).
        cells: Cell of each run, shape (runs,).
        blocks: Block of each run, shape (runs,).
        degrees: Degrees of freedom with which `IterationTimeFit.estimate` spreads the resamples.
        level: Nominal coverage, in (0, 1).
        num_resamples: R, >= 1.
        rng: Source of the draws.

    Returns:
        Shape (R,), > 0; 1 where no block holds two cells.
    """
    numbers = np.unique(blocks, return_inverse=True)[1]
    count = int(numbers.max()) + 1
    if not any(np.unique(cells[numbers == number]).size > 1 for number in range(count)):
        return np.ones(num_resamples)
    if count == 1:
        return None
    means = np.bincount(numbers, weights=deviations) / np.bincount(numbers)
    tail = (1 + level) / 2
    wider = float(stats.t.ppf(tail, count - 1) / stats.t.ppf(tail, degrees))
    return np.asarray(np.exp(rng.normal(size=num_resamples) * wider * means.std(ddof=1) / np.sqrt(count)))


def _replicates(
    cells: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the cell of each replicate (the runs of one cell in one block), and the replicate of each run."""
    pairs, replicate = np.unique(np.column_stack([cells, blocks]), axis=0, return_inverse=True)
    return pairs[:, 0], replicate.reshape(-1)


def degrees_of_freedom(cells: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]) -> int:
    """Return the degrees of freedom of the scatter: replicates beyond the first of each cell, or of all lone ones."""
    counts = np.unique(_replicates(cells, blocks)[0], return_counts=True)[1]
    alone = int((counts == 1).sum())
    return int((counts[counts > 1] - 1).sum()) + max(alone - 1, 0)
