"""The stages of a hold-up study, driven without Ray: a planted truth, kills anywhere, failures, budgets, seeds."""

import io
import math
import re
from collections import Counter

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from study.cli.tables import print_front, print_importance, print_plan, print_stages
from study.designs.holdup import selection
from study.designs.holdup.certificate.making import _followed
from study.designs.holdup.choosing import REUSED
from study.designs.holdup.evidence import Evidence
from study.designs.holdup.phases import num_later, phases
from study.designs.holdup.stage_keeper import StageKeeper
from study.designs.registry import make_plan
from study.designs.search.importance import importance_per_scale
from study.designs.search.outcome import Outcomes
from study.driver.opening import RunOptions, resumed_identity
from study.errors import RecordError
from study.records.ledger import fold
from study.records.records import Line, SettingsFrozen, StageDecided, TrialEnded, TrialStarted, read_lines
from study.records.request import digest_of
from study.space.settings import SHARED, STAGES, spec_of
from study.trial.engine.sampling.lanes import evaluation_seeds, lane_seed
from tests import holdup
from tests.driven import CLUSTER, ROOMY, Driven, records, rows
from tests.reported import built, evaluation, iteration, report
from tests.spaces import spec
from tests.values import replace

HOLDUP = {
    "target_scale": 8,
    "small_scale": 2,
    "unseen_scales": [4, 12],
    "num_settings": 8,
    "calibrate": {"num_points": 3},
    "race": {"num_settings": 4, "blocks": [1, 1]},
    "stress": {"num_settings": 2, "num_seeds": 2},
    "confirm": {"num_seeds": 6, "num_seeds_others": 5, "num_seeds_stock": 0},
    "rank_seeds": {"first": 101, "count": 2},
    "test_seeds": {"first": 1001, "count": 6},
}


def space(**changes):
    holdup = {**HOLDUP, **changes.pop("holdup", {})}
    return spec(
        parameters={
            "num_env_runners": [2, 6, 8],
            "num_envs_per_env_runner": 2,
            "steps_per_env_runner": {"low": 20, "high": 200, "log": True},
            "lr": {"low": 1e-4, "high": 1e-2, "log": True},
            "minibatch_size": 64,
        },
        search={"sampler": "random"},
        execution="emulated",
        holdup=holdup,
        **changes,
    )


def planted(row):
    """Return the final return of a trial: best at lr 1e-3; a batch per runner above 100 fails at large scales only."""
    miss = abs(math.log10(row.setting["lr"]) + 3)
    noise = ((row.seed * 2654435761) % 1000) / 1000 - 0.5
    collapse = 150 if row.num_env_runners >= 6 and row.setting["train_batch_size"] > 100 * row.num_env_runners else 0
    return 480 - 200 * miss - collapse + 10 * noise


class Drive(Driven):
    """A session whose trials have two iterations, and `planted` returns."""

    def finish(self, trial, outcome=planted, *, cpu_s=10.0, healthy=None):
        row = self.conductor.ledger.rows[trial]
        final = outcome(row)
        if final is None:
            self.conductor.end(trial, "failed", "planted")
            return
        lost = {} if healthy is None else {"num_healthy_env_runners": healthy}
        for number in (1, 2):
            one = iteration(number, steps=500, cpu_time_s=cpu_s / 2, **lost)
            report(self.conductor, trial, one, evaluation(one, final, progress=number / 2), progress=number / 2)
        self.conductor.finish(trial, None)

    def run(self, outcome=planted, *, most=None, healthy=None):
        return super().run(lambda trial: self.finish(trial, outcome, healthy=healthy), most=most)


def decisions(path):
    return [record for record in records(path) if isinstance(record, StageDecided)]


def test_a_study_goes_through_its_stages_and_finds_the_planted_setting(tmp_path):
    drive = Drive(tmp_path, space(holdup={"num_settings": 24}))
    assert drive.run().reason == "complete"
    taken = decisions(tmp_path)
    assert [each.phase for each in taken] == [phase.name for phase in phases(drive.spec.holdup)]
    winner = next(record for record in records(tmp_path) if isinstance(record, SettingsFrozen))
    setting = winner.settings[winner.winner]
    assert abs(math.log10(setting["lr"]) + 3) < 0.4
    assert setting["steps_per_env_runner"] <= 100  # 500 return units better at the large scales
    rows = drive.conductor.ledger.rows
    assert {row.stage for row in rows.values()} == set(STAGES) - {"measure"}
    assert len(rows) <= drive.conductor.plan.num_trials


