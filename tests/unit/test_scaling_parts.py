"""Phases and POP tree, goodput, allocation, drift and single published numbers, by value."""

import numpy as np
import pandas as pd
import pytest

from analysis.published import one_number
from analysis.scaling.allocation import allocation
from analysis.scaling.drift import anchors, slope
from analysis.scaling.efficiency import serial_fraction
from analysis.scaling.goodput import BEFORE, TIME_BEFORE, goodput, watched
from analysis.scaling.phases import PLACED_WIDER, phases, stragglers
from analysis.scaling.speed_up import strong_scaling
from study.errors import AnalysisError
from study.statistics import restricted_mean
from tests.planted import Truth, fingerprint
from tests.unit.test_scaling import QUIET, made, planted, run

# Phases


def test_phases_and_the_pop_tree_are_those_planted():
    truth = Truth(cells=((4, 2048),), **QUIET)
    (row,) = phases(planted(truth)).rows
    iteration, mean = truth.iteration_s(4, 2048), truth.mean_runner_s(4, 2048)
    assert row.seconds["iteration"].value == pytest.approx(iteration)
    assert row.seconds["runners"].value == pytest.approx(mean)
    assert row.seconds["imbalance"].value == pytest.approx(0.2 * mean)
    assert row.seconds["transfer"].value == pytest.approx(0.01)
    assert row.shares["learning"].value == pytest.approx(truth.learning_s(2048) / iteration)
    assert sum(share.value for share in row.shares.values()) == pytest.approx(1)
    assert row.load_balance.value == pytest.approx(1 / 1.2)
    assert row.transfer.value == pytest.approx(1.2 * mean / (1.2 * mean + 0.01))
    assert row.phase.value == pytest.approx((1.2 * mean + 0.01) / iteration)
    product = row.load_balance.value * row.transfer.value * row.phase.value
    assert row.useful.value == pytest.approx(product) == pytest.approx(mean / iteration)


def test_the_rest_is_what_no_clock_saw_and_closure_only_checks_the_arithmetic():
    frame = planted(Truth(cells=((4, 2048),), **QUIET))
    truth = Truth(cells=((4, 2048),))
    (row,) = phases(frame).rows
    assert row.closure == pytest.approx(0, abs=1e-12)
    assert row.unexplained.value == row.unexplained_median == pytest.approx(0.005 / truth.iteration_s(4, 2048))
    wrong = frame.assign(rest_time_s=frame["rest_time_s"] + 0.1 * frame["iteration_time_s"])
    assert phases(wrong).rows[0].closure == pytest.approx(0.1)
    # Other people's scripts have no rest: then it is the remainder, and nothing was checked.
    unknown = frame.assign(rest_time_s=pd.array([pd.NA] * len(frame), dtype="Float64"))
    (row,) = phases(unknown).rows
    assert row.closure is None and row.shares["rest"].value == pytest.approx(0.005 / truth.iteration_s(4, 2048))


def test_phases_of_several_placements_are_those_on_the_fewest_cpus_and_nodes():
    truth = Truth(cells=((4, 2048),), **QUIET)
    types = planted(truth).dtypes
    narrow = planted(truth).assign(num_cpus=5, num_nodes=1)
    slow = narrow.assign(iteration_time_s=9.0, learning_time_s=8.0)
    others = [slow.assign(num_nodes=2), slow.assign(num_cpus=6), slow.assign(num_nodes=pd.NA)]
    table = phases(pd.concat([*others, narrow], ignore_index=True).astype(types))
    (row,) = table.rows
    assert row.seconds["iteration"].value == pytest.approx(truth.iteration_s(4, 2048))
    assert (row.n, table.n, row.num_cpus) == (len(narrow), len(narrow), 5)
    assert table.excluded == {PLACED_WIDER: 3 * len(narrow)}
    unknown = phases(narrow.assign(num_cpus=pd.NA, num_nodes=pd.NA).astype(types))
    assert unknown.n == len(narrow)


def test_phases_are_totals_over_totals():
    frame = planted(Truth(cells=((4, 2048),), blocks=2, **QUIET))
    frame.loc[1, ["timed_iterations", "learning_time_s"]] = [3 * frame.loc[0, "timed_iterations"], 1.0]
    (row,) = phases(frame).rows
    assert row.seconds["learning"].value == pytest.approx((frame.loc[0, "learning_time_s"] + 3 * 1.0) / 4)


