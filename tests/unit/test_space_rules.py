"""Every rule of a space is broken once: its fault has the place, the rule, and the value that was found."""

import pytest
from ruamel.yaml import YAML

from study.errors import SpaceError
from tests.spaces import spec
from tests.throughput import throughput_spec
from tests.unit.test_stages import space as holdup_spec

SEARCH = [  # changes; place where it is not the changed key; a part of the rule and of what was found
    ("parameters.steps_per_env_runner: 100", "", "takes the place of train_batch_size", "both"),
    ("parameters.num_env_runner: 3", "", "unknown key", ""),
    ("parameters.num_env_runners: 0", "", "greater than or equal to 1", "0"),
    ("parameters.num_env_runners: [1, 1000000000]", "parameters.num_env_runners.1", "equal to 100000", "1000000000"),
    ("parameters.num_env_runners: {low: 1, high: 1.0e+9}", "parameters.num_env_runners.high", "100000", "1000000000"),
    ("parameters.num_env_runners: 2.5", "", "whole number", "2.5"),
    ("parameters.num_env_runners: true", "", "whole number", "true"),
    ("parameters.num_env_runners: [1, 1]", "", "every choice must differ", "[1, 1]"),
    ("parameters.num_env_runners: [1, 500]", "parameters.train_batch_size", "<= train_batch_size`", "1000 lanes"),
    ("parameters.num_envs_per_env_runner: 5000", "", "equal to 4096", "5000"),
    ("parameters.lr: {low: 0.1, high: 0.01}", "", "`low < high`", "low=0.1, high=0.01"),
    ("parameters.lr: {low: 0.0, high: 0.01, log: true}", "parameters.lr.low", "greater than 0", "0.0"),
    ("parameters.lr: {low: 0.1, high: 0.25, step: 0.1}", "", "a whole number of steps", "high=0.25, step=0.1"),
    ("parameters.lr: .nan", "", "finite number", "nan"),
    ("parameters.lr: '3e-4'", "", "must be a number", "'3e-4'"),
    ("parameters.gamma: 1.5", "", "equal to 1", "1.5"),
    ("parameters.minibatch_size: 900", "", "`minibatch_size <= train_batch_size`", "900 > 800"),
    ("budget.env_steps: null", "budget", "must be given", "none"),
    ("budget.iterations: [0]", "", "distinct and at least 1", "[0]"),
    ("search.sampler: tpee", "", "must be 'tpe', 'gp', 'random', 'qmc' or 'grid'", "'tpee'"),
    ("search.sampler: grid", "parameters.lr", "a list, or a range with a step", "low=0.0001, high=0.01"),
    ("search.seeds: [1, 1]", "", "must be distinct", "[1, 1]"),
    ("search.seeds: [2147483648]", "search.seeds.0", "less than 2147483648", "2147483648"),
    ("search.num_trials: 2", "", "must give every scale a trial (3: [1, 2, 4] runners)", "2"),
    ("search.num_trials: null", "", "must be given with sampler random", ""),
    ("environment.floor: null", "", "a score, which reference is given for, needs it", ""),
    ("environment.target: null, search.objective: env_steps_to_target", "", "env_steps_to_target needs it", ""),
    ("environment.reference: -1", "", "`floor < reference`", "floor=0.0, reference=-1.0"),
    ("environment.step_wait_ms: -1", "", "greater than or equal to 0", "-1"),
    ("environment.backend: envpol", "", "must be 'gymnasium' or 'envpool'", "'envpol'"),
    ("environment.backend: envpool, runner: stock", "", "`envpool` needs runner: batched", "stock"),
    ("environment.kwargs: {a: [{b: .inf}]}", "environment.kwargs.a.0.b", "finite number", "inf"),
    ("evaluation.kwargs: {a: [{b: .nan}]}", "evaluation.kwargs.a.0.b", "finite number", "nan"),
    ("rllib.training: {a: [{b: -.inf}]}", "rllib.training.a.0.b", "finite number", "-inf"),
    ("rllib.training.lr: 1", "", "the schema names this value already", ""),
    ("rllib.training.learner_class: 1", "", "the schema names this value already", ""),
    ("rllib.learners.num_learners: 1", "", "the schema names this value already", ""),
    ("rllib.env_runners.rollout_fragment_length: 1", "", "the schema names this value already", ""),
    ("model.fcnet_hiddens: [64, 0]", "model.fcnet_hiddens.1", "greater than or equal to 1", "0"),
    ("throughput.grids.a.num_epochs: [1, 2]", "throughput", "needs kind: throughput", "kind: search"),
    ("search.objective: time_to_target_s, execution: emulated", "", "in emulation only environment steps", "target_s"),
    ("standardization: steps, learner: rllib", "", "`steps` needs the fused learner, and learner: rllib is set", ""),
    ("resources.emulation_processes: 0", "", "greater than or equal to 1", "0"),
    ("resources.num_learners: 1000000000", "", "equal to 100000", "1000000000"),
    ("resources.num_gpus_per_learner: 1.5", "", "a whole number, or a share of one GPU", "1.5"),
    ("parameters.train_batch_size: [400, 402], resources.num_learners: 4", "", "an equal share", "402 for 4"),
    ("parameters.minibatch_size: 63, resources.num_learners: 2", "", "an equal share", "63 for 2"),
    ("parameters.minibatch_size: {low: 65, high: 66}, resources.num_learners: 4",
     "", "a multiple of the 4 learners", "65 to 66"),
    ("parameters.train_batch_size: {low: 1001, high: 1011}, parameters.num_env_runners: [1, 46]",
     "", "a multiple of 92 (the lanes at 46 runners", "1001 to 1011"),
]  # fmt: skip

