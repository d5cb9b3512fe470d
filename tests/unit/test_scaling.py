"""Strong and weak scaling, the confound guard and the decomposition, by value."""

import json
import re
import shlex
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.scaling.blocks import block_means, contrast, ratio_of_totals
from analysis.scaling.decomposition import cells_of, decompose, squares
from analysis.scaling.efficiency import karp_flatt_trend, reading
from analysis.scaling.fingerprint import differing, labels
from analysis.scaling.selection import select
from analysis.scaling.speed_up import strong_scaling, weak_scaling
from study.adopted.loading import load_space
from study.errors import AnalysisError
from tests.planted import Truth, as_frame, fingerprint, planted_runs
from tests.unit import tables_data

QUIET = {"noise": 0.0, "block_noise": 0.0, "phase_noise": 0.0}
STRONG = Truth(**QUIET)
SQUARE = ((16, 2000), (32, 2000), (16, 8000), (32, 8000))


def run(n, seconds, *, seed=1, batch=1000, iterations=4, **changes):
    counted = {"timed_iterations": iterations, "timed_env_steps": iterations * batch, "timed_s": iterations * seconds}
    given = {**counted, "fingerprint": fingerprint(batch), "timing": "measured", **changes}
    return tables_data.run(0, runners=n, batch=batch, seed=seed, iteration_time_s=seconds, **given)


def made(*rows):
    frame = as_frame(list(rows))
    frame["trial"] = pd.array(range(len(frame)), dtype="Int64")
    return frame


def planted(truth=STRONG, seed=0):
    return planted_runs(truth, np.random.default_rng(seed))


def only(result):
    (group,) = result.groups
    return group


def test_speed_up_efficiency_and_karp_flatt_of_a_worked_example():
    # T(1) = 10 s, T(4) = 4 s: S = 2.5, E_n = 0.625, E_P = 2.5 * 2 / 5 = 1, e = (1/2.5 - 1/4) / (3/4) = 0.2.
    group = only(strong_scaling(made(run(1, 10.0), run(4, 4.0))))
    base, row = group.rows
    assert (group.reference, group.reference_time_s.value) == (1, 10.0)
    assert base.speed_up.value == base.efficiency_n.value == base.efficiency_p.value == 1
    assert base.is_reference and base.karp_flatt is None and base.marginal is None
    assert row.speed_up.value == pytest.approx(2.5)
    assert row.efficiency_n.value == pytest.approx(0.625)
    assert row.efficiency_p.value == pytest.approx(1.0)
    assert row.karp_flatt.value == pytest.approx(0.2)
    assert row.marginal.value == pytest.approx(np.log(2.5) / np.log(5 / 2))
    assert row.env_steps_per_s.value == pytest.approx(250)
    assert not row.speed_up.has_interval and row.speed_up.n == 1


def test_a_ratio_is_paired_by_block_and_its_interval_is_students():
    times = {1: [10.0, 20.0, 40.0], 2: [6.0, 11.0, 25.0]}
    rows = [run(n, seconds, seed=seed) for n in times for seed, seconds in enumerate(times[n], 1)]
    row = only(strong_scaling(made(*rows), level=0.9)).rows[1]
    logs = np.log(np.array(times[1]) / np.array(times[2]))
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.9)
    assert row.speed_up.value == pytest.approx(np.exp(logs.mean()))
    assert (row.speed_up.low, row.speed_up.high) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))
    assert row.speed_up.n == 3
    # Karp-Flatt falls as the speed-up grows: the ends change places.
    assert row.karp_flatt.low == pytest.approx(2 / row.speed_up.high - 1)
    assert row.karp_flatt.high == pytest.approx(2 / row.speed_up.low - 1)


