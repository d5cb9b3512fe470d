"""Which evaluation episodes the confirmation plays: two designs, by what they do to intervals. Simulated.

*Shared*: all runs of all arms play the same episodes. *Own*: every run plays episodes that no other run plays, as the
protocol has it. Both play as many, so that they cost the same.
"""

import math

import numpy as np
import pytest

from study.statistics import difference_of_means, mean_interval

RUNS, EPISODES = 20, 30
RUN, EPISODE, REST = (6.8, 1.3), (9.7, 3.4), (82.8, 72.1)
"""Variances of the return in the recorded example, of the winner at 46 runners and of the small scale's best at 10:
between runs, between episodes, and of a run on an episode. From eight and five runs before the confirmation, which
all played the same episodes."""
EPISODE_OF_BOTH = 3.4
"""Share of `EPISODE` that both arms have in common: an episode that is hard for one is hard for the other. As much as
the smaller one has: the covariance that these runs show is larger than either variance."""
COVERAGE = {("shared", "arm"): 0.87, ("own", "arm"): 0.95, ("shared", "difference"): 0.91, ("own", "difference"): 0.95}
"""Share of 95 % intervals over runs that hold the truth; `evidence.md` of the protocol has them."""
ERROR = {"shared": 0.94, "own": 0.83}
"""Standard error of the difference of the two arms, in units of the return."""


def finals(rng, design):
    """Final returns of the two arms around 0, each of shape (runs,)."""
    count = 1 if design == "shared" else RUNS
    both = rng.normal(0, math.sqrt(EPISODE_OF_BOTH), (count, EPISODES))
    arms = []
    for run, episode, rest in zip(RUN, EPISODE, REST, strict=True):
        own = rng.normal(0, math.sqrt(episode - EPISODE_OF_BOTH), (count, EPISODES))
        if design == "own":
            both = rng.normal(0, math.sqrt(EPISODE_OF_BOTH), (count, EPISODES))
        noise = rng.normal(0, math.sqrt(rest), (RUNS, EPISODES))
        arms.append(rng.normal(0, math.sqrt(run), RUNS) + (both + own + noise).mean(axis=1))
    return arms


def simulated(design, studies, seed=0):
    """Coverage of the winner's interval and of that of the difference, and the standard error of the difference."""
    rng = np.random.default_rng([seed, len(design)])
    arm = difference = 0
    found = []
    for _ in range(studies):
        winner, small = finals(rng, design)
        one, two = mean_interval(winner), difference_of_means(winner, small)
        arm += one.low <= 0 <= one.high
        difference += two.low <= 0 <= two.high
        found.append(two.value)
    return arm / studies, difference / studies, float(np.std(found))


@pytest.mark.parametrize("studies", [400, pytest.param(5000, marks=pytest.mark.minutes)])
@pytest.mark.parametrize("design", ["shared", "own"])
def test_intervals_over_runs_hold_both_components_only_where_every_run_plays_episodes_of_its_own(design, studies):
    arm, difference, error = simulated(design, studies)
    near = 0.07 if studies == 400 else 0.02
    assert arm == pytest.approx(COVERAGE[design, "arm"], abs=near)
    assert difference == pytest.approx(COVERAGE[design, "difference"], abs=near)
    assert error == pytest.approx(ERROR[design], rel=0.12 if studies == 400 else 0.03)
