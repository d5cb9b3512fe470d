"""Every row of the tables of rules is broken once, at its place; what lies just inside of a rule is accepted."""

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from study.errors import SpaceError
from study.space.parsing import Source, parse_space
from study.space.rules import LEFT_OUT, MUST, NEEDED
from study.space.spec import StudySpec
from tests import spaces
from tests.scripts import FACTS
from tests.scripts import SPACE as OF_SCRIPT

HELD_UP: dict[str, Any] = {
    **{key: spaces.BASE[key] for key in ("environment", "budget")},
    "parameters": {
        "num_env_runners": [2, 6, 8],
        "num_envs_per_env_runner": 2,
        "steps_per_env_runner": {"low": 20, "high": 200, "log": True},
        "lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "minibatch_size": 64,
    },
    "budget": {"env_steps": 10_000},
    "search": {"sampler": "random"},
    "execution": "emulated",
    "holdup": {"target_scale": 8, "small_scale": 2, "seed": 9},
}
A2C = {**spaces.BASE, "algorithm": "A2C", "parameters": {"num_env_runners": [1, 2], "train_batch_size": 400}}
IMPALA = {**spaces.BASE, "algorithm": "IMPALA", "parameters": {"num_env_runners": [1, 2]}}
PROCGEN: dict[str, Any] = {
    **spaces.BASE,
    "environment": {"id": "procgen:coinrun"},
    "parameters": {**spaces.BASE["parameters"], "train_batch_size": 800},
}
TABLE = {**spaces.BASE, "search": {"sampler": "grid"}, "parameters": {"num_env_runners": [1, 2], "lr": [1e-3, 1e-2]}}
SCRIPTED = {**OF_SCRIPT, "script": FACTS}
OF_SAC = {**SCRIPTED, "script": {**FACTS, "algorithm": "SAC", "base_algorithm": "SAC"}}
WITHOUT_LR = {name: value for name, value in FACTS["values"].items() if name != "lr"}
SCHEDULED = {
    **SCRIPTED,
    "parameters": {"num_env_runners": [1, 2]},
    "script": {**FACTS, "values": WITHOUT_LR, "schedules": ["lr"], "overridden": ["grad_clip"]},
}
SEARCH, TIMED = spaces.BASE, spaces.THROUGHPUT