def test_repeated_runs_of_a_block_count_once():
    frame = made(run(1, 8.0), run(1, 2.0), run(2, 2.0), run(1, 4.0, seed=2), run(2, 2.0, seed=2))
    row = only(strong_scaling(frame)).rows[1]
    # Within block 1, the mean of ln 8 and ln 2 is ln 4: both blocks say 2.
    assert row.speed_up.value == pytest.approx(2) and row.speed_up.n == 2
    assert row.speed_up.high - row.speed_up.low == pytest.approx(0, abs=1e-12)


def test_without_common_seeds_the_cells_are_independent_samples():
    ones, others = [10.0, 12.0, 11.0], [6.0, 5.0, 6.5, 5.5]
    rows = [run(1, s, seed=i) for i, s in enumerate(ones)] + [run(2, s, seed=10 + i) for i, s in enumerate(others)]
    speed_up = only(strong_scaling(made(*rows))).rows[1].speed_up
    welch = stats.ttest_ind(np.log(ones), np.log(others), equal_var=False).confidence_interval(0.95)
    assert (speed_up.low, speed_up.high) == pytest.approx((np.exp(welch.low), np.exp(welch.high)))
    assert speed_up.method.startswith("Welch") and speed_up.n == 7


def test_one_common_block_is_a_pair_without_interval():
    rows = [run(1, 10.0, seed=1), run(2, 4.0, seed=1), run(2, 9.0, seed=2)]
    speed_up = only(strong_scaling(made(*rows))).rows[1].speed_up
    assert speed_up.value == pytest.approx(2.5) and not speed_up.has_interval


def test_runs_without_a_seed_are_never_pairs():
    rows = [run(n, 10.0 / n * factor, seed=None) for n in (1, 2) for factor in (1.0, 1.1, 0.95)]
    speed_up = only(strong_scaling(made(*rows))).rows[1].speed_up
    assert speed_up.method.startswith("Welch") and speed_up.has_interval


def test_a_rate_is_total_over_total():
    # 4 iterations of 1 s and 12 of 3 s: 16,000 steps in 40 s, not the mean of 1000 and 333.
    frame = made(run(1, 1.0), run(1, 3.0, iterations=12, seed=2), run(2, 1.0), run(2, 1.0, seed=2))
    row = only(strong_scaling(frame)).rows[0]
    assert row.env_steps_per_s.value == pytest.approx(400)
    assert row.iteration_time_s.value == pytest.approx(2.5)


def test_the_error_of_a_rate_is_cochrans():
    y, x = np.array([10.0, 14.0, 9.0, 20.0]), np.array([2.0, 3.0, 2.5, 4.0])
    found = ratio_of_totals(y, x, [1, 2, 3, 4], level=0.95)
    ratio = y.sum() / x.sum()
    error = np.sqrt(np.sum((y - ratio * x) ** 2) / 3 / 4) / x.mean()  # Cochran (6.13) without finite correction
    assert found.value == pytest.approx(ratio)
    assert np.log(found.high / ratio) == pytest.approx(stats.t.ppf(0.975, 3) * error / ratio)


def test_every_other_run_is_counted_under_its_reason():
    others = [
        run(2, 1.0, status="failed", timing="tainted", timed_s=None),
        run(2, 1.0, timing="oversubscribed"),
        run(2, 1.0, timing="emulated"),
        run(2, 1.0, timing="tainted"),
        run(2, 1.0, timing=None),
        run(2, 1.0, timed_iterations=0),
        run(2, 1.0, status="running", timing=None),
        run(2, 1.0, baseline="allocation 2 x 2"),
        run(2, 1.0, fingerprint=fingerprint(1000, lr=1.0)),
    ]
    result = strong_scaling(made(run(1, 2.0), run(2, 1.0), *others))
    assert result.excluded == {
        "failed": 1,
        "oversubscribed": 1,
        "emulated": 1,
        "tainted": 1,
        "timing unknown": 1,
        "no timed iterations": 1,
        "running": 1,
        "ran beside other trials of its cell": 1,
        "no run of equal workload at another scale": 1,
    }
    assert (result.n, result.n_failed) == (2, 1)
    assert [row.n_failed for row in only(result).rows] == [0, 1]
    assert only(result).rows[1].speed_up.value == pytest.approx(2)


