"""Rules of choosing a setting, replayed on tables with a planted truth."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from study.designs.holdup.replay import replay, replay_table
from study.designs.holdup.replay import run as module
from study.designs.holdup.replay.protocol import protocol
from study.designs.holdup.replay.run import OURS, STRATEGIES
from study.designs.holdup.replay.strategies import (
    FREE,
    Purse,
    draw_roles,
    draw_study,
    fixed_repeats,
    halving,
    roles_of,
    single_seed,
)
from study.designs.holdup.replay.table import SMALL, TARGET, ScoreTable, score_table
from study.errors import AnalysisError
from study.space.holdup import HoldUpSpec
from tests import synthetic
from tests.spaces import spec

SIZES = {
    "num_settings": 32,
    "race": {"num_settings": 8, "blocks": [1, 1, 2]},
    "stress": {"num_settings": 3},
    "rank_seeds": {"first": 101, "count": 4},
}
HOLDUP = HoldUpSpec.model_validate({"target_scale": 46, "small_scale": 10, **SIZES})
LARGE, LITTLE = 46, 10
SOLVED = 0.9


def table(target, small=None, *, cost=1.0, **changes):
    """Return a table from scores, shape (settings, seeds); solved from 0.9 on."""
    score = np.stack([np.asarray(target, float), np.asarray(target if small is None else small, float)])
    content = {
        "settings": tuple(f"s{number:02d}" for number in range(score.shape[1])),
        "seeds": tuple(range(1, score.shape[2] + 1)),
        "target": LARGE,
        "small": LITTLE,
        "score": score,
        "last_score": score,
        "solved": score >= SOLVED,
        "cost": np.broadcast_to(cost, score.shape).astype(float),
    }
    return ScoreTable(**(content | changes))


def noisy(rng, num_settings=24, num_seeds=8):
    """Return a table in which many settings miss the target now and then at the target scale."""
    quality, failing = rng.uniform(0.9, 1, num_settings), rng.uniform(0, 0.5, num_settings) * rng.integers(2)
    shape = (num_settings, num_seeds)

    def scores(share):
        sound = np.clip(quality[:, None] + 0.02 * rng.standard_normal(shape), 0, 1)
        return np.where(rng.random(shape) < share[:, None], rng.uniform(0, 0.8, shape), sound)

    return table(scores(failing), scores(failing / 4), cost=rng.uniform(5, 25, (2, *shape)))


def draw_of(scores, seed=0):
    columns = np.arange(len(scores.seeds))
    return draw_study(scores, columns, roles_of(len(columns), HOLDUP), HOLDUP, np.random.default_rng(seed))


def by_strategy(result):
    return {each.strategy: each for each in result.strategies}


def near(value, wanted, num_replays, spread=0.5):
    assert value == pytest.approx(wanted, abs=4 * spread / math.sqrt(num_replays))


# A planted truth


TRAP, STEADY = [1.0, 1.0, 0.0, 0.0], [0.95, 0.95, 0.95, 0.95]


def test_a_lucky_trap_is_found_as_often_as_calculation_says():
    # Of four seeds one tunes, two rank, one judges. The one tune seed likes the trap in half of the replays, and then
    # one of the three other seeds likes it too: P = 1/2 * 1/3 + 1/2 = 2/3, and its mean there is 1/3.
    scores = table([TRAP, STEADY], [STEADY, STEADY])
    strategies = {name: strategy for name, strategy in STRATEGIES.items() if name != "successive halving"}
    found = by_strategy(replay_table(scores, num_replays=400, budget_cpu_s=100.0, strategies=strategies, holdup=HOLDUP))
    single = found["one seed, best score"]
    near(single.holds_up.value, 2 / 3, 400)
    near(single.holds_up_on_all.value, 1 / 2, 400)
    near(single.regret.value, 0.5 * (0.95 - 1 / 3), 400)
    # Three seeds never put the trap above 2/3. The two rank seeds both like it in one replay of six.
    three = found["three seeds, best mean"]
    assert (three.holds_up.value, three.regret.value) == (1.0, pytest.approx(0.0))
    near(found[OURS].holds_up.value, 5 / 6, 400)
    near(single.ratio.value, (5 / 6) / (2 / 3), 400, spread=1.0)
    near(found["random pick"].holds_up.value, 0.5 * 0.5 + 0.5, 400)
    assert found["oracle"].holds_up.value == 1.0
    assert found[OURS].ratio is None


def enumerated(scores, num_looks):
    """Return P(pick holds up) and regret by enumeration: the mean of the first looks decides. Second implementation."""
    target, small = scores.score[TARGET], scores.score[SMALL]
    count = target.shape[1]
    tune, rank, judge = roles_of(count, HOLDUP)
    passed, regrets = [], []
    for choose in itertools.permutations(range(count), min(num_looks, tune + rank)):
        left = [seed for seed in range(count) if seed not in choose]
        pick = max(range(len(target)), key=lambda each: sum(target[each][seed] for seed in choose))
        for judges in itertools.combinations(left, judge):
            values = [target[pick][seed] for seed in judges]
            mean = sum(values) / judge
            solved = sum(value >= SOLVED for value in values) / judge
            passed.append(mean >= max(row.mean() for row in small) - 0.05 and solved >= 0.95)
            regrets.append(max(row.mean() for row in target) - mean)
    return np.mean(passed), np.mean(regrets)


@pytest.mark.parametrize(("strategy", "num_looks"), [(single_seed, 1), (fixed_repeats, 3)])
def test_probability_and_regret_agree_with_enumeration(strategy, num_looks):
    rng = np.random.default_rng(5)
    scores = table(np.where(rng.random((4, 6)) < 0.4, 0.3, 0.95) + rng.uniform(0, 0.04, (4, 6)))
    chance, regret = enumerated(scores, num_looks)
    assert 0.1 < chance < 0.9
    found = replay_table(scores, num_replays=1000, budget_cpu_s=100.0, strategies={"strategy": strategy}).strategies[0]
    near(found.holds_up.value, chance, 1000)
    near(found.regret.value, regret, 1000)


def test_each_part_of_holding_up_is_needed():
    def chance(target, small):
        strategies = {"random pick": STRATEGIES["random pick"]}
        return (
            replay_table(table([target] * 2, [small] * 2), num_replays=80, strategies=strategies)
            .strategies[0]
            .holds_up.value
        )

    good = [0.96] * 4
    assert chance(good, good) == 1
    assert chance([0.92] * 4, good) == 1  # within the tolerance, and solved
    assert chance([0.92] * 4, [0.98] * 4) == 0  # solved, but too far below the small scale
    assert chance([0.89] * 4, [0.9] * 4) == 0  # near, but never solved
    assert 0 < chance([1.0, 1.0, 1.0, 0.0], [0.5] * 4) < 1


def test_equal_settings_leave_nothing_to_choose():
    row = [1.0, 0.95, 0.3, 1.0, 0.92, 0.5, 1.0, 0.97]
    result = replay_table(table([row] * 6), num_replays=160, budget_cpu_s=100.0)
    assert len({each.holds_up.value for each in result.strategies}) == 1
    near(
        result.strategies[0].holds_up.value, math.comb(6, 2) / math.comb(8, 2), 160
    )  # both judges among the six that solve
    assert all(each.ratio.value == 1 for each in result.strategies[1:])


# Equal money


@pytest.mark.parametrize("name", list(STRATEGIES))
@pytest.mark.parametrize("limit", [0.0, 3.0, 60.0, 333.0, 900.0, 1500.0])
def test_no_rule_spends_more_than_it_has(name, limit):
    for seed in range(3):
        draw = draw_of(noisy(np.random.default_rng(seed)), seed)
        purse = Purse(limit=limit)
        pick = STRATEGIES[name](draw, purse)
        assert 0 <= purse.spent <= limit
        if limit < 5 and name != "oracle":
            assert pick == draw.order[0]  # not one trial: a blind pick
        assert (purse.spent > 0) == (limit > 30 and name not in FREE)


@pytest.fixture(scope="module")
def report():
    return replay_table(noisy(np.random.default_rng(3)), num_replays=80)


def test_the_default_budget_is_what_our_protocol_needs_and_binds_all(report):
    assert all(each.most_spent_cpu_s <= report.budget_cpu_s for each in report.strategies)
    assert by_strategy(report)[OURS].spent_cpu_s > 0.8 * report.budget_cpu_s
    notes = " ".join(report.notes)
    assert "`one seed, best score` never spends more than" in notes
    assert f"`{OURS}`" not in notes
    assert "random pick" not in notes


def test_our_protocol_runs_the_trials_that_its_sizes_say():
    for seed in range(5):
        scores = replace(noisy(np.random.default_rng(seed)), cost=np.ones((2, 24, 8)))
        purse = Purse(limit=math.inf)
        protocol(draw_of(scores, seed), purse)
        searched = 24  # the table has no more
        race = 8 * 1 + 4 * 1 + 3 * 2  # never fewer than the three of the stress
        calibration = 1
        fixed = calibration + searched + race
        assert fixed + 3 * 4 <= purse.spent <= fixed + 6 * 4  # 3 to 6 settings at the small scale


def test_short_of_money_our_protocol_cuts_the_search_and_not_the_race():
    scores = replace(noisy(np.random.default_rng(1)), cost=np.ones((2, 24, 8)))
    later = 18 + 24
    seen = []

    class Watching(Purse):
        def pays(self, cost):
            seen.append(self.spent)
            return Purse.pays(self, cost)

    protocol(draw_of(scores), Watching(limit=60.0))
    assert 60.0 - later + 18 <= len(seen) <= 60


def test_halving_gives_twice_the_looks_to_half_the_settings():
    purse = Purse(limit=math.inf)
    scores = table(np.random.default_rng(0).uniform(0.5, 1, (24, 8)))
    draw = draw_of(scores)
    pick = halving(draw, purse)
    assert purse.spent == 24 * 1 + 12 * 1 + 6 * 2 + 3 * 2  # 1, 2, 4 and all 6 seeds that choosing has
    seeds = [*draw.tune, *draw.rank]
    alive = list(range(24))
    for looks, kept in ((1, 12), (2, 6), (4, 3), (6, 1)):
        alive = sorted(alive, key=lambda each: -scores.score[TARGET, each, seeds[:looks]].mean())[:kept]
    assert [pick] == alive


# The firewall


@pytest.mark.parametrize("num_seeds", [3, 4, 5, 8, 12])
def test_no_seed_both_chooses_and_judges(num_seeds):
    rng = np.random.default_rng(num_seeds)
    roles = roles_of(num_seeds, HOLDUP)
    assert sum(roles) == num_seeds
    assert min(roles) >= 1
    for _ in range(200):
        columns = rng.integers(num_seeds, size=num_seeds)
        for seeds in (np.arange(num_seeds), columns if np.ptp(columns) else np.arange(num_seeds)):
            choose, judge = draw_roles(seeds, roles, rng)
            assert len(choose) == roles.tune + roles.rank
            assert 1 <= len(judge) <= roles.judge
            assert not set(seeds[choose]) & set(seeds[judge])
        assert len(set(choose)) + len(set(judge)) <= num_seeds


def test_every_seed_plays_its_role_once_on_the_table_itself():
    choose, judge = draw_roles(np.arange(8), roles_of(8, HOLDUP), np.random.default_rng(0))
    assert sorted([*choose, *judge]) == list(range(8))
    assert len(judge) == 2


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "oracle"])
def test_what_judges_have_no_say_in_the_choice(name):
    for seed in range(5):
        scores = noisy(np.random.default_rng(seed))
        draw = draw_of(scores, seed)
        judge = list(draw.judge)
        changed = scores.score.copy()
        changed[..., judge] = np.random.default_rng(99).uniform(0, 1.2, changed[..., judge].shape)
        other = replace(scores, score=changed, last_score=changed, solved=changed >= SOLVED)
        original = replace(scores, last_score=scores.score)
        picks = {STRATEGIES[name](replace(draw, table=each), Purse(limit=1000.0)) for each in (original, other)}
        assert len(picks) == 1


# Records


SEEDS, SCALES = (1, 2, 3, 4), (2, 4)
GRID = [{"minibatch_size": minibatch, "lr": lr} for minibatch in (32, 64) for lr in (0.001, 0.01)]


def study(path, trials, *, seeds=SEEDS, **changes):
    """Write a study of a grid with (scale, setting, seed, final return or None for a failure) for every trial."""
    space = spec(
        **changes,
        parameters__num_env_runners=list(SCALES),
        parameters__train_batch_size=400,
        parameters__lr=[0.001, 0.01],
        parameters__minibatch_size=[32, 64],
        search={"sampler": "grid", "seeds": list(seeds), "sampler_seed": seeds[0]},  # as `--replicate` sets both
    )
    folder = synthetic.make_folder(path, of=space, name="table")
    synthetic.append(folder, *(record for number, trial in enumerate(trials) for record in records(number, *trial)))
    return path


def records(number, scale, setting, seed, final):
    proposed = dict(reversed(setting.items())) if seed % 2 else setting
    whole = {"num_env_runners": scale, "train_batch_size": 400, **setting}
    yield replace(synthetic.started(number, runners=scale), seed=seed, setting=whole, proposed=proposed)
    if final is not None:
        returns = [final] * 4 + [final - 50.0] + [0.0] * 5  # the episodes after the fifth are not seen
        yield replace(synthetic.evaluation(number, 1), progress=1.0, returns=returns)
    summary = {"score": 0.0 if final is None else final / 500, "final_return": final}
    ended = synthetic.ended(number, "failed" if final is None else "finished")
    yield replace(ended, summary=summary | {"cpu_s_spent": 3.0 + scale + 0.1 * seed})


def complete():
    rng = np.random.default_rng(0)
    return [
        (scale, setting, seed, float(rng.integers(300, 500))) for scale in SCALES for setting in GRID for seed in SEEDS
    ]


def read(path, **options):
    return score_table(path, target=4, small=2, **options)


def test_a_table_is_read_by_setting_seed_and_scale(tmp_path):
    trials = complete()
    scores = read(study(tmp_path / "study", trials))
    assert scores.settings == tuple(f"lr={lr} minibatch_size={size}" for lr in (0.001, 0.01) for size in (32, 64))
    assert (scores.seeds, scores.num_failed, scores.left_out) == (SEEDS, 0, ())
    for scale, setting, seed, final_return in trials:
        name = f"lr={setting['lr']} minibatch_size={setting['minibatch_size']}"
        cell = (TARGET if scale == 4 else SMALL, scores.settings.index(name), SEEDS.index(seed))
        assert scores.score[cell] == final_return / 500
        assert scores.solved[cell] == (final_return >= 450)
        assert scores.cost[cell] == pytest.approx(3.0 + scale + 0.1 * seed)
        assert scores.last_score[cell] == pytest.approx((final_return - 10) / 500)


def test_a_table_can_be_recorded_in_parts(tmp_path):
    trials = complete()
    parts = []
    for seeds in ((1, 2), (3, 4)):
        parts.append(study(tmp_path / f"{seeds}", [trial for trial in trials if trial[2] in seeds], seeds=seeds))
    whole, of_parts = read(study(tmp_path / "whole", trials)), score_table(*parts, target=4, small=2)
    assert of_parts.seeds == whole.seeds == SEEDS
    for name in ("score", "last_score", "solved", "cost"):
        assert (getattr(of_parts, name) == getattr(whole, name)).all()


def test_the_order_of_the_records_changes_nothing(tmp_path):
    trials = complete()
    shuffled = [trials[place] for place in np.random.default_rng(1).permutation(len(trials))]
    results = [
        replay(study(tmp_path / name, each), target=4, small=2, num_replays=80)
        for name, each in (("one", trials), ("two", shuffled))
    ]
    assert results[0] == results[1]
    assert results[0].seeds == SEEDS
    other = replay(tmp_path / "one", target=4, small=2, num_replays=80, seed=1)
    assert [each.regret for each in other.strategies] != [each.regret for each in results[0].strategies]


def test_a_failed_trial_lowers_its_setting_and_nothing_else(tmp_path):
    trials = [(scale, setting, seed, 480.0) for scale, setting, seed, _ in complete()]
    place = next(n for n, trial in enumerate(trials) if trial[:3] == (4, GRID[0], 2))
    failing = [*trials[:place], (4, GRID[0], 2, None), *trials[place + 1 :]]
    sound, failed = read(study(tmp_path / "sound", trials)), read(study(tmp_path / "failed", failing))
    assert failed.num_failed == 1
    cell = (TARGET, failed.settings.index("lr=0.001 minibatch_size=32"), 1)
    assert (failed.score[cell], failed.last_score[cell], failed.solved[cell]) == (0, 0, False)
    assert failed.cost[cell] == sound.cost[cell] > 0
    assert (failed.score != sound.score).sum() == (failed.solved != sound.solved).sum() == 1
    strategies = {"random pick": STRATEGIES["random pick"]}
    sure, less = (
        replay_table(each, num_replays=400, budget_cpu_s=1.0, strategies=strategies).strategies[0]
        for each in (sound, failed)
    )
    assert sure.holds_up.value == 1
    near(less.holds_up.value, 1 - 1 / 4 * 1 / 4, 400)
    near(less.holds_up_on_all.value, 1 - 1 / 4, 400)
    assert less.regret.value > sure.regret.value == pytest.approx(0)


def test_a_return_that_is_not_a_number_is_a_score_of_0(tmp_path):
    trials = complete()
    broken = [(*trials[0][:3], math.nan), *trials[1:]]
    sound, found = read(study(tmp_path / "sound", trials)), read(study(tmp_path / "broken", broken))
    ((cell,),) = (np.argwhere(sound.score != found.score).tolist(),)
    assert [array[tuple(cell)] for array in (found.score, found.last_score, found.solved)] == [0, 0, False]


@pytest.mark.parametrize("missing", [("floor", "reference"), ("target",)])
def test_a_study_without_scores_is_refused(missing, tmp_path):
    without = {f"environment__{name}": None for name in missing}
    with pytest.raises(AnalysisError, match="a replay compares scores"):
        read(study(tmp_path / "study", complete(), **without))


def test_an_incomplete_table_is_refused_with_what_is_missing(tmp_path):
    trials = complete()
    gone = [trial for trial in trials if trial[:3] == (4, GRID[3], 2) or trial[2] == 4]
    path = study(tmp_path / "study", [trial for trial in trials if trial not in gone])
    with pytest.raises(AnalysisError) as refused:
        read(path)
    message = str(refused.value)
    assert "got 9 of 32 trials missing: seed 2, 4 runners, lr=0.01 minibatch_size=64; seed 4, 4 runners," in message
    assert "; and 4 more" in message
    assert "complete seeds (1, 3)" in message
    scores = read(path, complete_seeds_only=True)
    assert (scores.seeds, scores.left_out, scores.score.shape) == ((1, 3), (2, 4), (2, 4, 2))
    with pytest.raises(AnalysisError, match="3 in all"):
        replay(path, target=4, small=2, complete_seeds_only=True)


def test_what_is_not_a_table_is_refused(tmp_path):
    with pytest.raises(AnalysisError, match="must be the folder of a study"):
        read(tmp_path)
    trials = complete()
    one, other = study(tmp_path / "one", trials), study(tmp_path / "other", trials, environment__target=460)
    with pytest.raises(AnalysisError, match="every cell once"):
        score_table(one, one, target=4, small=2)
    with pytest.raises(AnalysisError, match="the parts of a table ask the same"):
        score_table(one, other, target=4, small=2)
    path = study(tmp_path / "study", [*trials, trials[5]])
    with pytest.raises(AnalysisError, match=r"every cell once, got trials \[5, 32\] for seed 2, 2 runners"):
        read(path)
    with pytest.raises(AnalysisError, match="two different scales of the study"):
        score_table(path, target=46, small=2)
    with pytest.raises(AnalysisError, match="got 32 of 32"):
        read(study(tmp_path / "empty", []), complete_seeds_only=True)
    with pytest.raises(AnalysisError, match="at least 80"):
        replay_table(noisy(np.random.default_rng(0)), num_replays=10)


# Intervals and the report


def test_an_interval_holds_the_spread_between_seeds_and_the_error_of_the_replays():
    rng = np.random.default_rng(0)
    values, chances = (rng.random(1000) < 0.5).astype(float), np.clip(rng.normal(0.5, 0.1, (4000, 1)), 0, 1)
    resampled = (rng.random((4000, 50)) < chances).astype(float)
    half = module._half_width(values, resampled, 8)
    assert half == pytest.approx(2.365 * math.sqrt(8 / 7 * 0.1**2 + 0.25 / 1000), rel=0.05)
    same = np.broadcast_to(values, (4, 1000))
    assert module._half_width(values, same, 8) == pytest.approx(2.365 * math.sqrt(0.25 / 1000), rel=0.01)


def test_a_probability_is_never_surer_than_so_many_runs_could_be():
    # Without any spread: Clopper-Pearson, by SciPy, for a whole number of successes among the seeds.
    for successes in range(9):
        values = np.repeat([1.0, 0.0], [1000 * successes, 1000 * (8 - successes)])
        share = module._share(values, np.tile(values, (4, 1)), 8)
        exact = stats.binomtest(successes, 8).proportion_ci(0.95)
        assert (share.low, share.high) == pytest.approx((exact.low, exact.high))
    apart = np.repeat([1.0, 0.0], 4000), np.repeat([[1.0], [0.0]], 20, axis=0) * np.ones((40, 50))
    assert (module._share(*apart, 8).low, module._share(*apart, 8).high) == (0, 1)


def test_a_ratio_needs_a_rival_that_sometimes_holds_up():
    never, some = (np.zeros(40), np.zeros((40, 5))), (np.ones(40), np.ones((40, 5)))
    assert module._ratio(some, never, 8) is None
    ratio = module._ratio(never, some, 8)
    assert ratio.value == 0
    assert not ratio.has_interval


@pytest.mark.heavy
def test_intervals_cover_as_the_docstring_says():
    rng = np.random.default_rng(0)
    quality = rng.uniform(0.9, 1, 24)
    failing = np.where(rng.random(24) < 0.6, rng.uniform(0, 0.5, 24), rng.uniform(0, 0.04, 24))

    def drawn(stream, share):
        sound = np.clip(quality[:, None] + 0.02 * stream.standard_normal((24, 8)), 0, 1)
        return np.where(stream.random((24, 8)) < share[:, None], stream.uniform(0, 0.8, (24, 8)), sound)

    found = []
    for number in range(100):
        stream = np.random.default_rng([1, number])
        scores = table(drawn(stream, failing), drawn(stream, failing / 4))
        strategies = {OURS: fixed_repeats, "one": single_seed}
        found.append(
            replay_table(scores, num_replays=800, budget_cpu_s=1e9, strategies=strategies, seed=number).strategies
        )
    for (name, least), place in itertools.product((("holds_up", 0.95), ("regret", 0.8)), (0, 1)):
        estimates = [getattr(strategies[place], name) for strategies in found]
        truth = np.mean([estimate.value for estimate in estimates])
        covered = np.mean([estimate.low <= truth <= estimate.high for estimate in estimates])
        assert covered >= least, (place, name, covered)
