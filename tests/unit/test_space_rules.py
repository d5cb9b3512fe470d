"""Every rule of a space is broken once: its fault has the place, the code, and the value that was found."""

import math

import pytest

from study.errors import SpaceError
from tests.spaces import spec
from tests.throughput import throughput_spec
from tests.unit.test_stages import HOLDUP as HOLDUP_BASE
from tests.unit.test_stages import space as holdup_spec

SEARCH = [  # changes; place, code and a part of what was found
    ({"parameters__steps_per_env_runner": 100}, "parameters.steps_per_env_runner", "both-of-two", "both"),
    ({"parameters__num_env_runner": 3}, "parameters.num_env_runner", "unknown-key", ""),
    ({"parameters__num_env_runners": 0}, "parameters.num_env_runners", "value-out-of-bounds", "0"),
    *(
        ({"parameters__num_env_runners": many}, f"parameters.num_env_runners{where}", "value-out-of-bounds", "00000")
        for many, where in ((1e9, ""), ([1, 10**9], ".1"), ({"low": 1, "high": 1e9}, ".high"))
    ),
    ({"resources__num_learners": 10**9}, "resources.num_learners", "value-out-of-bounds", "1000000000"),
    ({"parameters__num_env_runners": 2.5}, "parameters.num_env_runners", "wrong-type", "2.5"),
    ({"parameters__num_env_runners": [1, 1]}, "parameters.num_env_runners", "choices-not-distinct", "[1, 1]"),
    ({"parameters__num_env_runners": True}, "parameters.num_env_runners", "wrong-type", "true"),
    ({"parameters__lr": {"low": 0.1, "high": 0.01}}, "parameters.lr", "low-not-below-high", "low=0.1, high=0.01"),
    ({"parameters__lr": {"low": 0.0, "high": 0.01, "log": True}}, "parameters.lr.low", "value-out-of-bounds", "0.0"),
    ({"parameters__lr": math.nan}, "parameters.lr", "value-out-of-bounds", "nan"),
    ({"parameters__lr": "3e-4"}, "parameters.lr", "wrong-type", "'3e-4'"),
    ({"parameters__gamma": 1.5}, "parameters.gamma", "value-out-of-bounds", "1.5"),
    ({"parameters__minibatch_size": 900}, "parameters.minibatch_size", "minibatch-above-batch", "900 > 800"),
    ({"parameters__num_env_runners": [1, 500]},
     "parameters.train_batch_size", "batch-below-lanes", "1000 lanes and 800 steps"),
    ({"budget__env_steps": None}, "budget", "no-budget", "none"),
    ({"budget__iterations": [0]}, "budget.iterations", "bad-iterations", "[0]"),
    ({"search__sampler": "tpee"}, "search.sampler", "not-an-option", "'tpee'"),
    ({"search__seeds": [1, 1]}, "search.seeds", "seeds-not-distinct", "[1, 1]"),
    ({"search__num_trials": 2}, "search.num_trials", "num-trials-below-scales", "2"),
    ({"search__num_trials": None}, "search.num_trials", "num-trials-missing", ""),
    ({"search__sampler": "grid"}, "parameters.lr", "range-in-grid", "low=0.0001, high=0.01"),
    ({"environment__floor": None}, "environment.floor", "missing-return", ""),
    (
        {"environment__target": None, "search__objective": "env_steps_to_target"},
        "environment.target",
        "missing-return",
        "",
    ),
    ({"throughput": {"grids": {"a": {"num_epochs": [1, 2]}}}},
     "throughput", "throughput-of-another-kind", "kind: search"),
    ({"execution": "emulated", "search__objective": "time_to_target_s"},
     "search.objective", "objective-needs-clock", "time_to_target_s"),
    ({"environment__reference": -1}, "environment.reference", "reference-below-floor", "floor=0.0, reference=-1.0"),
    ({"rllib": {"training": {"lr": 1}}}, "rllib.training.lr", "rllib-names-schema-field", ""),
    ({"rllib": {"training": {"learner_class": 1}}}, "rllib.training.learner_class", "rllib-names-schema-field", ""),
    ({"rllib": {"learners": {"num_learners": 1}}}, "rllib.learners.num_learners", "rllib-names-schema-field", ""),
    ({"rllib": {"env_runners": {"rollout_fragment_length": 1}}},
     "rllib.env_runners.rollout_fragment_length", "rllib-names-schema-field", ""),
    ({"environment__step_wait_ms": -1}, "environment.step_wait_ms", "value-out-of-bounds", "-1"),
    ({"environment__backend": "envpol"}, "environment.backend", "not-an-option", "'envpol'"),
    ({"environment__backend": "envpool", "runner": "stock"}, "environment.backend", "envpool-needs-batched", "stock"),
    ({"runner": "stock", "execution": "emulated"}, "execution", "stock-emulated", "runner: stock"),
    ({"learner": "rllib", "standardization": "steps"},
     "standardization", "", ""),
    ({"resources__emulation_processes": 0}, "resources.emulation_processes", "value-out-of-bounds", "0"),
    ({"resources__num_gpus_per_learner": 1.5}, "resources.num_gpus_per_learner", "fraction-of-gpus", "1.5"),
    ({"parameters__train_batch_size": [400, 402], "resources__num_learners": 4},
     "parameters.train_batch_size", "batch-not-shared-evenly", "402 for 4"),
    ({"parameters__minibatch_size": 63, "resources__num_learners": 2},
     "parameters.minibatch_size", "batch-not-shared-evenly", "63 for 2"),
    ({"parameters__minibatch_size": {"low": 65, "high": 66}, "resources__num_learners": 4},
     "parameters.minibatch_size", "no-batch-for-all-learners", "65 to 66"),
    ({"environment__backend": "envpool", "parameters__train_batch_size": [400, 404]},
     "parameters.train_batch_size", "batch-not-of-all-lanes", "404 steps for the 8 lanes of 4 runners"),
    ({"environment__backend": "envpool", "parameters__train_batch_size": {"low": 200, "high": 800, "step": 20}},
     "parameters.train_batch_size", "batch-not-of-all-lanes", "220 steps for the 8 lanes of 4 runners"),
    ({"environment__backend": "envpool", "search__baselines": [{"name": "a",
      "parameters": {"train_batch_size": 333, "num_env_runners": 2}}]},
     "search.baselines.0.parameters.train_batch_size", "batch-not-of-all-lanes", "333 steps for the 4 lanes"),
    ({"resources__num_learners": 2, "search__baselines": [{"name": "a",
      "parameters": {"train_batch_size": 333, "num_env_runners": 2}}]},
     "search.baselines.0.parameters.train_batch_size", "batch-not-shared-evenly", "333 for 2"),
    ({"search__baselines": [{"name": "a", "parameters": {"lr": 1.0}}]},
     "search.baselines.0.parameters.lr", "baseline-outside-space", "1.0"),
    ({"search__baselines": [{"name": "a", "parameters": {"learning_rate": 1.0}}]},
     "search.baselines.0.parameters.learning_rate", "unknown-parameter", ""),
    *(
        ({"environment__backend": "envpool",
          "search__baselines": [{"name": "a", "parameters": {name: value, "train_batch_size": 400}}]},
         f"search.baselines.0.parameters.{name}", "baseline-outside-space", str(value))
        for name, value in (("num_env_runners", 0), ("num_env_runners", 1e308), ("num_envs_per_env_runner", 0))
    ),
    ({"search__baselines": [{"name": "a", "parameters": {"lr": "1e-3"}}]},
     "search.baselines.0.parameters.lr", "wrong-type", "'1e-3'"),
    *(
        ({where.replace(".", "__"): {"a": [{"b": value}]}}, f"{where}.a.0.b", "value-out-of-bounds", str(value))
        for where, value in (
            ("environment.kwargs", math.inf), ("evaluation.kwargs", math.nan), ("rllib.training", -math.inf))
    ),
    ({"search__seeds": [2**31]}, "search.seeds.0", "value-out-of-bounds", "2147483648"),
    ({"model": {"fcnet_hiddens": [64, 0]}}, "model.fcnet_hiddens.1", "value-out-of-bounds", "0"),
    ({"parameters__num_envs_per_env_runner": 5000},
     "parameters.num_envs_per_env_runner", "value-out-of-bounds", "5000"),
    ({"parameters__lr": {"low": 0.1, "high": 0.25, "step": 0.1}},
     "parameters.lr", "range-not-whole-steps", "low=0.1, high=0.25, step=0.1"),
    ({"parameters__train_batch_size": {"low": 1001, "high": 1011}, "parameters__num_env_runners": [1, 46]},
     "parameters.train_batch_size", "no-batch-for-all-lanes", "1001 to 1011"),
    ({"search__baselines": [{"name": "a", "parameters": {"train_batch_size": 300}}],
      "parameters__num_env_runners": [1, 200], "parameters__train_batch_size": {"low": 200, "high": 800}},
     "search.baselines.0.parameters.train_batch_size", "baseline-batch-below-lanes", "300"),
    ({"parameters__train_batch_size": {"low": 200, "high": 800, "step": 200},
      "search__baselines": [{"name": "a", "parameters": {"train_batch_size": 300}}]},
     "search.baselines.0.parameters.train_batch_size", "baseline-outside-space", "300"),
]  # fmt: skip

