import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import SpaceError
from study.space.space_file import SHIPPED, Source, read_text
from study.space.spec import load_space, parse_space
from tests.spaces import content, spec


def faults(**changes):
    with pytest.raises(SpaceError) as caught:
        spec(**changes)
    return {fault.place: fault for fault in caught.value.faults}


def text_faults(text):
    with pytest.raises(SpaceError) as caught:
        parse_space(read_text(text, name="test.yaml"))
    return caught.value.faults


@pytest.mark.parametrize("file", sorted(SHIPPED.glob("*.yaml")), ids=lambda file: file.name)
def test_shipped_spaces_load_and_read_back_what_they_write(file):
    loaded = load_space(file)
    again = parse_space(Source(name="again", content=json.loads(json.dumps(loaded.to_json()))))
    assert again == loaded
    assert again.digest() == loaded.digest()


def test_a_name_finds_a_shipped_space_with_or_without_its_suffix():
    assert load_space("quickstart") == load_space("quickstart.yaml")


def test_an_unknown_space_names_the_nearest():
    with pytest.raises(SpaceError, match=r"Did you mean 'quickstart\.yaml'"):
        load_space("quickstrat.yaml")


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"parameters__num_env_runner": 3}, "parameters.num_env_runner", "num_env_runners"),
        ({"parameters__num_env_runners": 0}, "parameters.num_env_runners", "greater than or equal to 1, got 0"),
        ({"parameters__num_env_runners": -4}, "parameters.num_env_runners", "got -4"),
        ({"parameters__num_env_runners": 2.5}, "parameters.num_env_runners", "whole number"),
        ({"parameters__num_env_runners": [1, 1]}, "parameters.num_env_runners", "every choice must differ"),
        ({"parameters__num_env_runners": True}, "parameters.num_env_runners", "integer"),
        ({"parameters__lr": {"low": 0.1, "high": 0.01}}, "parameters.lr", "`low < high` must hold"),
        ({"parameters__lr": {"low": 0.0, "high": 0.01, "log": True}}, "parameters.lr.low", "greater than 0"),
        ({"parameters__lr": float("nan")}, "parameters.lr", "finite number"),
        ({"parameters__lr": "3e-4"}, "parameters.lr", "number"),
        ({"parameters__gamma": 1.5}, "parameters.gamma", "less than or equal to 1"),
        ({"parameters__minibatch_size": 900}, "parameters.minibatch_size", "900 > 800"),
        ({"parameters__num_env_runners": [1, 500]}, "parameters.train_batch_size", "1000 lanes"),
        ({"budget__env_steps": None}, "budget", "one of env_steps, iterations, time_s"),
        ({"budget__iterations": [0]}, "budget.iterations", "at least 1"),
        ({"search__sampler": "tpee"}, "search.sampler", "tpee"),
        ({"search__seeds": [1, 1]}, "search.seeds", "distinct"),
        ({"search__num_trials": 2}, "search.num_trials", "every scale"),
        ({"search__num_trials": None}, "search.num_trials", "must be given"),
        ({"search__sampler": "grid"}, "parameters.lr", "list"),
        ({"environment__target": None}, "environment.target", "must be given"),
        ({"environment__reference": -1}, "environment.reference", "floor < reference"),
        ({"rllib": {"training": {"lr": 1}}}, "rllib.training.lr", "names this value already"),
        ({"rllib": {"training": {"learner_class": 1}}}, "rllib.training.learner_class", "names this value already"),
        ({"rllib": {"learners": {"num_learners": 1}}}, "rllib.learners.num_learners", "names this value already"),
        (
            {"rllib": {"env_runners": {"rollout_fragment_length": 1}}},
            "rllib.env_runners.rollout_fragment_length",
            "names this value already",
        ),
        ({"environment__step_wait_ms": -1}, "environment.step_wait_ms", "greater than or equal to 0"),
        ({"environment__backend": "envpol"}, "environment.backend", "'gymnasium' or 'envpool'"),
        ({"environment__backend": "envpool", "runner": "stock"}, "environment.backend", "runner: batched"),
        ({"runner": "stock", "execution": "emulated"}, "execution", "or execution: real"),
        ({"learner": "rllib", "standardization": "steps"}, "standardization", "learner: lean"),
        ({"resources__emulation_processes": 0}, "resources.emulation_processes", "greater than or equal to 1"),
        ({"resources__num_gpus_per_learner": 1.5}, "resources.num_gpus_per_learner", "Write 2."),
        (
            {"parameters__train_batch_size": [400, 402], "resources__num_learners": 4},
            "parameters.train_batch_size",
            "got 402 for 4",
        ),
        ({"parameters__minibatch_size": 63, "resources__num_learners": 2}, "parameters.minibatch_size", "got 63 for 2"),
        (
            {"parameters__minibatch_size": {"low": 65, "high": 66}, "resources__num_learners": 4},
            "parameters.minibatch_size",
            "multiple of the 4 learners",
        ),
        (
            {"environment__backend": "envpool", "parameters__train_batch_size": [400, 404]},
            "parameters.train_batch_size",
            "got 404 steps for the 8 lanes of 4 runners",
        ),
        (
            {"environment__backend": "envpool", "parameters__train_batch_size": {"low": 200, "high": 800, "step": 20}},
            "parameters.train_batch_size",
            "got 220 steps for the 8 lanes",
        ),
        (
            {
                "environment__backend": "envpool",
                "search__anchors": [{"name": "a", "parameters": {"train_batch_size": 333, "num_env_runners": 2}}],
            },
            "search.anchors.0.parameters.train_batch_size",
            "got 333 steps for the 4 lanes of 2 runners",
        ),
        (
            {
                "resources__num_learners": 2,
                "search__anchors": [{"name": "a", "parameters": {"train_batch_size": 333, "num_env_runners": 2}}],
            },
            "search.anchors.0.parameters.train_batch_size",
            "got 333 for 2",
        ),
        (
            {"search__anchors": [{"name": "a", "parameters": {"lr": 1.0}}]},
            "search.anchors.0.parameters.lr",
            "must lie in what parameters.lr allows",
        ),
        (
            {"search__anchors": [{"name": "a", "parameters": {"learning_rate": 1.0}}]},
            "search.anchors.0.parameters.learning_rate",
            "unknown parameter",
        ),
    ],
)
def test_each_fault_is_named_with_its_place_value_and_fix(changes, place, words):
    found = faults(**changes)
    assert place in found, found
    assert words in f"{found[place].law} {found[place].fix}"
    assert found[place].fix