def test_the_confirmation_is_on_test_seeds_and_on_scales_that_nothing_else_ran(tmp_path):
    drive = Drive(tmp_path, space())
    drive.run()
    rows = drive.conductor.ledger.rows.values()
    test_seeds = set(drive.spec.holdup.test_seeds.seeds)
    for row in rows:
        assert (row.seed in test_seeds) == (row.stage == "confirm")
        assert row.num_env_runners in (2, 6, 8) or row.stage == "confirm"
    confirmed = Counter((row.anchor, row.num_env_runners) for row in rows if row.stage == "confirm")
    assert all(confirmed["winner", scale] == 6 for scale in (4, 8, 12))  # in two halves, of five and of one
    assert ("best_small", 2) not in confirmed  # the winner is the best there too, and no run is made twice
    assert confirmed["naive_growth", 8] == 5


def test_of_an_odd_number_of_settings_the_larger_half_goes_on_the_cheaper_one_on_a_tie():
    scores = {name: [value, value] for name, value in zip("abcde", (0.5, 0.9, 0.7, 0.7, 0.1), strict=True)}
    costs = {name: cost for cost, name in enumerate("abdce", start=1)}
    assert selection.race(scores, costs, least=1) == ["b", "d", "c"]
    assert selection.winner({"a": 0.9, "b": 0.9 - selection.TIE / 2, "c": 0.8}, {"a": 2, "b": 1, "c": 0}) == "b"


def test_a_study_that_is_stopped_behind_its_last_decision_is_complete(tmp_path):
    drive = Drive(tmp_path, space())
    for started in drive.groups():
        for one in started:
            drive.finish(one.trial)
    drive.conductor.end_early("stopped", "told to")
    assert drive.conductor.close().reason == "complete"


def test_nothing_is_asked_of_a_test_seed_before_the_settings_are_frozen(tmp_path):
    drive = Drive(tmp_path, space())
    drive.run(most=10)
    keeper = drive.conductor._course
    early = TrialStarted(
        trial=99, attempt=1, seed=1001, setting={"num_env_runners": 1}, proposed={}, iterations=None,
        anchor=None, optuna_number=None,
        num_cpus=1, stage="race", rule={"lr": 1.0}, digest=digest_of({"lr": 1.0}),
    )  # fmt: skip
    with pytest.raises(RecordError, match="test seed 1001"):
        keeper.check(early)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    Drive(path := tmp_path_factory.mktemp("undisturbed"), space()).run()
    return path


def essence(path):
    """Return what a study decided and ran, without when and how often it was begun."""
    taken = [(each.phase, each.kept, each.dropped, each.evidence, each.requests) for each in decisions(path)]
    started = {
        record.trial: (record.seed, record.digest, record.setting, record.stage)
        for record in records(path)
        if isinstance(record, TrialStarted)
    }
    ended = Counter(
        record.trial for record in records(path) if isinstance(record, TrialEnded) and record.status != "interrupted"
    )
    return taken, started, ended


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.integers(0, 25), min_size=1, max_size=6))
def test_killed_anywhere_a_study_takes_the_same_decisions(kills, undisturbed, tmp_path_factory):
    path = tmp_path_factory.mktemp("killed")
    for most in kills:
        if Drive(path, space()).run(most=most) is not None:
            break
    else:
        Drive(path, space()).run()
    assert essence(path) == essence(undisturbed)
    assert max(essence(path)[2].values()) == 1


def test_killed_between_freezing_and_deciding(undisturbed, tmp_path):
    lines = (undisturbed / "records.jsonl").read_bytes().splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if b'"kind":"settings_frozen"' in line)
    (tmp_path / "records.jsonl").write_bytes(b"".join(lines[: at + 1]))
    Drive(tmp_path, space()).run()
    assert essence(tmp_path) == essence(undisturbed)
    assert sum(isinstance(record, SettingsFrozen) for record in records(tmp_path)) == 1