THROUGHPUT = [
    ({"throughput": None}, "throughput", "throughput-missing", ""),
    ({"throughput__grids": None, "throughput__allocation": None},
     "throughput.grids", "no-cells", "no grid and no allocation"),
    ({"throughput__grids__empty": {}}, "throughput.grids.empty", "empty-grid", "no axis of num_env_runners"),
    ({"throughput__grids__bad": {"num_env_runner": 3}}, "throughput.grids.bad.num_env_runner", "unknown-key", ""),
    ({"throughput__grids__bad": {"lr": [0.1]}}, "throughput.grids.bad.lr", "unknown-key", ""),
    ({"throughput__grids__bad": {"num_epochs": [1, 1]}},
     "throughput.grids.bad.num_epochs", "choices-not-distinct", "[1, 1]"),
    ({"throughput__grids__bad": {"num_epochs": {"low": 1, "high": 300, "step": 1}}},
     "throughput.grids.bad.num_epochs", "range-of-too-many-values", "300"),
    ({"throughput__grids__bad": {"train_batch_size": 400, "steps_per_env_runner": 200}},
     "throughput.grids.bad.steps_per_env_runner", "both-of-two", "both"),
    ({"throughput__grids__bad": {"num_env_runners": [1, 4], "steps_per_env_runner": 50}},
     "throughput.grids.bad", "minibatch-above-batch", "100 > 50"),
    ({"throughput__grids__bad": {"num_env_runners": 500}},
     "throughput.grids.bad", "batch-below-lanes", "500 lanes and 400 steps"),
    ({"throughput__grids__bad": {"num_learners": 4, "train_batch_size": 402}},
     "throughput.grids.bad", "batch-not-shared-evenly", "402 for 4"),
    ({"throughput__allocation__trials": [1, 5]},
     "throughput.allocation.trials", "allocation-too-small", "5 trials for the 8 CPUs of 7 runners"),
    ({"throughput__allocation__trials": [2, 2]}, "throughput.allocation.trials", "allocation-not-distinct", "[2, 2]"),
    ({"throughput__allocation__parameters": {"lr": 1}},
     "throughput.allocation.parameters.lr", "allocation-parameter-not-varied", ""),
    ({"throughput__allocation__parameters": {"train_batch_size": 0}},
     "throughput.allocation.parameters.train_batch_size", "allocation-parameter-out-of-bounds", "0"),
    ({"parameters__num_env_runners": [1, 2]}, "parameters.num_env_runners", "base-cell-varied", "a list"),
    ({"parameters__lr": {"low": 0.0001, "high": 0.001}}, "parameters.lr", "base-cell-varied", "a range"),
    ({"parameters__minibatch_size": 500}, "parameters.minibatch_size", "minibatch-above-batch", "500 > 400"),
    ({"budget": {"iterations": 3}}, "budget", "throughput-with-budget", ""),
    ({"search": {"num_trials": 3}}, "search.num_trials", "throughput-with-search", ""),
    ({"search": {"sampler": "grid"}}, "search.sampler", "throughput-with-search", ""),
    ({"evaluation": {"episodes": 3}}, "evaluation", "throughput-with-evaluation", ""),
    ({"throughput__iterations": 0}, "throughput.iterations", "value-out-of-bounds", "0"),
    ({"kind": "troughput"}, "kind", "not-an-option", "'troughput'"),
    ({"runner": "stock", "execution": "emulated"}, "execution", "stock-emulated", "runner: stock"),
]  # fmt: skip

