"""The stages of a hold-up study, driven without Ray: a planted truth, kills anywhere, failures, budgets, seeds."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.designs.holdup.certificate import followed
from study.designs.holdup.design import StageKeeper
from study.designs.holdup.stages import STAGES, Known, phases, places
from study.designs.proposals import value_of
from study.errors import RecordError
from study.records.records import Line, SettingsFrozen, StageDecided, TrialStarted
from study.space.sections import MOST_STUDIES
from study.trial.engine.sampling.lanes import evaluation_seeds, lane_seed
from tests import holdup, synthetic
from tests.driven import essence, records, rows
from tests.holdup import Invented
from tests.values import replace


def space(**changes):
    return holdup.holdup_spec(**{f"holdup__{name}": value for name, value in changes.items()})


def planted(row):
    """Return the final return of a trial: best at lr 1e-3; a batch per runner above 30 fails at large scales only."""
    miss = abs(math.log10(row.setting["lr"]) + 3)
    noise = ((row.seed * 2654435761) % 1000) / 1000 - 0.5
    collapse = 150 if row.num_env_runners >= 4 and row.setting["train_batch_size"] > 30 * row.num_env_runners else 0
    return 480 - 200 * miss - collapse + 10 * noise


def decisions(path):
    return [record for record in records(path) if isinstance(record, StageDecided)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    Invented(path := tmp_path_factory.mktemp("undisturbed"), space()).run(planted)
    return path


def test_killed_between_freezing_and_deciding(undisturbed, tmp_path):
    lines = (undisturbed / "records.jsonl").read_bytes().splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if b'"kind":"settings_frozen"' in line)
    (tmp_path / "records.jsonl").write_bytes(b"".join(lines[: at + 1]))
    Invented(tmp_path, space()).run(planted)
    assert essence(tmp_path) == essence(undisturbed)
    assert sum(isinstance(record, SettingsFrozen) for record in records(tmp_path)) == 1


def test_until_a_stage_and_on(undisturbed, tmp_path):
    for stage in ("search", "race"):
        closed = Invented(tmp_path, space(), until=stage).run(planted)
        assert closed.reason == "until"
        assert decisions(tmp_path)[-1].stage == stage
        assert all(STAGES.index(row.stage) <= STAGES.index(stage) for row in rows(tmp_path).values())
    assert Invented(tmp_path, space(), until="confirm").run(planted).reason == "complete"
    assert essence(tmp_path) == essence(undisturbed)


def test_a_study_goes_through_its_stages_and_finds_the_planted_setting(tmp_path):
    drive = Invented(tmp_path, space(num_settings=24))
    assert drive.run(planted).reason == "complete"
    assert [each.phase for each in decisions(tmp_path)] == [name for _, name, _ in phases(drive.spec.holdup)]
    frozen = drive.conductor.ledger.frozen
    setting = frozen.settings[frozen.winner]
    assert abs(math.log10(setting["lr"]) + 3) < 0.4
    assert setting["steps_per_env_runner"] <= 30  # 500 return units better at the large scales
    assert {row.stage for row in drive.rows.values()} == set(STAGES)
    assert len(drive.rows) <= drive.conductor.plan.num_trials
    confirmed = Counter((row.anchor, row.num_env_runners) for row in drive.rows.values() if row.stage == "confirm")
    rivals = ("naive_growth", "best_small_unchanged", "best_small_batch_grown", "best_small_minibatch_grown")
    assert all(confirmed["winner", scale] == 8 for scale in (2, 3, 6))
    assert all(confirmed[name, 6] in (0, 8) for name in rivals)  # none that has the winner's numbers
    assert confirmed["naive_growth", 6] == 8 and sum(confirmed[name, 6] for name in rivals) >= 16
    assert (confirmed["winner_rllib", 6], confirmed["best_small_rllib", 2]) == (5, 5)
    assert all(row.num_env_runners in (2, 4, 6) for row in drive.rows.values() if row.stage != "confirm")
    told = [row for row in drive.rows.values() if row.optuna_number is not None]
    assert told == [row for row in drive.rows.values() if row.stage == "search" and row.anchor != "default"]
    assert all(value_of(drive.spec, row) == row.summary["score"] for row in told)


def test_the_race_is_for_the_best_of_each_scale_and_failures_count_as_zero(tmp_path):
    """The larger scales are harder by more than any setting is worth, and every other seed of large batches dies."""

    def outcome(row):
        if row.setting["train_batch_size"] > 40 * row.num_env_runners:
            return None if row.seed % 2 else float("nan")
        return planted(row) - 150 * (row.num_env_runners > 2)

    drive = Invented(tmp_path, space(num_settings=16, race={"num_settings": 4, "blocks": [1, 1]}))
    drive.run(outcome)
    race = next(each for each in decisions(tmp_path) if each.next_stage == "race")
    searched = race.evidence["searched"]
    assert {"2", "4", "6"} == set(searched)
    assert max(searched["6"].values()) < max(searched["2"].values())
    assert {max(scores, key=scores.get) for scores in searched.values()} <= set(race.kept)
    frozen = drive.conductor.ledger.frozen
    assert frozen.settings[frozen.winner]["steps_per_env_runner"] <= 40
    failed = [row for row in drive.rows.values() if row.status == "failed"]
    assert failed and all(row.summary["score"] == 0 for row in failed)


def test_places_are_shared_by_equals_and_taken_together_over_scales():
    found = places([{"a": 0.9, "b": 0.1, "c": 0.5, "d": 0.5}, {"a": 0.2, "e": 0.8}, {"f": 0.1}, {}])
    assert found == pytest.approx(
        {"a": (7 / 8 + 1 / 4) / 2, "b": 1 / 8, "c": 1 / 2, "d": 1 / 2, "e": 3 / 4, "f": 1 / 2}
    )
    assert places([{"a": 0.0, "b": 0.0}, {"c": 0.0}]) == {"a": 0, "b": 0, "c": 0}  # failed, all of a scale


def test_where_a_space_has_few_settings_no_run_is_counted_twice(tmp_path):
    lists = {"parameters__lr": [1e-3, 3e-3], "parameters__steps_per_env_runner": [20, 40]}
    sizes = {"num_settings": 40, "race": {"num_settings": 6, "blocks": [1, 1]}}
    drive = Invented(tmp_path, holdup.holdup_spec(**lists, holdup={**holdup.HOLDUP, **sizes}))
    assert drive.run(planted).reason == "complete"
    searched = [row for row in drive.rows.values() if row.stage == "search"]
    assert max(Counter((row.digest, row.num_env_runners, row.seed) for row in searched).values()) > 1
    known = Known(drive.spec, drive.rows, [])
    for scale in (2, 4, 6):
        for digest, merit in known.searched(scale).items():
            here = [row for row in searched if (row.digest, row.num_env_runners) == (digest, scale)]
            by_seed = {row.seed: row.summary["score"] for row in here}
            assert merit == pytest.approx(sum(by_seed.values()) / len(by_seed))


def lines_of(spec, outcome=holdup.outcome, *, until=None):
    written = holdup.study_records(spec, outcome, until=until)
    return [Line(record=each, time=holdup.BEGUN + n, seq=n, end=n) for n, each in enumerate(written)]


def folded(lines):
    return synthetic.fold((line.record, line.time) for line in lines)


def seeds_played(row, spec):
    """The environment seeds of a trial's evaluations and of its training, each as a set."""
    size, lanes = spec.evaluation.episodes, range(row.setting["num_envs_per_env_runner"])
    evaluated = evaluation_seeds(spec.evaluation.seed, size, first_episode=row.first_episode)
    runners = range(1, row.setting["num_env_runners"] + 1)
    return set(evaluated), {lane_seed(row.seed, runner, lane) for runner in runners for lane in lanes}