def test_trials_that_share_the_cpus_of_one_are_no_scale():
    """The only runs of one runner are four side by side: a speed-up over them would be 4 where it is 2."""
    alone = [run(2, 2.0), run(4, 1.0)]
    beside = [run(1, 4.0, stage="measure", baseline="shared") for _ in range(4)]
    result = strong_scaling(made(*alone, *beside))
    assert result.excluded == {"ran beside other trials of its cell": 4}
    assert [(row.num_env_runners, row.speed_up.value) for row in only(result).rows] == [(2, 1.0), (4, 2.0)]
    # A person's own cell may have the name: it is one of the measured stage alone that has this meaning.
    assert len(only(strong_scaling(made(*alone, run(1, 4.0, baseline="shared")))).rows) == 3


def test_the_same_scale_on_other_nodes_is_a_row_of_its_own():
    rows = [run(2, 4.0), run(4, 2.0), run(4, 3.0, num_nodes=2)]
    found = [(row.num_nodes, row.speed_up.value) for row in only(strong_scaling(made(*rows))).rows]
    assert found == [(1, 1.0), (1, pytest.approx(2.0)), (2, pytest.approx(4 / 3))]


def test_a_gain_is_over_the_next_smaller_scale_on_as_many_nodes():
    """A node more makes each iteration twice as long: compared with a row of other nodes, eight would gain nothing."""
    cells = ((4, 1, 4.0), (4, 2, 8.0), (8, 1, 2.0), (8, 2, 4.0), (16, 3, 3.0))
    rows = [run(n, seconds, num_nodes=nodes, seed=seed) for n, nodes, seconds in cells for seed in (1, 2)]
    found = only(strong_scaling(made(*rows))).rows
    assert [row.before for row in found] == [None, None, 0, 1, 3]
    assert [row.gain and row.gain.value for row in found] == [None, None, *map(pytest.approx, (2, 2, 4 / 3))]
    assert found[2].marginal.value == pytest.approx(np.log(2) / np.log(9 / 5)) == pytest.approx(found[3].marginal.value)


def test_a_growing_overhead_shows_as_a_rising_fraction():
    truth = Truth(sync_per_runner_s=0.02, noise=0.002)
    runs = planted(truth)
    group = only(strong_scaling(runs))
    cells = [cell for _, cell in select(runs).runs.groupby("num_env_runners")]
    times = [block_means(cell["log_time"], cell["block"].tolist()) for cell in cells]
    trend = karp_flatt_trend(times, [2, 4, 8, 16], level=0.95)
    assert trend.low <= truth.karp_flatt(16, 2, 2048) - truth.karp_flatt(4, 2, 2048) <= trend.high
    assert "rising" in group.reading and "overhead grows" in group.reading


def test_a_negative_fraction_makes_the_comparison_invalid():
    rows = [run(n, 10.0 / n**1.5 * (1 + 0.001 * seed), seed=seed) for n in (1, 2, 4) for seed in (1, 2, 3)]
    group = only(strong_scaling(made(*rows)))
    assert group.rows[1].karp_flatt.high < 0
    assert "invalid" in group.reading and "at 2 and 4 runners" in group.reading


def test_oversteps_of_the_batch_are_told():
    frame = made(run(1, 4.0), run(46, 1.0, timed_env_steps=4 * 1012))
    (note,) = only(strong_scaling(frame)).notes
    assert note.startswith("At 46 runners an iteration held 1,012 env steps, +1.2%")


WEAK = Truth(cells=((1, 256), (2, 512), (4, 1024), (4, 256)), **QUIET)