def test_failures_and_nan_count_as_zero_and_never_vanish(tmp_path):
    """Every other seed of the settings with a large batch dies: they must lose to settings with a worse return."""

    def outcome(row):
        if row.setting["train_batch_size"] > 60 * row.num_env_runners:
            return None if row.seed % 2 else float("nan")
        return 300.0

    drive = Drive(tmp_path, space(holdup={"num_settings": 16}))
    drive.run(outcome)
    frozen = drive.conductor.ledger.frozen
    assert frozen.settings[frozen.winner]["steps_per_env_runner"] <= 60
    failed = [row for row in drive.conductor.ledger.rows.values() if row.status == "failed"]
    assert failed
    assert all(row.summary["score"] == 0 for row in failed)
    race = next(each for each in decisions(tmp_path) if each.phase == "race 1")
    assert all(len(scores) == 1 for scores in race.evidence["scores"].values())


def outcomes(drive):
    """Return what the trials that the sampler knows came to, by number."""
    rows = drive.conductor.ledger.rows
    known = Outcomes(drive.spec)
    return {trial: known.of(row) for trial, row in rows.items() if row.optuna_number is not None and row.ended}


def seen(drive):
    """Return what the sampler would propose the next trial by."""
    proposer = drive.conductor._proposer
    return proposer._observations(proposer._known(), ["lr", "steps_per_env_runner"])


def test_the_sampler_is_given_the_scores_of_search_trials_and_of_nothing_else(tmp_path):
    drive = Drive(tmp_path, space())
    drive.run()
    rows = drive.conductor.ledger.rows
    told = outcomes(drive)
    assert set(told) == {number for number, row in rows.items() if row.stage == "search"}
    for number, outcome in told.items():
        assert outcome.values == (rows[number].summary["score"],)
        assert outcome.constraints["policy updates"] == 18  # two iterations of twenty


def test_the_race_is_for_the_best_of_each_scale(tmp_path):
    """The larger scales are harder here by more than any setting is worth: their best race all the same."""
    drive = Drive(tmp_path, space(holdup={"num_settings": 12}))
    drive.run(lambda row: planted(row) - 150 * (row.num_env_runners > 2))
    race = next(each for each in decisions(tmp_path) if each.next_stage == "race")
    searched = race.evidence["searched"]
    best_of_each = [max(scores, key=scores.get) for scores in searched.values()]
    assert {"2", "6", "8"} == set(searched)
    assert max(searched["8"].values()) < min(sorted(searched["2"].values())[-2:])
    assert set(best_of_each) <= set(race.kept)


def test_places_are_shared_by_equals_and_taken_together_over_scales():
    found = selection.places([{"a": 0.9, "b": 0.1, "c": 0.5, "d": 0.5}, {"a": 0.2, "e": 0.8}, {"f": 0.1}, {}])
    assert found == pytest.approx(
        {"a": (7 / 8 + 1 / 4) / 2, "b": 1 / 8, "c": 1 / 2, "d": 1 / 2, "e": 3 / 4, "f": 1 / 2}
    )
    assert selection.places([{"a": 0.0, "b": 0.0}, {"c": 0.0}]) == {"a": 0, "b": 0, "c": 0}  # failed, all of a scale


def few_settings(**holdup):
    sizes = {"num_settings": 24, "tune_seeds": {"first": 1, "count": 4}, "race": {"num_settings": 6, "blocks": [1, 1]}}
    lists = {"parameters__lr": [1e-3, 3e-3], "parameters__steps_per_env_runner": [20, 40]}
    return space(**lists, holdup={**sizes, **holdup})


def test_where_a_space_has_few_settings_no_run_is_counted_twice(tmp_path):
    drive = Drive(tmp_path, few_settings())
    assert drive.run().reason == "complete"
    rows = drive.conductor.ledger.rows
    searched = [row for row in rows.values() if row.stage in ("calibrate", "search") and row.iterations is None]
    runs = Counter((row.digest, row.num_env_runners, row.seed) for row in searched)
    assert max(runs.values()) > 1  # Optuna proposes again what it has proposed
    known = Evidence(drive.spec, rows, [])
    for scale in (2, 6, 8):
        for digest, merit in known.searched(scale).items():
            by_seed = {
                row.seed: row.summary["score"]
                for row in searched
                if (row.digest, row.num_env_runners) == (digest, scale)
            }
            assert merit == pytest.approx(sum(by_seed.values()) / len(by_seed))