@pytest.mark.parametrize(
    "changes",
    [
        {"parameters__train_batch_size": 333},  # the batched runner fills any batch to the step
        {"environment__backend": "envpool"},  # a sampled batch is rounded
        {"environment__backend": "envpool", "parameters__train_batch_size": [200, 800]},
        {"runner": "stock", "learner": "rllib", "standardization": "rllib"},
        {"standardization": "rllib"},
        {"resources__emulation_processes": 64},
        {"resources__num_learners": 3, "parameters__minibatch_size": 63},
        {"resources__num_gpus_per_learner": 0.25},
    ],
)
def test_what_can_be_honoured_is_accepted(changes):
    spec(**changes)


def test_standardization_is_the_learner_s_own_unless_told_otherwise():
    assert spec().standardization_in_use == "steps"
    assert spec(standardization="rllib").standardization_in_use == "rllib"
    assert spec(learner="rllib").standardization_in_use == "rllib"


def test_all_faults_are_reported_at_once_field_faults_and_laws_between_fields():
    found = faults(
        parameters__num_env_runner=1,
        parameters__gamma=2,
        parameters__minibatch_size=900,
        bogus=1,
        search__sampler="x",
    )
    assert set(found) == {
        "parameters.num_env_runner",
        "parameters.gamma",
        "parameters.minibatch_size",
        "bogus",
        "search.sampler",
    }


