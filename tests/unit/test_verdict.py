"""The verdict: its laws on plain numbers, and how often it is right, by simulation."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from study.designs.holdup.verdict import (
    OURS,
    Arm,
    Check,
    Run,
    compare,
    in_words,
    judge,
    score_kept,
    search_paid,
    solved,
)
from study.space.sections import HoldUpSpec
from tests.benchmarks.confirmation import CASES, SPREADS, simulated

PAGE = Path(__file__).parents[2] / "study/designs/holdup/evidence.md"

TARGET, SMALL, BUDGET = 46, 10, 500_000


LIMITS = HoldUpSpec(target_scale=TARGET, small_scale=SMALL, confirm={"num_seeds": 20})


def arm(scores, scale=TARGET, *, name="winner", steps=200_000.0):
    """One run per score; None fails. A run is solved from 0.75 on, and reaches the target at `steps`."""
    runs = []
    for score in scores:
        good = score is not None and math.isfinite(score) and score >= 0.75
        run = Run(
            score=score,
            solved_at=(good,),
            env_steps=None if score is None else float(BUDGET),
            env_steps_to_target=steps if good else None,
            env_steps_before_target=steps if good else BUDGET,
        )
        runs.append(run)
    return Arm(name=name, scale=scale, runs=tuple(runs))


def together(*arms):
    return {(each.name, each.scale): each for each in arms}


def verdict(*arms, env_steps=BUDGET) -> list[Check]:
    return judge(together(*arms), LIMITS, env_steps)


def check(judged: list[Check], name: str) -> Check:
    return next(each for each in judged if each.name == name)


def small(scores):
    return arm(scores, SMALL, name="best_small")


GOOD = [1.0, 0.98, 1.02, 0.99, 1.01, 1.0, 0.97, 1.03, 1.0, 1.0] * 2


def test_the_share_solved_must_be_enough_at_each_of_the_last_evaluations():
    def solved_at(*counts):
        of = [tuple(place < number for number in counts) for place in range(20)]
        runs = tuple(replace(run, solved_at=each) for run, each in zip(arm(GOOD).runs, of, strict=True))
        return check(verdict(Arm(name="winner", scale=TARGET, runs=runs), small(GOOD)), "solved@46")

    for share, least in ((0.95, 19), (0.55, 11), (0.951, 20), (1.0, 20)):
        (found,) = solved(together(arm(GOOD)), LIMITS.model_copy(update={"solved_share": share}), OURS)
        assert found.law.startswith(f"at least {least} of 20")
    assert solved_at(20, 19, 19).passed
    lost = solved_at(20, 18, 20)
    assert (lost.passed, lost.value.value) == (False, pytest.approx(0.9))
    assert lost.note == "20, 18, 20 of 20, the last evaluation last"


def test_a_rule_that_runs_are_too_unlike_to_show_is_not_broken():
    unlike = small([1.0] * 9 + [0.1])  # a reference that failed once: its mean may be much higher
    judged = verdict(arm(GOOD[:10]), unlike)
    assert (check(judged, "score_kept@46").passed, check(judged, "score_kept@46").lost) == (False, False)
    assert in_words(judged) == "is not shown to hold up"
    worse = verdict(arm([each - 0.2 for each in GOOD]), small(GOOD))
    assert check(worse, "score_kept@46").lost and in_words(worse) == "does not hold up"


def test_runs_that_do_not_differ_give_no_spread_and_no_error():
    found = check(verdict(arm([1.0] * 20), small([1.0] * 10)), "score_kept@46")
    assert (found.passed, found.value.low) == (True, 0.0)
    assert "nothing is known of the spread" in found.note
    assert in_words(verdict(arm([0.0] * 20), small([0.0] * 10))) == "does not hold up"  # nothing is solved
    (same,) = compared(arm([1.0] * 20), arm([1.0] * 10, name="same"))
    assert (same.p_value, same.difference.value, same.standing) == (1.0, 0.0, "as good")


def test_one_run_is_no_evidence():
    (found,) = score_kept(together(arm([1.0]), small(GOOD)), LIMITS, OURS)
    assert found.passed is False
    assert "too few runs" in found.note


def test_steps_are_saved_when_naive_growth_needs_more_and_who_never_gets_there_counts_the_budget():
    def saved(*naive, winner=None, env_steps=BUDGET):
        judged = verdict(winner or arm(GOOD), small(GOOD), *naive, env_steps=env_steps)
        return check(judged, "steps_saved@46")

    slower = arm([1.0] * 10, name="naive_growth", steps=400_000.0)
    assert (saved(slower).passed, saved(slower).value.value) == (True, pytest.approx(2.0))
    assert saved(arm([1.0] * 10, name="naive_growth")).passed is False
    never = arm([0.1] * 5 + [None] * 5, name="naive_growth")
    assert saved(never).value.value == pytest.approx(2.5)
    assert saved(never, winner=arm([0.1] * 20)).passed is False  # neither arm ever got there
    assert (saved().value, saved().passed) == (None, None)
    assert "is the chosen setting" in saved().note
    # Without a budget in steps the comparison ends with the shortest run: only that one gets there, at 50,000.
    short = Run(score=1.0, solved_at=(True,), env_steps=100_000.0, env_steps_to_target=50_000.0)
    found = saved(slower, winner=replace(arm(GOOD), runs=(*arm(GOOD).runs, short)), env_steps=None)
    assert found.value.value == pytest.approx(100_000 / ((20 * 100_000 + 50_000) / 21))


def test_steps_are_saved_only_if_they_are_wherever_between_two_evaluations_the_runs_got_there():
    def known_to(one, before):
        return replace(one, runs=tuple(replace(run, env_steps_before_target=before) for run in one.runs))

    def found(winner, naive):
        return check(verdict(winner, small(GOOD), naive), "steps_saved@46")

    winner, naive = arm(GOOD, steps=100_000.0), arm([1.0] * 10, name="naive_growth", steps=150_000.0)
    assert found(winner, naive).passed
    coarse = found(known_to(winner, 0.0), known_to(naive, 100_000.0))
    assert coarse.value.value == pytest.approx(1.5)
    assert (coarse.value.low, coarse.value.high) == pytest.approx((1.0, math.inf))
    assert coarse.passed is False
    assert coarse.note.startswith("at least 1.00: evaluations are up to 100,000 env steps apart")
    fine = found(known_to(winner, 90_000.0), known_to(naive, 140_000.0))
    assert (fine.value.low, fine.value.high) == pytest.approx((1.4, 150 / 90))
    assert fine.passed
    assert fine.note.startswith("evaluations are up to 10,000 env steps apart")


def compared(winner, *rivals, tolerance=0.05):
    return compare(winner, rivals, rng=np.random.default_rng(1), tolerance=tolerance, env_steps=BUDGET)


def test_a_rival_that_scores_as_well_and_takes_longer_is_worse():
    winner, later = arm(GOOD, steps=100_000.0), arm(GOOD, name="later", steps=200_000.0)
    (row,) = compared(winner, later)
    assert (row.standing, row.steps_ratio.value) == ("better", pytest.approx(2.0))
    (row,) = compared(arm([0.9] * 10 + [0.91] * 10, steps=100_000.0), later)  # sooner, and the score is lower
    assert row.standing == "open"
    (row,) = compared(arm([0.9, 1.1] * 3), arm([0.92, 1.08] * 3, name="noisy"))
    assert row.standing == "open"


def test_whether_the_search_paid_is_decided_by_the_strongest_rival():
    winner, like = arm(GOOD), arm(GOOD[::-1], name="like")
    worse, worst = (arm([each - less for each in GOOD], name=name) for name, less in (("worse", 0.1), ("worst", 0.3)))
    assert search_paid(compared(winner, worst, worse)) == ("paid", "worse")
    assert search_paid(compared(winner, worst, like, worse)) == ("not paid", "like")
    assert search_paid(compared(winner, worst, arm([0.9, 1.08] * 5, name="noisy"))) == ("open", "noisy")
    assert search_paid(compared(winner)) == ("not paid", None)  # each rival is the winner


def on_the_page(row):
    """Return the share of studies that hold up by the standard deviation between seeds, as the page says."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {row} | "))
    return {spread: float(cell.split()[0]) / 100 for spread, cell in zip(SPREADS, line.split("|")[2:-1], strict=True)}


@pytest.mark.parametrize(
    ("row", "studies", "margin"),
    [
        *((row, 50, 0.16) for row in ("sound", "loses 0.05 of its score at every scale", "fails in 10 % of runs")),
        *(pytest.param(row, 600, 0.06, marks=pytest.mark.heavy) for row in CASES),
    ],
)
def test_a_setting_holds_up_as_often_as_the_page_says(row, studies, margin):
    for spread, expected in on_the_page(row).items() if studies > 50 else [(0.05, on_the_page(row)[0.05])]:
        held = simulated(spread, studies, seed=(2, list(CASES).index(row)), **CASES[row])
        assert held / studies == pytest.approx(expected, abs=margin), spread