def test_a_study_of_another_version_of_the_protocol_does_not_go_on(tmp_path):
    first = Drive(tmp_path, few_settings())
    first.run(most=30)
    lines = list(read_lines(first.folder.records))
    assert any(isinstance(line.record, StageDecided) for line in lines)
    older = [
        replace(line, record=replace(line.record, protocol=1)) if isinstance(line.record, StageDecided) else line
        for line in lines
    ]
    with pytest.raises(RecordError, match="this version knows version 5 of the hold-up protocol, got 1"):
        StageKeeper(first.spec, make_plan(first.spec, ROOMY), folded(older), print)


def test_a_resume_of_an_earlier_version_s_study_says_which_version_can(tmp_path):
    spec = holdup.holdup_spec()
    folder = holdup.write_study(tmp_path, spec, [])
    recorded = orjson.loads(folder.identity_file.read_bytes())
    recorded["spec"]["holdup"]["num_rounds"] = 2
    folder.identity_file.write_bytes(orjson.dumps(recorded))
    with pytest.raises(RecordError, match=r"this version knows no holdup\.num_rounds"):
        resumed_identity(folder, spec, RunOptions(name="demo", out=tmp_path, resume=True))


def seeds_played(row, spec):
    """The environment seeds of a trial's evaluations and of its training, each as a set."""
    size, lanes = spec.evaluation.episodes, range(row.setting["num_envs_per_env_runner"])
    evaluated = evaluation_seeds(spec.evaluation.seed, size, first_episode=row.first_episode)
    runners = range(1, row.setting["num_env_runners"] + 1)
    return set(evaluated), {lane_seed(row.seed, runner, lane) for runner in runners for lane in lanes}


def lines_of(spec, outcome=holdup.outcome, *, until=None):
    written = holdup.study_records(spec, outcome, until=until)
    return [
        Line(record=record, time=holdup.BEGUN + number, seq=number, end=number) for number, record in enumerate(written)
    ]


def folded(lines):
    return fold((line.record, line.time) for line in lines)


@settings(max_examples=10, deadline=None)
@given(
    episodes=st.integers(1, 40),
    evaluation_seed=st.integers(0, 2**28 - 1),
    num_seeds_stock=st.integers(0, 5),
    best_at_small=st.floats(-3.6, -2.4),
)
def test_the_confirmation_meets_no_seed_that_was_played_before(
    episodes, evaluation_seed, num_seeds_stock, best_at_small
):
    """Neither an evaluation episode nor a training seed; and no two of its runs play the same episodes."""

    def outcome(request, rule):
        best = best_at_small if request.num_env_runners == 2 else -3
        return 480 - 100 * abs(math.log10(rule["lr"]) - best) - request.seed % 7

    confirm = {**holdup.HOLDUP["confirm"], "num_seeds_stock": num_seeds_stock}
    own_spec = holdup.holdup_spec(
        evaluation__episodes=episodes,
        evaluation__seed=evaluation_seed,
        holdup={**holdup.HOLDUP, "confirm": confirm, "measure": None},
    )
    lines = lines_of(own_spec, outcome)
    rows = list(folded(lines).rows.values())
    before, confirmed = ([row for row in rows if (row.stage == "confirm") is judged] for judged in (False, True))
    assert not {row.seed for row in before} & {row.seed for row in confirmed}
    earlier = set().union(*(seeds_played(row, own_spec)[0] for row in before))
    own = [seed for row in confirmed for seed in seeds_played(row, own_spec)[0]]
    assert len(earlier) == episodes
    assert len(own) == len(set(own)) == episodes * len(confirmed)
    assert not earlier & set(own)
    trained = set().union(*(seeds_played(row, own_spec)[1] for row in rows))
    assert not trained & (earlier | set(own))
    assert not _followed(lines, own_spec)[0]


def test_episodes_that_were_played_before_are_refused_to_the_confirmation():
    own_spec = holdup.holdup_spec()
    lines, size = lines_of(own_spec, until="confirm"), own_spec.evaluation.episodes
    keeper = StageKeeper(own_spec, make_plan(own_spec, ROOMY), folded(lines), print)
    last = next(line.record for line in reversed(lines) if isinstance(line.record, TrialStarted))
    keeper.check(replace(last, attempt=2))  # after a kill it plays its own again
    for first in (0, size - 1, last.first_episode + 1):
        with pytest.raises(RecordError, match="plays episodes that no other trial plays"):
            keeper.check(replace(last, trial=last.trial + 1, first_episode=first))
    with pytest.raises(RecordError, match="other episodes than the first ones"):
        keeper.check(replace(last, trial=last.trial + 1, stage="stress", seed=101, first_episode=1000 * size))


