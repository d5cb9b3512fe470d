"""The iteration-time model fitted to runs: unknowns with intervals, predictions, closure. Imports NumPy.

The formula stands in `analysis.models.phases`. What it says of cells that nobody ran is a prediction, and is to be
labelled so.
"""

from dataclasses import dataclass, replace

import numpy as np

from analysis.models.observations import RUNNER_TIMES, Cells, Observations
from analysis.models.phases import INDEX, UNKNOWNS, design, phase_times, solve, solve_resamples, unidentified
from analysis.models.resampling import (
    FEWEST_DEGREES,
    NUM_RESAMPLES,
    block_levels,
    degrees_of_freedom,
    percentile_estimate,
    run_weights,
)
from study.errors import AnalysisError
from study.statistics import Estimate, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimeFit:
    """Fitted unknowns of the iteration-time model.

    Attributes:
        coefficients: In the order of `UNKNOWNS`, shape (unknowns,).
        draws: The same of each resample, shape (resamples, unknowns); empty without intervals.
        observations: The runs behind it.
        episode_len: Mean episode length of the runs, for cells that do not name one; NaN where not known.
        unidentified: Unknowns that the runs do not tell apart from others: their sum is meaningful, they are not.
        split_sampling: Whether runners timed themselves, so that stragglers and collecting were fitted apart.
        closure: Median over the runs of |predicted - observed| / observed iteration time.
        degrees: Degrees of freedom of the intervals.
        level: Nominal coverage of the intervals.
    """

    coefficients: FloatArray
    draws: FloatArray
    observations: Observations
    episode_len: float
    unidentified: tuple[str, ...]
    split_sampling: bool
    closure: float
    degrees: int
    level: float

    @property
    def n(self) -> int:
        """Runs behind the fit."""
        return len(self.observations)

    @property
    def parameters(self) -> dict[str, Estimate]:
        """Unknowns by name, in the units of `UNKNOWNS`; without runner times gamma is left out, d1 being both."""
        return {
            name: self.estimate(float(self.coefficients[index]), self.draws[:, index])
            for name, index in INDEX.items()
            if self.split_sampling or name != "gamma"
        }

    def estimate(self, value: float, draws: FloatArray) -> Estimate:
        """Return a function of the unknowns from its value and its value in each resample, shape (resamples,)."""
        return percentile_estimate(value, draws, n=self.n, degrees=self.degrees, level=self.level)

    def complete(self, cells: Cells) -> Cells:
        """Return cells whose unknown episode lengths are those of the fitted runs."""
        known = np.where(np.isfinite(cells.episode_len), cells.episode_len, self.episode_len)
        return replace(cells, episode_len=known)

    def times(self, cells: Cells, *, whole_steps: bool = True) -> dict[str, FloatArray]:
        """Return seconds by phase, shape (cells,), as `phase_times`."""
        return phase_times(self.coefficients, design(self.complete(cells), whole_steps=whole_steps))

    def time_draws(self, cells: Cells, *, whole_steps: bool = True) -> dict[str, FloatArray]:
        """Return seconds by phase of each resample, shape (resamples, cells)."""
        return phase_times(self.draws, design(self.complete(cells), whole_steps=whole_steps))

    def iteration_time_s(self, cells: Cells) -> FloatArray:
        """Return seconds per iteration, shape (cells,)."""
        return self.times(cells)["iteration"]

    def predict(self, cells: Cells) -> tuple[Estimate, ...]:
        """Return the env steps per second of each cell; the interval is for the expected rate, not for a run's."""
        seconds, draws = self.iteration_time_s(cells), self.time_draws(cells)["iteration"]
        return tuple(
            self.estimate(float(batch / seconds[index]), batch / draws[:, index])
            for index, batch in enumerate(cells.train_batch_size)
        )


def fit_iteration_time(
    observations: Observations,
    *,
    rng: np.random.Generator | None = None,
    level: float = 0.9,
    num_resamples: int = NUM_RESAMPLES,
) -> IterationTimeFit:
    """Fit every phase by non-negative least squares on relative error.

    Intervals come from resampling blocks within cells (see `resampling.run_weights`) and from what the blocks differ by
    in all cells alike (`resampling.block_levels`); of one block there are none. With n <= 16 in four settings, on
    planted truth with lognormal noise, a nominal 90 % covers 84-95 % for each unknown and 85-90 % for an iteration at 8
    to 46 runners at 3 and 5 runs per cell (3 % noise), and 84-93 % and 82-88 % at 2 runs (5 % noise). Where runners did
    not time themselves, stragglers and the costs per runner are hard to tell apart: then 78-90 % at 8 and 16 runners
    and 78-88 % at 46 (200 simulated studies each). What the model leaves out is in no interval.

    Args:
        observations: Runs of one workload, at least two scales.
        rng: Source of the resamples; None for no intervals.
        level: Nominal coverage, in (0, 1).
        num_resamples: Resamples, >= 1.

    Raises:
        AnalysisError: Fewer than two distinct numbers of runners, or a phase that took no time in some run.
    """
    if np.unique(observations.cells.num_env_runners).size < 2:
        rule = "the iteration-time model needs at least two different numbers of runners"
        raise AnalysisError(
            where="num_env_runners", rule=rule, got="one", fix="Measure a second scale, or ask for the verdict."
        )
    for name in ("sampling_time_s", "learning_time_s", *(RUNNER_TIMES if observations.has_runner_times else ())):
        if not (times := getattr(observations, name)).min() > 0:
            rule = "must be > 0 in every run, since errors are relative to it"
            got = f"{times.min():g} (not > 0 in {int((times <= 0).sum())} of {times.size} runs)"
            raise AnalysisError(where=name, rule=rule, got=got, fix="Leave out runs whose clock lacks the phase.")
    known = observations.cells.episode_len[np.isfinite(observations.cells.episode_len)]
    episode_len = float(1 / np.mean(1 / known)) if known.size else float("nan")
    cells = replace(observations.cells, episode_len=np.full(len(observations), episode_len))
    at = design(cells)
    coefficients = solve(observations, at)
    times = phase_times(coefficients, at)
    numbers = cells.numbered()
    draws = np.zeros((0, len(UNKNOWNS)))
    degrees = degrees_of_freedom(numbers, observations.block) if rng is not None else 0
    if rng is not None and degrees >= FEWEST_DEGREES:
        known_s = at.slowest_wait_s
        levels = block_levels(
            (observations.iteration_time_s - times["iteration"]) / (times["iteration"] - known_s),
            numbers,
            observations.block,
            degrees=degrees,
            level=level,
            num_resamples=num_resamples,
            rng=rng,
        )
        if levels is None:
            degrees = 0
        else:
            weights = run_weights(numbers, num_resamples=num_resamples, rng=rng, blocks=observations.block)
            draws = solve_resamples(observations, at, weights, times)
            draws[:, np.arange(len(UNKNOWNS)) != INDEX["cv"]] *= levels[:, None]
    off = np.abs(times["iteration"] - observations.iteration_time_s) / observations.iteration_time_s
    return IterationTimeFit(
        coefficients=coefficients,
        draws=draws,
        observations=observations,
        episode_len=episode_len,
        unidentified=unidentified(observations, at),
        split_sampling=observations.has_runner_times,
        closure=float(np.median(off)),
        degrees=degrees,
        level=level,
    )