def test_a_fault_names_the_line_of_its_key():
    text = "environment:\n  id: CartPole-v1\n  floor: 0\n  reference: 500\n  target: 450\nparameters:\n"
    text += (
        "  num_env_runners: [1, 2]\n  lr: {low: 0.1, high: 0.01}\nbudget: {env_steps: 10}\nsearch: {num_trials: 2}\n"
    )
    (fault,) = text_faults(text)
    assert (fault.place, fault.line) == ("parameters.lr", 8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", "must be YAML"),
        ("a: 1\na: 2", "distinct"),
        ("a: !!python/object/apply:os.system ['true']", "tags are not allowed"),
        ("a: !custom 3", "tags are not allowed"),
        ("", "must be a mapping"),
        ("- 1", "must be a mapping"),
        ("just text", "must be a mapping"),
        ("a: " + "[" * 5000, "must be YAML"),
        ("a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
         "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
         "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]", "at most"),
    ],
)  # fmt: skip
def test_text_that_is_not_a_plain_mapping_is_refused(text, words):
    assert any(words in fault.law for fault in text_faults(text))


def test_nothing_is_constructed_from_a_tag(tmp_path):
    marker = tmp_path / "marker"
    text_faults(f"a: !!python/object/apply:os.system ['touch {marker}']")
    assert not marker.exists()


def test_overrides_replace_and_add_values_and_name_themselves_when_wrong():
    loaded = load_space("quickstart", overrides=["budget.env_steps=123", "parameters.gamma=0.9"])
    assert (loaded.budget.env_steps, loaded.domain("gamma")) == (123, 0.9)
    with pytest.raises(SpaceError, match="--set"):
        load_space("quickstart", overrides=["budget.env_steps"])
    with pytest.raises(SpaceError) as caught:
        load_space("quickstart", overrides=["budget.env_steps=-1"])
    assert caught.value.faults[0].line is None


def test_the_digest_ignores_the_number_of_trials_and_nothing_else_that_matters():
    base = spec()
    assert spec(search__num_trials=60).digest() == base.digest()
    for changes in (
        {"search__sampler": "tpe"},
        {"budget__env_steps": 1001},
        {"rllib": {"training": {"use_gae": True}}},
    ):
        assert spec(**changes).digest() != base.digest()


@given(st.floats(-1000, 1000, allow_nan=False))
def test_the_score_is_linear_between_floor_and_reference_and_clipped(value):
    score = spec().score(value)
    assert 0 <= score <= 1.2
    if 0 <= value <= 500:
        assert score == pytest.approx(value / 500)


@given(st.text(max_size=200))
def test_any_text_either_loads_or_is_a_space_error(text):
    try:
        parse_space(read_text(text, name="fuzz"))
    except SpaceError as error:
        assert error.faults


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["environment", "parameters", "budget", "search", "rllib", "evaluation"]),
)
def test_any_value_in_any_section_either_loads_or_is_a_space_error(value, section):
    try:
        parse_space(Source(name="fuzz", content={**content(), section: value}))
    except SpaceError as error:
        assert error.faults


def test_a_file_that_is_not_text_is_refused(tmp_path: Path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(SpaceError, match="UTF-8"):
        load_space(file)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"search__seeds": [2**31]}, "search.seeds.0"),
        ({"model": {"fcnet_hiddens": [64, 0]}}, "model.fcnet_hiddens.1"),
        ({"parameters__num_envs_per_env_runner": 5000}, "parameters.num_envs_per_env_runner"),
        ({"parameters__lr": {"low": 0.1, "high": 0.25, "step": 0.1}}, "parameters.lr"),
        ({"parameters__train_batch_size": {"low": 1001, "high": 1011}, "parameters__num_env_runners": [1, 46]},
         "parameters.train_batch_size"),
        ({"search__anchors": [{"name": "a", "parameters": {"train_batch_size": 300}}],
          "parameters__num_env_runners": [1, 200], "parameters__train_batch_size": {"low": 200, "high": 800}},
         "search.anchors.0.parameters.train_batch_size"),
        ({"parameters__train_batch_size": {"low": 200, "high": 800, "step": 200},
          "search__anchors": [{"name": "a", "parameters": {"train_batch_size": 300}}]},
         "search.anchors.0.parameters.train_batch_size"),
    ],
)  # fmt: skip
def test_values_that_would_fail_later_are_refused_now(changes, place):
    assert place in faults(**changes)


@pytest.mark.parametrize("name", ["", ".", "x" * 300])
def test_a_name_that_is_no_file_is_an_ordinary_error(name):
    with pytest.raises(SpaceError):
        load_space(name)