BROKEN: list[tuple[Mapping[str, Any], str, str, str]] = [
    # base; changes; place where it is not the changed key; a part of what was found
    (SEARCH, "parameters.steps_per_env_runner: 100", "", "both"),
    (SEARCH, "parameters.num_env_runners: [1, 500]", "parameters.train_batch_size", "1000 lanes and 800 steps"),
    (SEARCH, "parameters.train_batch_size: [7, 800]", "", "8 lanes and 7 steps"),
    (SEARCH, "parameters.minibatch_size: 801", "", "801 > 800"),
    (SEARCH, "parameters.rollout_fragment_length: 9", "", ""),
    (SEARCH, "budget.env_steps: null", "budget", ""),
    (SEARCH, "search.num_trials: null", "", ""),
    (SEARCH, "search.num_trials: 2", "", "2"),
    (SEARCH, "search.num_trials: 3, search.baselines: [{name: a, parameters: {lr: 0.001}}, {name: b, parameters: "
     "{num_env_runners: 1}}]", "search.num_trials", "3"),
    (SEARCH, "environment.floor: null", "", ""),
    (SEARCH, "environment.reference: null", "", ""),
    (SEARCH, "environment.target: null, search.objective: env_steps_to_target", "", ""),
    (SEARCH, "environment.reference: 0", "", "0.0"),
    (SEARCH, "environment.target: 0", "", "0.0"),
    (SEARCH, "environment.target: 501", "", "501"),
    (SEARCH, "environment.backend: envpool, runner: stock", "", "envpool"),
    (SEARCH, "parameters.normalize_rewards: 1, resources.num_learners: 2", "", "1"),
    (SEARCH, "environment.kwargs: {a: [{b: .inf}]}", "environment.kwargs.a.0.b", "inf"),
    (SEARCH, "throughput.grids.a.num_epochs: [1, 2]", "throughput", ""),
    (SEARCH, "model: {conv_net: nature, conv_filters: [[16, 4, 2]]}", "model.conv_filters", ""),
    (SEARCH, "config_args: a", "", "a"),
    (SEARCH, "config: my_train.py", "", "my_train.py"),
    (SEARCH, "parameters.train_batch_size: [400, 402], resources.num_learners: 4", "", "402"),
    (SEARCH, "parameters.minibatch_size: 63, resources.num_learners: 2", "", "63"),
    (SEARCH, "parameters.minibatch_size: null, parameters.num_minibatches: 4, resources.num_learners: 2",
     "parameters.num_minibatches", "4"),
    (SEARCH, "search.baselines: [{name: a, parameters: {num_env_runners: 3}}]",
     "search.baselines.0.parameters.num_env_runners", "3"),
    (SEARCH, "search.baselines: [{name: a, parameters: {lr: 1.0}}, {name: a, parameters: {}}]", "search.baselines", ""),
    (SEARCH, "parameters.num_envs_per_env_runner: 51, search.baselines: [{name: a, parameters: {train_batch_size: "
     "200}}]", "search.baselines.0.parameters.train_batch_size", "200"),
    (SEARCH, "search.sampler: grid, search.num_trials: null", "parameters.lr", "a range"),
    (SEARCH, "search.baselines: [{name: a, parameters: {rollout_fragment_length: 50}}]",
     "search.baselines.0.parameters.rollout_fragment_length", ""),
    (IMPALA, "parameters.train_batch_size: {low: 50, high: 900}, search.baselines: [{name: a, parameters: "
     "{train_batch_size: 525}}]", "search.baselines.0.parameters.train_batch_size", "525"),
    (TABLE, "search.num_trials: 4", "", "4"),
    (TABLE, f"search.seeds: {[*range(2000)]}, parameters.num_epochs: {[*range(1, 200)]}, parameters.lambda: [0.1, 0.2]",
     "search.sampler", "3184000"),
    (PROCGEN, "environment.kwargs: {distribution_mode: extreme}", "", ""),
    (PROCGEN, "evaluation.kwargs: {num_levels: -1}", "", ""),
    (PROCGEN, "environment.backend: gymnasium", "", "gymnasium"),
    # algorithms
    (A2C, "learner: rllib", "algorithm", "A2C"),
    (A2C, "resources.num_gpus_per_learner: 1", "algorithm", "A2C"),
    (A2C, "parameters.num_minibatches: 2", "", ""),
    (IMPALA, "learner: fused", "", "fused"),
    (IMPALA, "execution: emulated", "", "emulated"),
    (IMPALA, "parameters.normalize_rewards: 1", "", ""),
    (IMPALA, "parameters.train_batch_size: 525", "", "525"),
    (IMPALA, "parameters.lr_end_fraction: [0.0, 1.0], budget: {iterations: 5}", "budget.env_steps", ""),
    (SEARCH, "parameters.clip_end_fraction: 0.5, budget: {iterations: 5}", "budget.env_steps", ""),
    (IMPALA, "kind: throughput, throughput: {grids: {a: {num_env_runners: [1, 2]}}}", "algorithm", ""),
    (A2C, "search: {}, parameters.lr: [0.1, 0.2], holdup: {target_scale: 2, small_scale: 1}", "holdup", ""),
    # scripts
    (SCRIPTED, "algorithm: APPO", "", "APPO"),
    (SCRIPTED, "environment.id: Pendulum-v1", "", "Pendulum-v1"),
    (SCRIPTED, "environment.step_wait_ms: 2", "", "2.0"),
    (SEARCH, "environment.process: own", "parameters.num_envs_per_env_runner", ""),
    (OF_SAC, "parameters.steps_per_env_runner: 9", "", "9"),
    (SCHEDULED, "parameters.grad_clip: 1.0", "", ""),
    (SCHEDULED, "parameters.lr_scaling_exponent: 0.5", "", ""),
    (SCHEDULED, "search: {}, holdup: {target_scale: 2, small_scale: 1}", "holdup", ""),
    # times
    (TIMED, "throughput: null", "", ""),
    (TIMED, "algorithm: A2C, parameters.num_epochs: null, parameters.minibatch_size: null",
     "throughput.grids.epochs.num_epochs", ""),
    (TIMED, "throughput.grids.bad: {num_env_runners: [1, 4], steps_per_env_runner: 50}", "", "100 > 50"),
    (TIMED, "throughput.grids.bad: {num_env_runners: [401, 500]}", "", "401 lanes and 400 steps"),
    (TIMED, "throughput.grids.bad: {num_learners: 4, train_batch_size: 402}", "", "402"),
    (TIMED, f"throughput.grids.bad: {{num_epochs: {list(range(1, 102))}, train_batch_size: [400, 500, 600, 700, "
     f"800, 900, 1000, 1100, 1200, 1300]}}", "throughput.grids", "1020"),
    (TIMED, "parameters.num_env_runners: [1, 2]", "", "several"),
    (TIMED, "parameters.minibatch_size: 500", "", "500 > 400"),
    (TIMED, "budget.iterations: 3", "", "3"),
    # hold-up studies
    (HELD_UP, "search.sampler: grid", "", "grid"),
    (HELD_UP, "search: {num_trials: 9, seeds: [1, 2], baselines: [{name: a, parameters: {}}]}", "search.seeds", ""),
    (HELD_UP, "budget.iterations: 9", "", "9"),
    (HELD_UP, "resources.num_learners: 2", "", "2"),
    (HELD_UP, "evaluation.num_evaluations: 1", "", "1"),
    (HELD_UP, "runner: stock", "", "stock"),
    (HELD_UP, "parameters.lr: 0.1, parameters.steps_per_env_runner: 100", "parameters", ""),
    (HELD_UP, "holdup.race.blocks: [60, 41]", "", "[60, 41]"),
    (HELD_UP, "evaluation.seed: 8", "", "8"),
    (HELD_UP, "holdup.published: {num_env_runners: 2}", "holdup.published", ""),
    (HELD_UP, "search: {}, holdup.published: {num_minibatches: 2, minibatch_size: 9}",
     "holdup.published.num_minibatches", "both"),
    (HELD_UP, "holdup.target_scale: 46", "", "46"),
    (HELD_UP, "holdup.target_scale: 2", "", "2"),
    (HELD_UP, "holdup.small_scale: 6", "", "6"),
    (HELD_UP, "holdup.unseen_scales: [6, 12]", "", "[6, 12]"),
    (HELD_UP, "holdup.num_settings: 7", "", "7"),
]  # fmt: skip

