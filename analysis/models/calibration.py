"""What a calibration of two minutes at one or two scales says: are more runners worth anything? Imports NumPy.

No model is fitted. More runners shorten the sampling of the runners themselves and nothing else; what else an iteration
takes does not get less with more runners, and so B over it is more than any number of runners can give.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from analysis.models.observations import IntArray, Observations
from analysis.scaling.blocks import exponential
from study.errors import AnalysisError
from study.statistics import Estimate, FloatArray, t_estimate, variance
from study.text import count

Bound = Literal["learner-bound", "overhead-bound", "runner-bound", "undecided"]
_METHOD = "Student's t of the logarithm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether more runners can help, from measured phases.

    Intervals are Student's t of the logarithm over blocks: with 3 blocks of one run and 3 % noise a nominal 90 % covers
    93 %.

    Attributes:
        bound: `learner-bound` where learning takes most of what runners cannot shorten, and that takes most of an
            iteration; `overhead-bound` where collecting, synchronising and the rest do; `runner-bound` where the
            runners' own sampling takes most of it; `undecided` where the interval says neither.
        num_env_runners: n of the runs that it rests on, the largest calibrated.
        most_env_steps_per_s: More than any larger number of runners can give, at this batch and setting.
        most_gain: That over the throughput now, >= 1.
        fixed_share: Share of an iteration that more runners do not shorten.
        sentence: The verdict in plain words.
    """

    bound: Bound
    num_env_runners: int
    most_env_steps_per_s: Estimate
    most_gain: Estimate
    fixed_share: Estimate
    sentence: str


def verdict(observations: Observations, *, level: float = 0.9) -> Verdict:
    """Return whether more runners can help, and at most how much.

    Args:
        observations: Runs of one setting, at one n or more; the largest n counts.
        level: Nominal coverage of the intervals. One block gives none, and the verdict is then undecided.

    Raises:
        AnalysisError: The runs at the largest n differ in their setting, or one has no time or no learning.
    """
    most = observations.cells.num_env_runners.max()
    runs = observations.take(observations.cells.num_env_runners == most)
    if np.unique(runs.cells.numbered()).size > 1:
        rule = "the runs at the largest number of runners must share one setting"
        raise AnalysisError(
            where="verdict", rule=rule, got="several", fix="Ask for one batch, minibatch and epochs at a time."
        )
    batch, whole = float(runs.cells.train_batch_size[0]), runs.iteration_time_s
    learning = runs.learning_time_s
    for name, times_s in (("iteration_time_s", whole), ("learning_time_s", learning)):
        if not (times_s > 0).all():
            rule = f"{name} must be > 0 in every run, since shares of it are averaged as ratios"
            raise AnalysisError(
                where="verdict", rule=rule, got=f"{times_s.min():g}", fix="Leave out runs without phases."
            )
    collecting = runs.sampling_time_s - runs.slowest_runner_time_s if runs.has_runner_times else 0.0 * whole
    fixed = learning + runs.sync_time_s + runs.rest_time_s + np.maximum(collecting, 0.0)
    ratio = partial(_ratio, blocks=np.arange(len(runs)) if runs.block is None else runs.block, level=level)
    share = ratio(fixed, whole)
    gain = ratio(whole, fixed)
    limit = ratio(np.full_like(fixed, batch), fixed)
    bound: Bound = "undecided"
    if share.low > 0.5:
        bound = "learner-bound" if learning.sum() >= fixed.sum() / 2 else "overhead-bound"
    elif share.high < 0.5 and np.isfinite(share.low):
        bound = "runner-bound"
    return Verdict(
        bound=bound,
        num_env_runners=int(most),
        most_env_steps_per_s=limit,
        most_gain=gain,
        fixed_share=share,
        sentence=_sentence(bound, int(most), limit, gain, ratio(learning, whole), share),
    )


def _ratio(above: FloatArray, below: FloatArray, *, blocks: IntArray, level: float) -> Estimate:
    """Return the ratio of the sums with a t interval of the blocks' mean log ratios: honest for two or three blocks.

    The runs of a block, such as the two of an anchor, share what the block does to them: they count once.
    """
    value = float(above.sum() / below.sum())
    place = np.unique(blocks, return_inverse=True)[1].reshape(-1)
    logs = np.bincount(place, weights=np.log(above / below)) / np.bincount(place)
    found = t_estimate(
        float(np.log(value)), variance(logs) / logs.size, logs.size - 1, n=logs.size, level=level, method=_METHOD
    )
    return replace(exponential(found), value=value)


MOST_SAID = 2.0
"""Times the throughput measured up to which a bound for ever more runners is worth a sentence."""


def _sentence(bound: Bound, n: int, limit: Estimate, gain: Estimate, learning: Estimate, fixed: Estimate) -> str:
    runners = count(n, "runner")
    no_more = (
        f"; however many runners are added, this batch and setting give less than {limit:,.0f} env steps/s, "
        f"{gain:.2f} times what {n} give (extrapolated)"
        if gain.value <= MOST_SAID
        else ""
    )
    if bound == "learner-bound":
        return f"You are learner-bound: learning takes {learning:.0%} of an iteration with {runners}{no_more}."
    if bound == "overhead-bound":
        return (
            f"You are bound by the main process: what runners cannot shorten takes {fixed:.0%} of an iteration with "
            f"{runners}, most of it outside learning{no_more}."
        )
    if bound == "runner-bound":
        return f"More runners can still help: {fixed:.0%} of an iteration with {runners} does not get shorter{no_more}."
    why = "one block has no interval" if not fixed.has_interval else "the interval of the fixed share holds one half"
    return f"Undecided, {why}: {fixed:.0%} of an iteration with {runners} does not get shorter{no_more}."