def test_weak_scaling_compares_equal_steps_per_runner():
    result = weak_scaling(planted(WEAK))
    group = only(result)
    assert [row.train_batch_size for row in group.rows] == [256, 512, 1024]
    assert result.excluded == {"no run of equal workload at another scale": 3}
    expected = WEAK.iteration_s(1, 256) / WEAK.iteration_s(4, 1024)
    assert group.rows[2].efficiency_n.value == pytest.approx(expected)
    assert group.rows[2].speed_up.value == pytest.approx(WEAK.rate(4, 1024) / WEAK.rate(1, 256))
    assert group.rows[2].karp_flatt is None and group.reading == "" and result.refusals == ()
    assert json.loads(group.fingerprint)["env_steps_per_runner"] == 256


def test_confounded_scales_are_refused_with_the_command_that_settles_it():
    result = strong_scaling(planted(Truth(cells=((16, 2000), (32, 8000)))), space="lunarlander_nodes.yaml")
    (refusal,) = result.refusals
    assert result.groups == () and refusal.decomposition is None
    assert differing(refusal.first.fingerprint, refusal.second.fingerprint) == {"train_batch_size": (2000, 8000)}
    assert [(cell.num_env_runners, cell.train_batch_size) for cell in refusal.missing] == [(32, 2000), (16, 8000)]
    assert "32 runners at batch 2,000 and 16 runners at batch 8,000" in refusal.reason
    assert refusal.command.startswith(
        "python run_study.py --space lunarlander_nodes.yaml --name planted_missing --set "
    )


def load(space, changes):
    return load_space(space, overrides=changes)


def overrides(line):
    words = shlex.split(line)
    return words[words.index("--space") + 1], [words[at + 1] for at, word in enumerate(words) if word == "--set"]


def test_with_several_settings_changed_there_is_a_command_for_each_workload():
    rows = [
        run(16, 1.0, batch=2000, fingerprint=fingerprint(2000, lr=5e-5)),
        run(32, 1.0, batch=8000, fingerprint=fingerprint(8000, lr=1e-4)),
    ]
    (refusal,) = strong_scaling(made(*rows), space="lunarlander_nodes.yaml").refusals
    specs = [load(*overrides(line)) for line in refusal.command.splitlines()]
    found = [(list(spec.scales), spec.fixed["train_batch_size"], spec.fixed["lr"]) for spec in specs]
    assert found == [([16, 32], 2000, 5e-5), ([16, 32], 8000, 1e-4)]


def test_runners_with_other_learners_are_refused_with_commands_that_settle_it():
    """One cell has its update in the main process, the other on two learners: not the runners' doing alone."""
    rows = [
        run(2, 4.0, fingerprint=fingerprint(1000, num_learners=0)),
        run(4, 1.0, fingerprint=fingerprint(1000, num_learners=2)),
    ]
    result = strong_scaling(made(*rows), space="cartpole_sweep.yaml")
    (refusal,) = result.refusals
    assert result.groups == ()
    assert differing(refusal.first.fingerprint, refusal.second.fingerprint) == {"num_learners": (0, 2)}
    assert "4 runners at learners 0 and 2 runners at learners 2" in refusal.reason
    specs = [load(*overrides(line)) for line in refusal.command.replace("cartpole_sweep", "waiting").splitlines()]
    assert [(list(spec.scales), spec.resources.num_learners) for spec in specs] == [([2, 4], 0), ([2, 4], 2)]


def test_the_corners_of_a_complete_square_are_decomposed():
    truth = Truth(cells=SQUARE, blocks=4)
    result = strong_scaling(planted(truth))
    assert len(result.groups) == 2
    (refusal,) = result.refusals
    assert (refusal.first.train_batch_size, refusal.second.train_batch_size) == (2000, 8000)
    split = refusal.decomposition
    assert split.total_log.value == pytest.approx(split.parallel_log.value + split.batch_log.value)
    assert split.total.value == pytest.approx(split.parallel.value * split.batch.value)
    for found, expected in (
        (split.parallel_log, truth.parallel_log((16, 2000), (32, 8000))),
        (split.batch_log, truth.batch_log((16, 2000), (32, 8000))),
    ):
        assert found.low < expected < found.high and found.n == 4
    assert "so it is no efficiency" in refusal.reason and refusal.missing == () and refusal.command == ""