HOLDUP_SECTION = [
    ({"rank_seeds": {"first": 8, "count": 4}}, "holdup.rank_seeds", "seeds-shared", "8"),
    ({"test_seeds": {"first": 102, "count": 9}}, "holdup.test_seeds", "seeds-shared", "102"),
    ({"test_seeds": {"first": 1001, "count": 4}}, "holdup.test_seeds", "too-few-seeds", "4"),
    ({"rank_seeds": {"first": 101, "count": 1}}, "holdup.rank_seeds", "too-few-seeds", "1"),
    ({"target_scale": 1}, "holdup.target_scale", "target-scale-below-all", "1"),
    ({"target_scale": 1}, "holdup.small_scale", "small-scale-not-below-target", "2 and 1"),
    ({"target_scale": 46}, "holdup.target_scale", "target-scale-not-searched", "46"),
    ({"small_scale": 3}, "holdup.small_scale", "small-scale-not-searched", "3"),
    ({"small_scale": 3}, "holdup.small_scale", "small-scale-not-smallest", "3 with [2] below it"),
    ({"small_scale": 6}, "holdup.small_scale", "small-scale-not-smallest", "6 with [2] below it"),
    ({"unseen_scales": [6, 12]}, "holdup.unseen_scales", "unseen-scale-searched", "[6]"),
    ({"num_settings": 4, "race": {"num_settings": 5}}, "holdup.num_settings", "too-few-settings", "4"),
    ({"stress": {"num_settings": 5, "num_seeds": 2}}, "holdup.stress.num_settings", "stress-above-race", "5 > 4"),
    ({"unseen_scales": [12, 12]}, "holdup.unseen_scales", "holdup-list-not-distinct", "[12, 12]"),
    ({"measure": {"scales": [2, 2]}}, "holdup.measure.scales", "holdup-list-not-distinct", "[2, 2]"),
    ({"baselines": ["published"], "published": {"lr": -1.0}},
     "holdup.published.lr", "published-out-of-bounds", "-1.0"),
    ({"baselines": ["published"], "published": {"train_batch_size": 9, "steps_per_env_runner": 9}},
     "holdup.published.steps_per_env_runner", "both-of-two", "both"),
    ({"baselines": ["published"]}, "holdup.published", "published-without-values", "one of the two"),
    ({"published": {"lr": 0.0001}}, "holdup.published", "published-without-values", "one of the two"),
    ({"baselines": ["published"], "published": {"batch": 1}}, "holdup.published.batch", "unknown-parameter", ""),
    ({"baselines": ["published"], "published": {"num_epochs": 1.5}},
     "holdup.published.num_epochs", "not-a-whole-number", "1.5"),
]  # fmt: skip