def test_no_trial_runs_again_what_another_one_ran():
    raced = set()

    def outcome(request, rule):
        """The worse finalist at the large scales is the best at the small one."""
        miss = 50 * abs(math.log10(rule["lr"]) + 3)
        if request.stage == "race":
            raced.add(digest_of(rule))
        if request.num_env_runners == 2:
            return 400 + miss if digest_of(rule) in raced else 300
        return 480 - miss

    own_spec = holdup.holdup_spec(holdup={**holdup.HOLDUP, "stress": {"num_settings": 2, "num_seeds": 2}})
    lines = lines_of(own_spec, outcome)
    ledger = folded(lines)
    ran = Counter(
        (tuple(sorted(row.setting.items())), row.seed, row.variant)
        for row in ledger.rows.values()
        if row.stage in ("race", "stress", "confirm")
    )
    assert max(ran.values()) == 1
    decision = next(each for each in ledger.decisions if each.phase == "stress")
    # The small scale's best ran on the first rank seed at the target scale; with its batch grown it is the same there.
    assert set(decision.evidence[REUSED]) == {"best_small_batch_grown"}
    trials = [ledger.rows[trial] for trial in decision.evidence[REUSED]["best_small_batch_grown"]]
    assert [row.seed for row in trials] == [101, 102]
    assert {row.digest for row in trials} == {decision.evidence["best_small"]}
    assert "best_small_batch_grown" not in {request.get("name") for request in decision.requests}
    following = next(each for each in ledger.decisions if each.phase == "baselines")
    mean = sum(row.summary["score"] for row in trials) / 2
    assert following.evidence["baselines"]["best_small_batch_grown"] == pytest.approx(mean)
    assert not _followed(lines, own_spec)[0]


def test_until_a_stage_and_on(undisturbed, tmp_path):
    for stage in ("calibrate", "search", "race", "stress"):
        closed = Drive(tmp_path, space(), until=stage).run()
        assert closed.reason == "until"
        assert decisions(tmp_path)[-1].stage == stage
        assert all(STAGES.index(row.stage) <= STAGES.index(stage) for row in rows(tmp_path).values())
    assert Drive(tmp_path, space(), until="confirm").run().reason == "complete"
    assert essence(tmp_path) == essence(undisturbed)


@pytest.mark.parametrize(
    ("build", "num_settings", "paid"),
    [
        (lambda **sizes: space(holdup=sizes), 40, 25),
        (few_settings, 60, 30),  # the race never gets its six settings, there are four
    ],
    ids=["ranges", "few settings"],
)
def test_a_budget_cuts_the_search_and_keeps_what_the_later_stages_need(tmp_path, build, num_settings, paid):
    """Each whole trial costs 10 CPU-seconds; the budget pays for fewer settings than are wanted."""
    enough = (num_later(build(num_settings=num_settings)) + 5 + 2 + paid) * 10 / 3600
    drive = Drive(tmp_path, build(num_settings=num_settings, cpu_hours=enough))
    assert drive.run().reason == "complete"
    cut = next(each for each in decisions(tmp_path) if each.cancelled)
    assert "CPU-hours" in cut.evidence["cancelled"]
    rows = drive.conductor.ledger.rows.values()
    assert sum(row.summary["cpu_s_spent"] for row in rows) <= enough * 3600
    confirmed = sum(row.stage == "confirm" for row in rows)
    # The arms at the small scale need no second half; there are two baselines or one.
    assert build is few_settings or confirmed in (3 * 6 + 2 * 5 + 2 * 5, 3 * 6 + 2 * 5 + 5)


def test_trials_that_run_count_against_the_budget(tmp_path):
    """Each whole trial costs 10 CPU-seconds; the budget pays for one more than those of the later stages."""
    drive = Drive(tmp_path, space(holdup={"num_settings": 40}))
    drive.run(most=30)
    ledger, course = drive.conductor.ledger, drive.conductor._course
    spent = course._spent()
    tight = space(holdup={"num_settings": 40, "cpu_hours": (spent + (num_later(drive.spec) + 1.5) * 10) / 3600})
    keeper = StageKeeper(tight, drive.conductor.plan, ledger, print)
    request = next(each for each in drive.conductor.plan.requests if each.stage == "calibrate" and not each.iterations)
    request = replace(request, stage="search", setting=None)
    assert keeper.why_skip(request, num_running=0, left_s=None) == ""
    assert "CPU-hours" in keeper.why_skip(request, num_running=1, left_s=None)


