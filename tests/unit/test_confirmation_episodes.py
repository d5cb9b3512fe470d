"""Which evaluation episodes the confirmation plays: two designs, by what they do to intervals. Simulated.

*Shared*: all runs of all arms play the same episodes. *Own*: every run plays episodes that no other run plays, as the
protocol has it. Both play as many, so that they cost the same.
"""

import json
import lzma
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import orjson
import pytest

from study.statistics import difference_of_means, mean_interval

EXAMPLE = Path(__file__).parents[2] / "analysis" / "example_study" / "records.jsonl.xz"
RUNS, EPISODES = 20, 30
RUN, EPISODE, REST = (6.8, 1.3), (9.7, 3.4), (82.8, 72.1)
"""Variances of the return in the recorded example, of the winner at 46 runners and of the small scale's best at 10:
between runs, between episodes, and of a run on an episode. From `BEFORE` runs of each before the confirmation, which
all played the same episodes."""
BEFORE = (8, 5)
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


def components(returns):
    """Variances between runs, between episodes and of the rest: a two-way table of shape (runs, episodes)."""
    num_runs, num_episodes = returns.shape
    rows, columns = returns.mean(axis=1), returns.mean(axis=0)
    rest = returns - rows[:, None] - columns + returns.mean()
    mean_square = (rest**2).sum() / ((num_runs - 1) * (num_episodes - 1))
    return (
        rows.var(ddof=1) - mean_square / num_episodes,
        columns.var(ddof=1) - mean_square / num_runs,
        mean_square,
    )


def test_the_components_are_those_of_the_recorded_example():
    settings, ends = {}, defaultdict(list)
    with lzma.open(EXAMPLE) as file:
        for line in file:
            if b'"trial_started"' in line or b'"evaluation"' in line:
                record = orjson.loads(line)
                if record["kind"] == "trial_started" and record["stage"] != "confirm":
                    settings[record["trial"]] = record["digest"], record["setting"]["num_env_runners"]
                elif record["kind"] == "evaluation" and record["progress"] >= 0.9 - 1e-9:
                    ends[record["trial"]].append(record["returns"])
    decided = json.loads(EXAMPLE.with_name("certificate.json").read_text())
    arms = (
        (decided["arms"][f"{name}@{scale}"]["digest"], scale) for name, scale in (("winner", 46), ("best_small", 10))
    )
    tables = []
    for place, arm in enumerate(arms):
        trials = sorted(trial for trial, setting in settings.items() if setting == arm)
        tables.append(np.array([np.mean(ends[trial], axis=0) for trial in trials]))
        assert tables[-1].shape == (BEFORE[place], EPISODES)
        expected = RUN[place], EPISODE[place], REST[place]
        assert components(tables[-1]) == pytest.approx(expected, abs=0.06)
    between = np.cov(tables[0].mean(axis=0), tables[1].mean(axis=0))[0, 1]
    assert between > max(EPISODE)