def test_a_run_without_phase_times_is_counted_and_others_than_measured_are_shown_on_demand():
    frame = planted(Truth(cells=((4, 2048), (8, 2048)), failed=1, **QUIET))
    frame.loc[0, "learning_time_s"] = pd.NA
    frame.loc[1, "timing"] = "oversubscribed"
    table = phases(frame)
    assert table.excluded == {"failed": 1, "oversubscribed": 1, "no phase times": 1} and table.n == 4
    assert sum(row.n_failed for row in table.rows) == table.n_failed == 1


def test_a_straggler_is_named_when_its_interval_says_so():
    table = phases(planted(Truth(cells=((1, 2048), (8, 2048)), straggler=2.5)))
    ((row, ratio),) = stragglers(table)
    assert row.num_env_runners == 8 and ratio.low < 2.5 < ratio.high and ratio.low > 2
    assert not [*stragglers(phases(planted(Truth(cells=((8, 2048),), straggler=1.5))))]


# Goodput

LEARN = Truth(
    cells=((2, 1024), (4, 1024), (4, 4096)), blocks=5, budget_steps=20 * 4096, steps_noise=0.0, failed=1, **QUIET
)


def test_steps_time_and_cost_to_target():
    frame = planted(LEARN)
    (group,) = goodput(frame).groups
    base, same, large = group.rows
    assert group.reference == (2, 1024) and group.horizon == 20 * 4096
    # 10,000 * (1 + 4096 / 2048) = 30,000 steps, the next whole iteration being the 8th.
    assert large.steps_to_target.value == 8 * 4096
    steps = np.array([15 * 1024] * 5 + [group.horizon])  # one failed: it is censored at the budget
    assert base.steps_to_target.value == pytest.approx(steps.mean())
    assert (base.n, base.n_failed, base.n_censored, base.n_timed) == (6, 1, 1, 5)
    assert large.statistical_efficiency.value == pytest.approx(steps.mean() / (8 * 4096))
    assert large.goodput.value == pytest.approx(LEARN.rate(4, 4096) * large.statistical_efficiency.value)
    seconds = 8 * 4096 / LEARN.rate(4, 4096)
    assert large.time_to_target_s.value == pytest.approx(seconds)
    assert large.cpu_h_to_target.value == pytest.approx(5 * seconds / 3600)
    assert base.statistical_efficiency.value == 1 and base.goodput == base.env_steps_per_s
    assert same.goodput.value > same.env_steps_per_s.value  # the failed run is the reference's


def test_the_restricted_mean_is_kaplan_meiers_and_its_interval_a_bootstrap():
    frame = planted(Truth(cells=((2, 1024),), blocks=8, budget_steps=20_000, steps_noise=0.5, **QUIET), seed=2)
    (group,) = goodput(frame).groups
    (row,) = group.rows
    times = frame["env_steps_to_target"].fillna(group.horizon).to_numpy(dtype=float)
    reached = frame["env_steps_to_target"].notna().to_numpy(dtype=bool)
    assert 0 < row.n_censored == (~reached).sum() < 8
    assert row.steps_to_target.value == pytest.approx(restricted_mean(times, reached, horizon=group.horizon))
    assert row.steps_to_target.low < row.steps_to_target.value < row.steps_to_target.high
    assert row.steps_to_target.n == 8


def test_a_failed_run_is_censored_at_the_budget_and_not_where_it_broke_off():
    frame = planted(LEARN)
    early = frame.copy()
    early.loc[early["status"] == "failed", "env_steps"] = 2048
    assert goodput(early) == goodput(frame)


def test_an_emulated_run_learns_as_a_real_one_but_has_no_clock():
    frame = planted(Truth(cells=((2, 1024),), blocks=4, **QUIET))
    emulated = frame["seed"] > 2
    frame["fingerprint"] = [fingerprint(1024, execution="emulated" if each else "real") for each in emulated]
    frame.loc[emulated, "timing"] = "emulated"
    (group,) = goodput(frame).groups
    assert (group.rows[0].n, group.rows[0].n_timed) == (4, 2)