def test_a_budget_that_cannot_pay_for_the_confirmation_is_refused_with_what_would_be_enough(tmp_path):
    drive = Drive(tmp_path, space(holdup={"cpu_hours": 0.05}))
    closed = drive.run()
    assert closed.reason == "error"
    assert "a trial takes 10 CPU-seconds" in closed.detail
    assert {row.stage for row in drive.conductor.ledger.rows.values()} == {"calibrate"}
    enough = float(re.search(r"holdup.cpu_hours=([\d.]+)", closed.detail).group(1))
    resumed = Drive(tmp_path, space(holdup={"cpu_hours": enough}))
    assert resumed.run().reason == "complete"
    assert sum(row.summary["cpu_s_spent"] for row in resumed.conductor.ledger.rows.values()) <= enough * 3600


def test_the_cost_of_every_later_trial_is_predicted(tmp_path):
    Drive(tmp_path, space()).run()
    started = [record for record in records(tmp_path) if isinstance(record, TrialStarted)]
    assert all(record.predicted_cpu_s is None for record in started if record.stage == "calibrate")
    later = [record for record in started if record.stage != "calibrate"]
    assert later
    assert all(record.predicted_cpu_s > 0 for record in later)


def test_what_waits_for_a_clock_is_skipped_where_there_are_no_cores_and_the_reason_is_recorded(tmp_path):
    measure = {"scales": [1, 8], "repeats": 2, "iterations": 2}
    drive = Drive(tmp_path, space(holdup={"measure": measure}))
    assert drive.run().reason == "complete"
    last = decisions(tmp_path)[-1]
    assert last.phase == "measure"
    assert last.cancelled
    assert "CPUs" in last.evidence["cancelled"]


def test_one_stock_runner_stands_for_all_where_there_are_no_cores(tmp_path):
    drive = Drive(tmp_path, space(holdup={"confirm": {"num_seeds": 5, "num_seeds_others": 5, "num_seeds_stock": 5}}))

    def outcome(row):
        if row.variant == "stock":
            report(drive.conductor, row.trial, built(), progress=0)
            assert row.setting["num_env_runners"] == 1
            assert row.num_env_runners == 8
            assert row.setting["num_envs_per_env_runner"] == 8 * row.rule["num_envs_per_env_runner"]
        return planted(row)

    drive.run(outcome, healthy=1)
    stock = [row for row in drive.conductor.ledger.rows.values() if row.variant == "stock"]
    assert len(stock) == 5
    assert {row.timing for row in stock} == {"emulated"}
    assert {row.timing_reason for row in stock} == {"lanes of 8 runners stepped in 1 stock runner"}
    assert {row.num_lost_runners for row in stock} == {0}
    study, rllib = (spec_of(drive.spec, variant) for variant in ("study", "stock"))
    assert (rllib.runner, rllib.learner, rllib.execution) == ("stock", "rllib", "real")
    assert (study.runner, study.learner, study.execution) == ("batched", "auto", "emulated")


def test_a_group_that_a_kill_tore_apart_is_tainted(tmp_path):
    measure = {"scales": [1, 3], "repeats": 2, "iterations": 2, "step_wait_ms": 2}
    wanted = space(holdup={"measure": measure})

    def outcome(row):
        report(drive.conductor, row.trial, built(), progress=0)
        return planted(row)

    drive = Drive(tmp_path, wanted)
    for started in drive.groups():
        if started[0].anchor == SHARED:
            drive.finish(started[0].trial, outcome)
            torn = [one.trial for one in started]
            break
        for one in started:
            drive.finish(one.trial, outcome)
    drive.log.close()
    drive = Drive(tmp_path, wanted)
    assert drive.run(outcome).reason == "complete"
    rows = drive.conductor.ledger.rows
    assert rows[torn[0]].timing != "tainted"
    assert {rows[trial].timing for trial in torn[1:]} == {"tainted"}
    whole = [row for row in rows.values() if row.anchor == SHARED and row.trial not in torn]
    assert whole
    assert not any(row.timing == "tainted" for row in whole)