KEPT: list[tuple[Mapping[str, Any], str]] = [
    (SEARCH, "parameters.minibatch_size: 800"),
    (SEARCH, "search.baselines: [{name: a, parameters: {lr: 1.0, num_minibatches: 2}}]"),  # outside of the space
    (SEARCH, "parameters.train_batch_size: [8, 800], parameters.minibatch_size: 8"),
    (SEARCH, "parameters.num_env_runners: [1, 400]"),  # 800 lanes
    (SEARCH, "parameters.train_batch_size: 333"),  # the batched runner fills any batch to the step
    (SEARCH, "environment.backend: envpool, parameters.train_batch_size: [200, 800]"),
    (SEARCH, "runner: stock, learner: rllib"),
    (SEARCH, "environment.target: 500"),
    (SEARCH, "resources.num_learners: 3, parameters.minibatch_size: 63"),
    (SEARCH, "resources.num_gpus_per_learner: 0.25"),
    (SEARCH, "search.num_trials: 3, search.baselines: [{name: a, parameters: {lr: 0.01}}]"),
    (SEARCH, "parameters.num_envs_per_env_runner: 50, search.baselines: [{name: a, parameters: {train_batch_size: "
     "200}}]"),
    (PROCGEN, "environment.kwargs: {num_levels: 0}"),
    (PROCGEN, "environment.kwargs: {start_level: 1000000000}"),
    (IMPALA, "parameters.num_env_runners: [200], parameters.train_batch_size: 100"),  # what a few of the runners bring
    (IMPALA, "parameters.lr_end_fraction: 1.0, budget: {iterations: 5}"),
    (TIMED, "throughput.grids.most: {num_env_runners: [400]}"),
    (HELD_UP, "holdup.race.blocks: [60, 40]"),
    (HELD_UP, "evaluation.seed: 9, search.sampler_seed: 9"),  # as study.json has them
    (HELD_UP, "holdup.num_settings: 8"),
    (HELD_UP, "evaluation.num_evaluations: 2"),
]  # fmt: skip


def changed(base: Mapping[str, Any], changes: str) -> dict[str, Any]:
    said = YAML(typ="safe").load(f"{{{changes}}}")
    return spaces.with_changes(base, **{key.replace(".", "__"): value for key, value in said.items()})


def parse(content: dict[str, Any]) -> StudySpec:
    return parse_space(Source(name="test", content=content))


@pytest.mark.parametrize(("base", "changes", "where", "got"), BROKEN, ids=[row[1][:60] for row in BROKEN])
def test_a_broken_rule_is_a_fault_with_its_place_and_the_value(base, changes, where, got):
    with pytest.raises(SpaceError) as caught:
        parse(changed(base, changes))
    place = where or changes.partition(":")[0]
    faults = [fault for fault in caught.value.faults if fault.where == place]
    assert any(got in fault.got and fault.rule and fault.fix for fault in faults), caught.value


@pytest.mark.parametrize(("base", "changes"), KEPT, ids=[row[1][:60] for row in KEPT])
def test_what_lies_just_inside_of_a_rule_is_accepted(base, changes):
    parse(changed(base, changes))


def test_every_row_of_the_tables_is_broken_by_one_of_these_spaces():
    specs = []
    for base, changes, *_ in BROKEN:
        with contextlib.suppress(ValidationError):  # the rule of a section
            specs.append(StudySpec.model_validate(changed(base, changes)))
    assert [rule for _, when, rule, _ in (*LEFT_OUT, *NEEDED, *MUST) if not any(when(spec) for spec in specs)] == []