def test_times_of_two_kinds_of_hardware_are_not_pooled():
    frame = planted(Truth(cells=((2, 1024), (4, 1024)), blocks=3, **QUIET))
    moved = (frame["num_env_runners"] == 4) & (frame["seed"] == 3)
    frame["fingerprint"] = [fingerprint(1024, cpu_model="Faster" if each else "Planted CPU") for each in moved]
    frame.loc[moved, "timed_s"] /= 10
    found = goodput(frame)
    base, row = found.groups[0].rows
    assert (base.n_timed, row.n, row.n_timed) == (3, 3, 2)
    assert row.env_steps_per_s.value == pytest.approx(Truth().rate(4, 1024))
    assert found.notes == ("Times leave out 1 measured run on other hardware.",)


def test_a_group_that_never_reached_its_target_is_counted():
    never = made(*planted(Truth(cells=((2, 1024),), steps_min=1e9)).to_dict("records"))
    result = goodput(never)
    assert result.groups == () and result.excluded == {"no run of its setting reached the target": 3}
    single = goodput(planted(Truth(cells=((2, 1024),), blocks=1)))
    assert single.groups == () and single.excluded == {"the only run of its setting": 1}


def test_a_cell_that_never_reached_it_has_no_estimate_and_no_zero():
    frame = planted(Truth(cells=((2, 1024), (2, 4096)), steps_min=5_000, steps_noise=0.0, budget_steps=20_000))
    (group,) = goodput(frame).groups
    lost = group.rows[1]
    assert lost.n_censored == lost.n == 3
    assert lost.steps_to_target is lost.statistical_efficiency is lost.goodput is lost.time_to_target_s is None
    assert lost.env_steps_per_s is not None


def test_a_run_without_a_batch_is_counted_and_not_lost():
    frame = planted(Truth(cells=((2, 1024),), blocks=4, **QUIET))
    frame.loc[0, "train_batch_size"] = pd.NA
    result = goodput(frame)
    assert result.n == 3 and result.excluded == {"no fingerprint, scale or batch": 1}


def test_a_run_that_stands_for_more_runners_learns_at_their_scale():
    frame = planted(Truth(cells=((1, 1024),), blocks=4, **QUIET))
    frame = frame.assign(timing="emulated", stands_for_runners=pd.array([46] * 4, dtype="Int64"))
    (group,) = goodput(frame).groups
    assert group.reference == (46, 1024)
    assert [row.num_env_runners for row in group.rows] == [46]


def test_in_a_hold_up_study_a_setting_is_its_digest():
    frame = planted(Truth(cells=((2, 1024), (4, 2048)), blocks=2, **QUIET))
    frame["fingerprint"] = [fingerprint(int(batch), lr=float(batch)) for batch in frame["train_batch_size"]]
    assert len(goodput(frame).groups) == 2
    (group,) = goodput(frame.assign(digest="abc", variant="study")).groups
    assert group.label == "environment CartPole-v1, digest abc"
    assert [row.train_batch_size for row in group.rows] == [1024, 2048]


@pytest.mark.parametrize("changes", [{}, {"digest": "abc", "variant": "study"}], ids=["search", "hold-up"])
def test_trainings_of_two_lengths_are_not_pooled(changes):
    frame = planted(Truth(cells=((2, 1024),), blocks=4, **QUIET)).assign(max_iterations=[10, 10, 60, 60], **changes)
    first, second = goodput(frame).groups
    assert [first.label, second.label] == ["iterations 10", "iterations 60"]
    assert [group.rows[0].n for group in (first, second)] == [2, 2]


def test_the_order_of_rows_does_not_change_goodput():
    frame = planted(Truth(cells=((2, 1024), (4, 4096)), blocks=5, failed=2), seed=3)
    assert goodput(frame.sample(frac=1, random_state=4)) == goodput(frame)


def evaluations_of(frame, *, every):
    """Return evaluations at each multiple of `every`, at the target from the time to it on."""
    numbers = frame[["trial", "env_steps", "env_steps_to_target"]].fillna(10**9).to_numpy(float)
    rows = [
        {"trial": trial, "env_steps": step, "wall_time_s": step / 1000, "eval_return": 500.0 if step >= hit else 0.0}
        for trial, end, hit in numbers
        for step in np.arange(every, end + 1, every)
    ]
    types = {"trial": "Int64", "env_steps": "Int64", "wall_time_s": "Float64", "eval_return": "Float64"}
    return pd.DataFrame(rows).astype(types)