BASELINE = [  # parameters of a baseline, changes of the space; the parameter that is wrong, rule and value as above
    ("lr: 1.0", "", "lr", "must lie in what parameters.lr allows", "1.0"),
    ("lr: '1e-3'", "", "lr", "must be a number", "'1e-3'"),
    ("learning_rate: 1.0", "", "learning_rate", "unknown parameter", ""),
    ("train_batch_size: 333, num_env_runners: 2", "resources.num_learners: 2",
     "train_batch_size", "an equal share", "333 for 2"),
    ("train_batch_size: 400, num_env_runners: 1.0e+308", "environment.backend: envpool",
     "num_env_runners", "must lie in", "1e+308"),
    ("train_batch_size: 400, num_envs_per_env_runner: 0", "environment.backend: envpool",
     "num_envs_per_env_runner", "must lie in", "0"),
    ("train_batch_size: 300", "parameters.train_batch_size: {low: 200, high: 800}, parameters.num_env_runners: [200]",
     "train_batch_size", "at least the 400 lanes of the largest scale", "300"),
    ("train_batch_size: 300", "parameters.train_batch_size: {low: 200, high: 800, step: 200}",
     "train_batch_size", "must lie in", "300"),
]  # fmt: skip

THROUGHPUT = [
    ("throughput: null", "", "must be given with kind: throughput", ""),
    ("throughput.grids: null, throughput.allocation: null", "", "something to compare", "no grid and no allocation"),
    ("throughput.grids.bad: {}", "", "must vary something", "no axis of num_env_runners"),
    ("throughput.grids.bad.num_env_runner: 3", "", "unknown key", ""),
    ("throughput.grids.bad.lr: [0.1]", "", "unknown key", ""),
    ("throughput.grids.bad.num_epochs: [1, 1]", "", "every choice must differ", "[1, 1]"),
    ("throughput.grids.bad.num_epochs: {low: 1, high: 300, step: 1}", "", "at most 200 values", "300"),
    ("throughput.grids.bad.steps_per_env_runner: 200, throughput.grids.bad.train_batch_size: 400",
     "", "takes the place of train_batch_size", "both"),
    ("throughput.grids.bad: {num_env_runners: [1, 4], steps_per_env_runner: 50}",
     "", "in cell 'n=1 k=1 B=50 m=100 E=4': `minibatch_size <= train_batch_size`", "100 > 50"),
    ("throughput.grids.bad: {num_env_runners: 500}",
     "", "in cell 'n=500 k=1 B=400 m=100 E=4': `num_env_runners * ", "500 lanes and 400 steps"),
    ("throughput.grids.bad: {num_learners: 4, train_batch_size: 402}",
     "", "in cell 'n=2 k=1 B=402 m=100 E=4 L=4': every learner takes an equal share", "402 for 4"),
    ("throughput.allocation.trials: [1, 5]", "", "every trial needs 1 CPUs", "5 trials for the 8 CPUs of 7 runners"),
    ("throughput.allocation.trials: [2, 2]", "", "must be distinct", "[2, 2]"),
    ("throughput.allocation.parameters.lr: 1", "", "is not varied here", ""),
    ("throughput.allocation.parameters.train_batch_size: 0", "", "must be >= 1", "0"),
    ("throughput.iterations: 0", "", "greater than or equal to 1", "0"),
    ("parameters.num_env_runners: [1, 2]", "", "the base cell has one value", "a list"),
    ("parameters.lr: {low: 0.0001, high: 0.001}", "", "the base cell has one value", "a range"),
    ("parameters.minibatch_size: 500", "", "`minibatch_size <= train_batch_size`", "500 > 400"),
    ("budget: {iterations: 3}", "", "counts its iterations itself", ""),
    ("search.num_trials: 3", "", "searches for nothing", ""),
    ("search.sampler: grid", "", "searches for nothing", ""),
    ("evaluation: {episodes: 3}", "", "evaluates nothing", ""),
    ("kind: troughput", "", "must be 'search' or 'throughput'", "'troughput'"),
]  # fmt: skip