@settings(max_examples=10, deadline=None)
@given(
    episodes=st.integers(1, 40),
    number=st.integers(1, MOST_STUDIES),
    num_seeds_rllib=st.integers(0, 12),
    best_at_small=st.sampled_from([-3.6, -3.0, -2.4]),
)
def test_the_confirmation_meets_no_seed_that_was_played_before(episodes, number, num_seeds_rllib, best_at_small):
    """Neither an evaluation episode nor a training seed; and no two of its runs play the same episodes."""

    def outcome(row):
        best = best_at_small if row.num_env_runners == 2 else -3
        return 480 - 100 * abs(math.log10(row.rule["lr"]) - best) - row.seed % 7

    confirm = {**holdup.HOLDUP["confirm"], "num_seeds_rllib": num_seeds_rllib}
    own_spec = holdup.holdup_spec(evaluation__episodes=episodes, holdup={**holdup.HOLDUP, "confirm": confirm})
    own_spec = own_spec.with_seed(number)
    lines = lines_of(own_spec, outcome)
    rows = list(folded(lines).rows.values())
    before, confirmed = ([row for row in rows if (row.stage == "confirm") is judged] for judged in (False, True))
    assert not {row.seed for row in before} & {row.seed for row in confirmed}
    earlier = set().union(*(seeds_played(row, own_spec)[0] for row in before))
    own = [seed for row in confirmed for seed in seeds_played(row, own_spec)[0]]
    assert len(earlier) == episodes
    assert len(own) == len(set(own)) == episodes * len(confirmed)
    trained = set().union(*(seeds_played(row, own_spec)[1] for row in rows))
    assert not (trained | earlier) & set(own)
    assert not trained & earlier
    assert not followed(lines, own_spec)[0]
    # No two arms run the same, and every one is frozen: the small scale's best may be the winner with its batch grown.
    ran = Counter((tuple(sorted(row.setting.items())), row.seed, row.variant) for row in confirmed)
    assert max(ran.values()) == 1
    assert {row.digest for row in confirmed} == set(folded(lines).frozen.settings)


def test_what_a_run_of_the_confirmation_may_not_play_is_refused():
    own_spec = holdup.holdup_spec()
    lines, size = lines_of(own_spec, until="confirm"), own_spec.evaluation.episodes
    keeper = StageKeeper(own_spec, folded(lines), print)
    last = next(line.record for line in reversed(lines) if isinstance(line.record, TrialStarted))
    keeper.check(replace(last, attempt=2))  # after a kill it plays its own again
    other = replace(last, trial=last.trial + 1, first_episode=1000 * size)
    keeper.check(other)
    before = StageKeeper(own_spec, folded(lines_of(own_spec, until="race 1")), print)
    for guard, changes in (
        *((keeper, {"first_episode": first}) for first in (0, size - 1, last.first_episode + 1)),
        (keeper, {"stage": "race", "seed": own_spec.holdup.race_seeds[0]}),
        (keeper, {"stage": "race", "first_episode": 0}),
        (keeper, {"digest": "of another setting"}),
        (before, {}),
    ):
        with pytest.raises(RecordError, match="are for runs of frozen settings"):
            guard.check(replace(other, **changes))


def test_a_study_of_another_version_of_the_protocol_does_not_go_on():
    own_spec = holdup.holdup_spec()
    ledger = folded(lines_of(own_spec, until="race 1"))
    ledger.decisions[-1] = replace(ledger.decisions[-1], protocol=1)
    with pytest.raises(RecordError, match="version 6 of the hold-up protocol, got version 1"):
        StageKeeper(own_spec, ledger, print)