def test_the_interval_holds_the_env_steps_between_two_evaluations():
    truth = Truth(cells=((2, 1024), (2, 4096)), blocks=5, budget_steps=20 * 4096, **QUIET)
    frame = planted(truth)
    frame["env_steps_to_target"] = [40_000 if batch == 1024 else 80_000 for batch in frame["train_batch_size"]]
    (group,) = goodput(watched(frame, evaluations_of(frame, every=40_000), target=450.0)).groups
    base, large = group.rows
    assert group.resolution == 40_000
    assert (base.steps_to_target.value, base.steps_to_target.low, base.steps_to_target.high) == (40_000, 0, 40_000)
    assert (large.steps_to_target.low, large.steps_to_target.high) == pytest.approx((40_000, 80_000))
    found = large.statistical_efficiency  # 40,000 or less over 40,000 or more
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.0, 1.0))
    # The clock is exact here, and the reference may have got there at once.
    ends = (40_000 / truth.rate(2, 4096), 80_000 / truth.rate(2, 4096))
    assert (large.time_to_target_s.low, large.time_to_target_s.high) == pytest.approx(ends)
    assert base.time_to_target_s.low == 0 < base.time_to_target_s.value
    exactly = goodput(frame).groups[0].rows[0].steps_to_target  # where nobody has said since when
    assert exactly.low == exactly.high == 40_000


def test_a_run_that_ended_at_the_target_was_not_last_seen_below_it():
    frame = planted(Truth(cells=((2, 1024),), blocks=2, **QUIET))
    frame["env_steps"], frame["env_steps_to_target"] = 60_000, pd.array([40_000, pd.NA], dtype="Int64")
    seen = evaluations_of(frame, every=20_000)
    assert watched(frame, seen, target=450.0)[BEFORE].tolist() == [20_000, 60_000]
    assert watched(frame, seen, target=450.0)[TIME_BEFORE].tolist() == [20.0, 60.0]
    seen.loc[(seen["trial"] == frame["trial"][1]) & (seen["env_steps"] == 60_000), "eval_return"] = 500.0
    assert watched(frame, seen, target=450.0)[BEFORE].tolist() == [20_000, 40_000]
    assert watched(frame, seen, target=None)[BEFORE].tolist() == [20_000, 40_000]
    assert watched(frame, seen.iloc[:0], target=450.0)[BEFORE].tolist() == [0, 0]


def test_seeds_that_settings_were_chosen_by_are_not_pooled_with_those_of_the_confirmation():
    frame = planted(Truth(cells=((2, 1024),), blocks=6, **QUIET)).assign(digest="abc", variant="study")
    result = goodput(frame.assign(stage=["race", "search", *["confirm"] * 4]))
    assert result.groups[0].rows[0].n == 4 and result.notes == ()
    assert result.excluded == {"on seeds that settings were chosen by": 2}
    (note,) = goodput(frame.assign(stage="race")).notes
    assert note.startswith("Runs on seeds that settings were chosen by")
    assert goodput(frame).notes == ()


# Trials against runners


def side_by_side(name, n, rates, *, seed, start=0.0, **changes):
    changes = {"baseline": name, "started": start, "ended": start + 10.0, **changes}
    return [run(n, 1000 / rate, seed=seed, **changes) for rate in rates]


def test_a_block_gives_the_sum_of_its_trials_rates():
    rows = []
    for seed, factor in ((1, 1.0), (2, 2.0)):
        rows += side_by_side("allocation 1 x 8", 8, [1000 * factor], seed=seed)
        rows += side_by_side("allocation 2 x 3", 3, [700 * factor, 900 * factor], seed=seed)
    whole, halves = allocation(made(*rows))
    assert (whole.num_trials, whole.num_env_runners, whole.num_cpus, whole.n) == (1, 8, 9, 2)
    assert (halves.num_trials, halves.num_env_runners, halves.num_cpus) == (2, 3, 8)
    assert halves.env_steps_per_s.value == pytest.approx(1600 * np.sqrt(2))
    assert halves.env_steps_per_s_per_cpu.value == pytest.approx(200 * np.sqrt(2))
    assert halves.relative.value == pytest.approx(1.6)
    assert halves.relative.high - halves.relative.low == pytest.approx(0, abs=1e-9)  # a block's speed cancels
    # Trials that share the machine are no rows of strong scaling.
    assert strong_scaling(made(*rows)).excluded["ran beside other trials of its cell"] == 4