def test_a_study_that_has_begun_to_search_is_never_refused_by_its_budget(tmp_path):
    """What an uninterrupted run survives, a resumed one must survive too."""
    tight = space(holdup={"cpu_hours": 0.25, "num_settings": 24})
    assert Drive(tmp_path / "whole", tight).run().reason == "complete"
    searched = next(each for each in decisions(tmp_path / "whole") if each.phase == "search")
    assert searched.cancelled, "the budget must bind the search"
    for most in (5, 8):  # behind the calibration, and within the search
        assert Drive(tmp_path / "killed", tight).run(most=most) is None
    assert Drive(tmp_path / "killed", tight).run().reason == "complete"
    assert essence(tmp_path / "killed") == essence(tmp_path / "whole")


def test_the_sampler_forgets_a_trial_that_is_cancelled(tmp_path):
    drive = Drive(tmp_path, space(holdup={"num_settings": 40}))
    drive.run(most=14)
    ledger = drive.conductor.ledger
    trial = next(number for number, row in ledger.rows.items() if row.optuna_number is not None and row.ended)
    before = seen(drive)
    ledger.decisions.append(replace(ledger.decisions[-1], cancelled=[trial]))
    assert len(seen(drive)) == len(before) - 1


def test_trials_of_one_group_run_together_and_alone(tmp_path):
    measure = {"scales": [1, 3], "repeats": 2, "iterations": 2, "step_wait_ms": 2}
    drive = Drive(tmp_path, space(holdup={"measure": measure}))
    seen = []
    for started in drive.groups():
        if started[0].stage == "measure":
            seen.append([(one.anchor, one.setting["num_env_runners"]) for one in started])
        for one in started:
            drive.finish(one.trial)
    assert all(len(set(together)) == 1 for together in seen)
    assert [(SHARED, 1), (SHARED, 1)] in seen
    # Tables of times leave these out by their name: it is given to no trial that runs alone.
    assert all((len(together) > 1) == (together[0][0] == SHARED) for together in seen)
    assert seen[0] == [("anchor", 1)]
    strong = [row for row in drive.conductor.ledger.rows.values() if row.anchor == "strong"]
    assert len({row.setting["train_batch_size"] for row in strong}) == 1
    weak = [row for row in drive.conductor.ledger.rows.values() if row.anchor == "weak"]
    assert len({row.setting["train_batch_size"] / row.num_env_runners for row in weak}) == 1


def shown(draw, *arguments, **options):
    console = Console(width=120, record=True, file=io.StringIO())
    draw(console, *arguments, **options)
    return console.export_text()


def test_what_a_person_sees_of_the_stages(tmp_path):
    drive = Drive(tmp_path, space())
    assert drive.conductor.phase == "calibrate"
    drive.run(lambda row: None if row.trial == 6 else planted(row))
    rows = drive.conductor.ledger.rows.values()
    lines = shown(print_stages, rows, table_file="trials.csv").splitlines()
    by_stage = {line.split()[0]: line.split() for line in lines if line.strip()}
    counts = Counter(row.stage for row in rows)
    for stage in ("calibrate", "search", "race", "stress", "confirm"):
        assert int(by_stage[stage][1]) == counts[stage]
    assert by_stage["search"][2] == "1"
    assert float(by_stage["confirm"][3]) == pytest.approx(counts["confirm"] * 10 / 3600, abs=0.006)


def test_the_plan_of_a_hold_up_study_counts_what_may_run():
    measured = space(holdup={"measure": {"scales": [1, 2], "step_wait_ms": 1}})
    plan = make_plan(measured, CLUSTER)
    text = shown(print_plan, plan, measured, name="demo")
    assert f"demo: up to {plan.num_trials} trials" in text
    assert "2 (measured)" in text
    assert "oversubscribed if CPU pressure" in text


def test_the_front_and_the_importance_are_printed_per_scale(tmp_path):
    drive = Drive(tmp_path, space(holdup={"num_settings": 24}))
    drive.run()
    rows = drive.conductor.ledger.rows.values()
    text = shown(print_front, rows)
    assert "8 runners: return" in text
    assert "n=1, no interval" in text
    table = shown(print_importance, importance_per_scale(drive.spec, rows), fewest=10)
    assert "8 runners" in table
    assert "lr" in table
    assert shown(print_importance, {}, fewest=10).startswith("No scale has 10 trials")