HOLDUP = [
    ("search.sampler: grid", "parameters.steps_per_env_runner", "or a range with a step", "low=20, high=200"),
    ("search.sampler: grid", "", "a hold-up study proposes settings", "grid"),
    ("search.num_trials: 9", "", "counts its trials itself", ""),
    ("search.seeds: [1, 2]", "", "has seeds of its own", ""),
    ("budget.iterations: 9", "", "iterations of settings differ in their batches", ""),
    ("resources.num_learners: 2", "", "batches that learners cannot share evenly", "2 learners"),
    ("evaluation.num_evaluations: 1", "", "two consecutive evaluations", "1"),
    *(
        (f"environment.{name}: true, holdup: {{confirm: {{num_seeds: 6, num_seeds_others: 5, num_seeds_stock: 2}}}}",
         "", "must be left out where RLlib's own runner and learner confirm", "true and 2 seeds of theirs")
        for name in ("normalize_observations", "normalize_rewards")
    ),
]  # fmt: skip

HOLDUP_SECTION = [  # changes of the section `holdup`
    ("rank_seeds: {first: 8, count: 4}", "", "must share no seed with tune_seeds", "8"),
    ("rank_seeds: {first: 101, count: 1}", "", "race and stress needs 2", "1"),
    ("test_seeds: {first: 102, count: 9}", "", "must share no seed with rank_seeds", "102"),
    ("test_seeds: {first: 1001, count: 4}", "", "the confirmation needs 6", "4"),
    ("target_scale: 1", "", "must not lie below every searched scale", "1"),
    ("target_scale: 1", "small_scale", "`small_scale < target_scale`", "2 and 1"),
    ("target_scale: 46", "", "must be among parameters.num_env_runners", "46"),
    ("small_scale: 3", "", "must be among parameters.num_env_runners", "3"),
    ("small_scale: 6", "", "must be the smallest searched scale", "6 with [2] below it"),
    ("unseen_scales: [6, 12]", "", "that no earlier stage runs", "[6]"),
    ("unseen_scales: [12, 12]", "", "must be distinct", "[12, 12]"),
    ("num_settings: 4, race: {num_settings: 5}", "", "the race needs 5 settings to choose from", "4"),
    ("stress: {num_settings: 5, num_seeds: 2}", "stress.num_settings", "must not exceed race.num_settings", "5 > 4"),
    ("measure: {scales: [2, 2]}", "measure.scales", "must be distinct", "[2, 2]"),
    ("published: {lr: 0.0001}", "", "belong together", "one of the two"),
    ("baselines: [published]", "published", "belong together", "one of the two"),
    ("published: {lr: -1.0}, baselines: [published]", "published.lr", "must be > 0", "-1.0"),
    ("published: {batch: 1}, baselines: [published]", "published.batch", "unknown parameter", ""),
    ("published: {num_epochs: 1.5}, baselines: [published]", "published.num_epochs", "whole number", "1.5"),
    ("published: {train_batch_size: 9, steps_per_env_runner: 9}, baselines: [published]",
     "published.steps_per_env_runner", "takes the place of train_batch_size", "both"),
]  # fmt: skip


def of_baseline(parameters, changes, name, *problem):
    """Return the row of a baseline's parameters in the form of the others."""
    baseline = f"search.baselines: [{{name: a, parameters: {{{parameters}}}}}], {changes}"
    return baseline, f"search.baselines.0.parameters.{name}", *problem


def of_holdup(changes, where, *problem):
    """Return the row of a change in the section `holdup` in the form of the others."""
    return f"holdup: {{{changes}}}", f"holdup.{where or changes.partition(':')[0]}", *problem


@pytest.mark.parametrize(
    ("build", "changes", "where", "rule", "got"),
    [
        *((spec, *row) for row in SEARCH),
        *((spec, *of_baseline(*row)) for row in BASELINE),
        *((throughput_spec, *row) for row in THROUGHPUT),
        *((holdup_spec, *row) for row in HOLDUP),
        *((holdup_spec, *of_holdup(*row)) for row in HOLDUP_SECTION),
    ],
)
def test_a_broken_rule_is_a_fault_with_its_place_and_the_value(build, changes, where, rule, got):
    content = YAML(typ="safe").load(f"{{{changes}}}")
    with pytest.raises(SpaceError) as caught:
        build(**{key.replace(".", "__"): value for key, value in content.items()})
    faults = [fault for fault in caught.value.faults if fault.where == (where or next(iter(content)))]
    assert any(rule in fault.rule and got in fault.got and fault.fix for fault in faults), caught.value
