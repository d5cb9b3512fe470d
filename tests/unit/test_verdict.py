"""The verdict: its laws on plain numbers, and how often it is right, by simulation."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from study.designs.holdup.verdict import (
    LEVEL,
    STOPPED_EARLY,
    Arm,
    Check,
    Run,
    Verdict,
    compare,
    halfway,
    judge,
    num_solved_needed,
    score_kept,
)
from study.space.sections import HoldUpSpec
from tests.benchmarks.confirmation import CASES, SCALES, SPREADS, simulated

PAGE = Path(__file__).parents[2] / "study/designs/holdup/evidence.md"

TARGET, SMALL, UNSEEN, BUDGET = 46, 10, (23, 64), 500_000


def limits(*unseen, num_seeds=20):
    confirm = {"num_seeds": num_seeds}
    return HoldUpSpec(target_scale=TARGET, small_scale=SMALL, unseen_scales=[*unseen], confirm=confirm)


def arm(scores, scale=TARGET, *, name="winner", solved=None, steps=200_000.0):
    """One run per score; None fails. A run is solved from 0.75 on, and reaches the target at `steps`."""
    runs = []
    for seed, score in enumerate(scores):
        good = score is not None and math.isfinite(score) and score >= 0.75 if solved is None else solved[seed]
        run = Run(
            seed=seed,
            score=score,
            solved=good,
            env_steps=None if score is None else float(BUDGET),
            env_steps_to_target=steps if good else None,
        )
        runs.append(run)
    return Arm(name=name, scale=scale, runs=tuple(runs))


def together(*arms):
    return {(each.name, each.scale): each for each in arms}


def verdict(winner, *others, unseen=UNSEEN, num_seeds=None, env_steps=BUDGET) -> Verdict:
    """Judge a winner, the same at every scale or several; the arms at the small scale and naive growth are others."""
    winners = winner if isinstance(winner, list) else [winner, *(moved(winner, scale) for scale in unseen)]
    scales = [each.scale for each in winners if each.scale not in (TARGET, SMALL)]
    num_seeds = num_seeds or max(min(len(each.runs) for each in winners), 5)
    return judge(together(*winners, *others), limits(*scales, num_seeds=num_seeds), env_steps)


def moved(one, scale):
    return replace(one, scale=scale)


def check(judged: Verdict, name: str) -> Check:
    return next(each for each in judged.checks if each.name == name)


def small(scores):
    return arm(scores, SMALL, name="best_small")


GOOD = [1.0, 0.98, 1.02, 0.99, 1.01, 1.0, 0.97, 1.03, 1.0, 1.0] * 2


def test_the_bound_on_the_mean_is_welchs():
    found = check(verdict(arm([0.9, 1.0, 0.95, 1.05, 0.85]), small([1.0, 1.1, 0.9, 1.05])), "score_kept@46").value
    # Worked by hand: s1^2/n1 = 0.00625/5, s2^2/n2 = 0.0072917/4; t(0.951, 6.32 degrees) = 1.9409.
    assert found.value == pytest.approx(0.95 - 1.0125)
    assert found.low == pytest.approx(-0.0625 - stats.t.ppf(LEVEL, 6.3208) * math.sqrt(0.00125 + 0.00182292), abs=1e-4)
    assert found.high == math.inf


def test_a_failure_or_a_nan_scores_nothing_is_not_solved_and_never_reaches_the_target():
    broken = arm([*GOOD[:18], None, math.nan], solved=[True] * 20)
    assert broken.num_failed == 2
    assert broken.num_solved == 18
    assert broken.scores[-2:].tolist() == [0.0, 0.0]
    judged = verdict(broken, small(GOOD))
    assert check(judged, "solved@46").passed is False
    assert check(judged, "solved@46").value.value == pytest.approx(0.9)
    assert judged.sentence == "does not hold up"


def test_one_lost_run_of_twenty_breaks_the_law_on_the_mean_one_that_missed_the_target_does_not():
    lost = verdict(arm([*GOOD[:19], None]), small(GOOD))
    assert check(lost, "solved@46").passed
    assert check(lost, "score_kept@46").passed is False
    missed = verdict(arm(GOOD, solved=[True] * 19 + [False]), small(GOOD))
    assert missed.learning


def test_the_first_half_decides_what_is_clear_and_gives_up_what_cannot_be_kept_any_more():
    def stopped(scores, missed=0, naive=0.5):
        winner = arm(scores, solved=[True] * (len(scores) - missed) + [False] * missed)
        grown = arm([naive, naive + 0.01, naive + 0.02] * 2, name="naive_growth", solved=[True] * 6, steps=400_000.0)
        return halfway(together(winner, small(GOOD[:10]), grown), limits(), BUDGET, seed=0)

    assert stopped(GOOD[:10]) == {("best_small", SMALL), ("naive_growth", TARGET)}
    assert stopped([0.9, 1.1] * 5) == {("naive_growth", TARGET)}  # rule 1 is too wide at 99.9 %
    assert stopped(GOOD[:10], naive=1.0) == {("best_small", SMALL)}  # its score is not worse
    assert stopped(GOOD[:10], missed=1) == {("best_small", SMALL), ("naive_growth", TARGET)}
    assert stopped(GOOD[:10], missed=2) is None  # 19 of 20 can no more be solved


def test_naive_growth_stops_by_an_exact_test_of_its_earliest_steps():
    def stops(naive_steps, before=None):
        runs = [
            replace(arm([0.1], solved=[True], steps=steps).runs[0], seed=seed) for seed, steps in enumerate(naive_steps)
        ]
        runs = [replace(run, env_steps_before_target=before) for run in runs]
        naive = Arm(name="naive_growth", scale=TARGET, runs=tuple(runs))
        arms = together(arm(GOOD[:10], steps=100_000.0), small(GOOD[:10]), naive)
        return ("naive_growth", TARGET) in halfway(arms, limits(), BUDGET, seed=0)

    later = [200_000.0, 210_000.0, 220_000.0, 230_000.0, 240_000.0]
    assert stops(later)  # p = 1 / 3003
    assert not stops([*later[:4], 100_000.0])  # p = 11 / 3003
    assert stops(later[:4])  # p = 1 / 1001
    assert not stops(later, before=100_000.0)  # nobody saw that they were later


def test_of_a_study_that_stopped_at_half_only_what_cannot_be_kept_any_more_is_broken():
    def half(missed, scale):
        return arm(GOOD[:10], scale, solved=[True] * (10 - missed) + [False] * missed)

    winners = [half(1, TARGET), half(2, 23), half(0, 64)]
    judged = verdict(winners, small([2.0] * 10), arm([1.0] * 5, name="naive_growth"), num_seeds=20)
    assert {each.name: each.passed for each in judged.checks if each.passed is not None} == {"solved@23": False}
    assert check(judged, "solved@23").note == "2 of the first 10 missed"
    assert check(judged, "solved@46").law == "at least 19 of 20 test seeds solved at 46"
    assert all(each.note.startswith("stopped at half") for each in judged.checks if each.passed is None)
    assert judged.sentence == "does not hold up"


def test_every_unseen_scale_must_hold_and_the_winner_at_the_small_scale_is_not_judged():
    good, bad = arm(GOOD), arm([0.5] * 20, 64)
    judged = verdict([good, moved(good, 23), bad], small(GOOD))
    assert check(judged, "score_kept@23").passed
    assert check(judged, "score_kept@64").passed is False
    assert judged.sentence == "does not hold up"
    assert verdict([good, arm([0.0] * 20, SMALL)], small(GOOD)).sentence == "holds up"


def test_runs_that_do_not_differ_give_no_spread_and_no_error():
    found = check(verdict(arm([1.0] * 20), small([1.0] * 10)), "score_kept@46")
    assert (found.passed, found.value.low) == (True, 0.0)
    assert "nothing is known of the spread" in found.note
    assert verdict(arm([0.0] * 20), small([0.0] * 10)).sentence == "does not hold up"  # nothing is solved
    same = compare(arm([1.0] * 20), [arm([1.0] * 10, name="same")], rng=np.random.default_rng(0))["rows"]["same"]
    assert (same["p_value"], same["difference"].value) == (1.0, 0.0)


def test_one_run_is_no_evidence():
    (found,) = score_kept(together(arm([1.0]), small(GOOD)), limits(), BUDGET, LEVEL)
    assert found.passed is False
    assert "too few runs" in found.note
    assert compare(arm([1.0]), [arm([0.1] * 9, name="b")], rng=np.random.default_rng(0))["rows"]["b"]["p_value"] is None


def test_the_number_of_solved_seeds_is_not_raised_by_rounding():
    assert [num_solved_needed(20, share) for share in (0.95, 0.55, 0.951, 1.0)] == [19, 11, 20, 20]
    assert num_solved_needed(5, 0.95) == 5


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
    assert "no arm" in saved().note
    # Without a budget in steps the comparison ends with the shortest run: only that one gets there, at 50,000.
    short = Run(seed=99, score=1.0, solved=True, env_steps=100_000.0, env_steps_to_target=50_000.0)
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


def test_the_winner_is_held_against_the_better_of_the_arms_at_the_small_scale():
    best, own = small([0.97] * 19 + [0.98]), arm(GOOD, SMALL)

    def kept(scores, *references):
        return check(verdict(arm(scores), *references), "score_kept@46")

    assert kept(GOOD, best).value.value == pytest.approx(1.0 - 0.9705)
    assert kept(GOOD, best, own).value.value == pytest.approx(0.0)
    assert kept(GOOD, best, own).note == "against winner, where the bound is lowest"
    assert kept([0.9] * 10 + [0.91] * 10, best).passed is False
    assert kept([0.93] * 10 + [0.94] * 10, best).passed
    assert kept([0.93] * 10 + [0.94] * 10, best, own).passed is False


def test_the_comparison_is_corrected_and_says_what_it_does_not_show():
    rng = np.random.default_rng(1)
    like, worse = arm(GOOD[:10], name="like"), arm([0.5, 0.52, 0.48, 0.5, 0.51], name="worse")
    found = compare(arm(GOOD), [like, worse], rng=rng)
    assert found["sentence"] == "better than worse; not shown to be better than like"
    assert found["rows"]["worse"]["p_adjusted"] == pytest.approx(2 * found["rows"]["worse"]["p_value"])
    best = compare(arm(GOOD), [worse], rng=rng, stopped=["worse"])
    assert best["sentence"] == "better than each baseline that was confirmed"
    assert best["rows"]["worse"]["note"] == STOPPED_EARLY
    assert "note" not in found["rows"]["worse"]
    alike = compare(arm(GOOD), [like], rng=rng)["sentence"]
    assert alike == "not shown to be better than any baseline that was confirmed"
    assert compare(arm(GOOD), [], rng=rng)["sentence"] == "no baseline was run"


# --- how often it is right, by simulation ----------------------------------------------------------------------------

LET_PASS = {(20, 3): (0.06, 0.00), (20, 1): (0.37, 0.13), (5, 3): (0.06, 0.07), (5, 1): (0.37, 0.38)}
"""Test seeds, scales -> share of studies in which a setting passes all rules though a tenth of its runs miss the target
(first number) or fail (second one); standard deviation between runs 0.03. As the page on the evidence says."""


@pytest.mark.minutes
@pytest.mark.parametrize(("num_seeds", "num_scales"), LET_PASS)
def test_what_the_rules_let_pass_is_what_the_page_says(num_seeds, num_scales):
    misses, fails = LET_PASS[num_seeds, num_scales]
    for rates, expected in (({"misses": 0.1, "fails": 0.0}, misses), ({"misses": 0.0, "fails": 0.1}, fails)):
        seed = num_seeds, num_scales, round(100 * rates["misses"])
        held, _ = simulated(0.03, 500, seed=seed, seeds=num_seeds, scales=SCALES[:num_scales], **rates)
        assert held / 500 == pytest.approx(expected, abs=0.07)
    row = f"| {num_seeds} | {num_scales} | {misses:.0%} | {fails:.0%} |".replace("%", " %")
    assert row in PAGE.read_text()


def share_that_holds_up(row, spread, studies):
    """Return how often a setting of the page's table holds up, with its halves and two references."""
    held, _ = simulated(spread, studies, seed=(2, list(CASES).index(row)), **CASES[row])
    return held / studies


def shares_on_the_page(row):
    """Return the share of studies that hold up by the standard deviation between seeds, as the page says."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {row} | "))
    return {spread: float(cell.split()[0]) / 100 for spread, cell in zip(SPREADS, line.split("|")[2:-1], strict=True)}


@pytest.mark.parametrize("row", ["sound", "loses 0.05 of its score at every scale", "fails in 10 % of runs"])
def test_a_setting_holds_up_as_often_as_the_page_says_in_fifty_studies(row):
    assert share_that_holds_up(row, 0.05, 50) == pytest.approx(shares_on_the_page(row)[0.05], abs=0.16)


@pytest.mark.heavy
@pytest.mark.parametrize("row", CASES)
def test_a_setting_holds_up_as_often_as_the_page_says(row):
    for spread, expected in shares_on_the_page(row).items():
        assert share_that_holds_up(row, spread, 600) == pytest.approx(expected, abs=0.06), spread