def test_an_incomplete_block_has_no_total():
    rows = side_by_side("allocation 2 x 3", 3, [700, 900], seed=1)
    rows += side_by_side("allocation 2 x 3", 3, [700], seed=2)
    rows += side_by_side("allocation 2 x 3", 3, [900], seed=2, status="failed", timing="tainted")
    rows += side_by_side("allocation 2 x 3", 3, [500], seed=3)
    rows += side_by_side("allocation 2 x 3", 3, [500], seed=3, start=99.0)
    (row,) = allocation(made(*rows))
    assert (row.n, row.n_failed) == (1, 1) and row.env_steps_per_s.value == pytest.approx(1600)
    assert not row.env_steps_per_s.has_interval
    assert row.excluded == {
        "another trial of its block is not measured": 1,
        "did not run beside the others of its block": 2,
        "failed": 1,
    }
    assert allocation(planted()) == ()


# Anchors


def test_two_points_have_a_slope_without_an_interval():
    found = slope([0.0, 2.0], [1.0, 4.0], level=0.9)
    assert (found.value, found.n, found.has_interval) == (1.5, 2, False)


def test_a_drift_is_flagged_and_its_absence_is_not():
    cells = ((2, 2048), (4, 2048))
    drifting = planted(Truth(cells=cells, repeats=2, blocks=4, drift=0.2, block_noise=0.0, noise=0.01))
    for found in anchors(drifting):
        assert found.drifting and found.slope.low < 0.2 < found.slope.high and "drifted by" in found.sentence
        assert found.slope.n == 8
    steady = planted(Truth(cells=cells, repeats=2, blocks=4, block_noise=0.0, noise=0.01))
    assert [found.drifting for found in anchors(steady)] == [False, False]


def test_of_a_throughput_study_only_the_anchor_is_looked_at():
    frame = planted(Truth(cells=((2, 2048), (4, 2048)), repeats=2))
    frame["baseline"] = ["anchor" if n == 4 else "n=2" for n in frame["num_env_runners"]]
    (found,) = anchors(frame)
    assert ", 4 runners: " in found.sentence
    assert anchors(planted(Truth())) == ()


def test_one_run_of_the_anchor_has_no_slope():
    frame = planted(Truth(cells=((2, 2048), (4, 2048)), blocks=1, **QUIET)).assign(baseline=["anchor", None])
    (found,) = anchors(frame)
    assert (found.slope, found.drifting) == (None, False)
    assert found.sentence.endswith("1 run, too few to see a drift.")


# Single numbers


def test_the_published_claim_of_two_nodes():
    # 1000 and 2920 steps/s on one and two nodes, read as "a 2.92x, super-linear speed-up".
    assert round(serial_fraction(2.92, 2), 3) == -0.315
    assert one_number(2.92, 2) == (
        "2.92x on 2x the nodes, n=1, no interval: Karp-Flatt fraction -0.315. It is negative: the nodes can give 2x at "
        "most, so at least 1.46x is not the nodes."
    )


def test_karp_and_flatts_own_table():
    # Karp and Flatt (1990), a program with a serial part of 0.1: S = 1 / (0.1 + 0.9 / p).
    for p in (2, 4, 8, 16):
        assert serial_fraction(1 / (0.1 + 0.9 / p), p) == pytest.approx(0.1)
    assert serial_fraction(10.256, 20) == pytest.approx(0.05, abs=1e-4)  # Amdahl's textbook value
    assert "more than 10.0x" in one_number(1 / (0.1 + 0.9 / 8), 8)
    assert "Ideal" in one_number(2, 2)


@pytest.mark.parametrize(("speed_up", "p", "code"), [(0, 2, "speed-up-not-positive"), (2, 1, "ratio-not-above-one")])
def test_an_impossible_number_is_refused(speed_up, p, code):
    with pytest.raises(AnalysisError) as raised:
        serial_fraction(speed_up, p)
    assert raised.value.code == code