HOLDUP = [
    ({"search__sampler": "grid"},
     "parameters.steps_per_env_runner", "range-in-grid", "low=20, high=200"),
    ({"search__sampler": "grid"},
     "parameters.lr", "range-in-grid", "low=0.0001, high=0.01"),
    ({"search__sampler": "grid"}, "search.sampler", "holdup-with-grid", "grid"),
    ({"search__num_trials": 9}, "search.num_trials", "holdup-with-num-trials", ""),
    ({"search__seeds": [1, 2]}, "search.seeds", "holdup-with-seeds", ""),
    ({"budget__iterations": 9}, "budget.iterations", "holdup-with-iterations", ""),
    ({"resources__num_learners": 2},
     "resources.num_learners", "holdup-with-learners", "2 learners"),
    ({"evaluation__num_evaluations": 1},
     "evaluation.num_evaluations", "holdup-evaluations", "1"),
    *(
        ({f"environment__{name}": True, "holdup": {"confirm": {**HOLDUP_BASE["confirm"], "num_seeds_stock": 2}}},
         f"environment.{name}", "stock-cannot-normalize", "true and 2 seeds of theirs")
        for name in ("normalize_observations", "normalize_rewards")
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "changes", "where", "code", "got"),
    [
        *((spec, *row) for row in SEARCH),
        *((throughput_spec, *row) for row in THROUGHPUT),
        *((holdup_spec, *row) for row in HOLDUP),
        *((holdup_spec, {"holdup": changes}, *parts) for changes, *parts in HOLDUP_SECTION),
    ],
)
def test_a_broken_rule_is_a_fault_with_its_place_its_code_and_the_value(build, changes, where, code, got):
    with pytest.raises(SpaceError) as caught:
        build(**changes)
    found = {(fault.where, fault.code): fault for fault in caught.value.faults}
    assert (where, code) in found
    assert got in found[where, code].got
    assert found[where, code].rule
    assert found[where, code].fix