def test_a_decomposition_by_hand():
    rates = {(16, 2000): 1000, (32, 2000): 1500, (16, 8000): 1600, (32, 8000): 2920}
    rows = [
        run(n, batch / rate * drift, batch=batch, seed=seed)
        for (n, batch), rate in rates.items()
        for seed, drift in ((1, 1.0), (2, 1.3))  # a block's slowness cancels
    ]
    frame = made(*rows)
    cells = cells_of(select(frame).runs)
    split = decompose(select(frame).runs, cells[0], cells[-1], level=0.95)
    assert split.total.value == pytest.approx(2.92)
    assert split.parallel.value == pytest.approx(np.sqrt(1.5 * 2920 / 1600))
    assert split.batch.value == pytest.approx(np.sqrt(1.6 * 2920 / 1500))
    assert split.interaction.value == pytest.approx(2920 / 1600 / 1.5)
    assert split.parallel_at_first.value == pytest.approx(1.5)
    assert split.parallel_at_second.value == pytest.approx(2920 / 1600)
    assert split.parallel.high - split.parallel.low == pytest.approx(0, abs=1e-9)
    assert "2.92 [2.92, 2.92]x env steps/s" in split.sentence and "16 -> 32" in split.sentence
    assert list(squares(cells)) == [(cells[0], cells[-1])]


def test_hardware_is_named_and_not_decomposed():
    rows = [run(16, 2.0), run(32, 1.0, fingerprint=fingerprint(1000, cpu_model="Another", smt=True))]
    (refusal,) = strong_scaling(made(*rows)).refusals
    assert differing(refusal.first.fingerprint, refusal.second.fingerprint) == {
        "cpu_model": ("Planted CPU", "Another"),
        "smt": ("absent", True),
    }
    assert refusal.decomposition is None and refusal.missing == () and refusal.command == ""
    assert "same hardware" in refusal.reason


def test_of_many_workloads_the_most_alike_pair_is_told():
    rows = [
        run(1, 1.0, fingerprint=fingerprint(1000, cpu_model="A")),
        run(1, 1.0, fingerprint=fingerprint(1000, lr=1.0, num_epochs=3)),
        run(2, 1.0, fingerprint=fingerprint(1000, lr=2.0, num_epochs=3)),
    ]
    (refusal,) = strong_scaling(made(*rows)).refusals
    assert differing(refusal.first.fingerprint, refusal.second.fingerprint) == {"lr": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((), "No run is finished with a measured clock \\(there is none at all\\)"),
        ((run(1, 1.0, status="failed"), run(2, 1.0, status="failed")), "measured clock \\(2 failed\\)"),
        ((run(1, 1.0, timing="oversubscribed"),), "measured clock \\(1 oversubscribed\\)"),
        ((run(1, 1.0),), "one scale only \\(1 runner, batch 1,000; one measured run\\)"),
        ((run(4, 1.0), run(4, 1.1, seed=2)), "one scale only \\(4 runners, batch 1,000; 2 measured runs\\)"),
    ],
)
def test_where_there_is_nothing_to_compare_it_says_so(rows, reason):
    frame = made(*rows) if rows else as_frame([])
    for result in (strong_scaling(frame), weak_scaling(frame)):
        (refusal,) = result.refusals
        assert result.groups == () and re.search(reason, refusal.reason)


def test_a_strong_study_says_once_that_it_has_no_weak_scaling():
    (refusal,) = weak_scaling(planted()).refusals
    assert [(cell.num_env_runners, cell.train_batch_size) for cell in refusal.missing] == [(4, 4096)]
    assert "In weak scaling the batch grows with the runners" in refusal.reason


def test_differing_fields_are_told_by_their_dotted_names():
    one = json.dumps({"environment": {"id": "A", "kwargs": {}}, "lr": 1.0})
    two = json.dumps({"environment": {"id": "B", "kwargs": {}}, "lr": 1.0, "smt": False})
    assert differing(one, two) == {"environment.id": ("A", "B"), "smt": ("absent", False)}
    assert labels([one, two]) == ["environment A", "environment B, smt False"]
    with pytest.raises(AnalysisError, match="must be the JSON text of an object"):
        differing("[]", one)


def test_the_general_contrast_has_satterthwaites_degrees():
    cells = [{("a", i): v for i, v in enumerate(values)} for values in ([1.0, 1.2, 0.9], [2.0, 2.1], [0.5, 0.4, 0.6])]
    cells = [{(k[0] + str(at), k[1]): v for k, v in cell.items()} for at, cell in enumerate(cells)]
    weights = (1.0, -2.0, 0.5)
    found = contrast(cells, weights, level=0.9)
    samples = [np.array(list(cell.values())) for cell in cells]
    parts = [w**2 * s.var(ddof=1) / s.size for w, s in zip(weights, samples, strict=True)]
    degrees = sum(parts) ** 2 / sum(p**2 / (s.size - 1) for p, s in zip(parts, samples, strict=True))
    assert found.value == pytest.approx(sum(w * s.mean() for w, s in zip(weights, samples, strict=True)))
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.95, degrees) * np.sqrt(sum(parts)))


def test_a_trend_needs_three_scales_and_a_common_block():
    logs = {1: 0.0, 2: 0.1}
    assert karp_flatt_trend([logs, logs], [1, 2], level=0.9) is None
    assert karp_flatt_trend([{1: 0.0}, {2: 0.0}, {3: 0.0}], [1, 2, 4], level=0.9) is None
    assert reading([], None, reference=1) == ""


@settings(max_examples=8, deadline=None)
@given(st.floats(0.01, 100), st.randoms(use_true_random=False))
def test_neither_the_unit_of_time_nor_the_order_of_rows_matters(factor, random):
    frame = planted(Truth(cells=((1, 256), (2, 256), (2, 512), (1, 512)), blocks=3), seed=3)
    order = list(range(len(frame)))
    random.shuffle(order)
    shuffled = frame.iloc[order].reset_index(drop=True)
    assert strong_scaling(shuffled) == strong_scaling(frame)
    assert weak_scaling(shuffled) == weak_scaling(frame)
    slower = frame.assign(timed_s=frame["timed_s"] * factor)
    for before, after in zip(strong_scaling(frame).groups, strong_scaling(slower).groups, strict=True):
        for row, scaled in zip(before.rows, after.rows, strict=True):
            for name in ("speed_up", "efficiency_n", "efficiency_p"):
                one, two = getattr(row, name), getattr(scaled, name)
                assert (two.value, two.low, two.high) == pytest.approx((one.value, one.low, one.high))
            assert scaled.iteration_time_s.value == pytest.approx(factor * row.iteration_time_s.value)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([1, 2, 7]), st.integers(1, 4))
def test_a_failed_trial_changes_the_number_of_failures_and_nothing_else(scale, seed):
    frame = planted(Truth(cells=((1, 256), (2, 256))), seed=4)
    failed = run(scale, 1.0, seed=seed, batch=256, status="failed", timing="tainted", timed_s=None)
    more = pd.concat([frame, made(failed)], ignore_index=True)
    before, after = strong_scaling(frame), strong_scaling(more)
    assert after.n_failed == before.n_failed + 1 and after.excluded == {"failed": 1}

    def without_failures(result):
        groups = tuple(
            replace(group, rows=tuple(replace(row, n_failed=0) for row in group.rows)) for group in result.groups
        )
        return replace(result, groups=groups, n_failed=0, excluded={})

    assert without_failures(after) == without_failures(before)
