"""What MLflow gets of a record, by values worked out by hand; the saved view; how far MLflow has come."""

import json
import math
import zlib
from base64 import b64decode

import pytest

from study.mirrors import mlflow_content as content
from study.mirrors import mlflow_view as view
from study.mirrors.mlflow_mirror import Cursor, MlflowMirror
from tests.holdup import holdup_spec
from tests.spaces import spec
from tests.synthetic import built, ended, iteration, make_folder, opened, started
from tests.throughput import throughput_spec
from tests.values import replace

URI = "postgresql://me:secret@db/mlflow"


def place(process, number, node, host, *runners):
    return {"process": process, "number": number, "runners": [*runners], "node": node, "host": host, "num_cpus": 1}


PLACEMENT = [
    place("main", 0, "n0", "gros-12"),
    *(place("runner", number, "n0", "gros-12", number) for number in (1, 2, 3, 7)),
    place("runner", 4, "n1", "gros-13", 4),
    place("learner", 1, "n1", "gros-13"),
    place("learner", 2, "n1", "gros-13"),
]


def values(points) -> dict[str, float]:
    assert len({point.key for point in points}) == len(points)
    return {point.key: point.value for point in points}


def test_an_iteration_begins_with_the_return_and_has_what_is_finite_and_known():
    absent = {"kl": math.nan, "entropy": math.inf, "surprise": 1.0, "score": 1.0}
    points = content.iteration_points(iteration(0, 3, **absent), 1234)
    assert values(points) == {
        "training_return": 45.0,  # 90 / 2
        "env_steps_per_s": 800.0,
        "iteration_time_s": 0.5,
        "train_batch_size_actual": 400.0,
        "num_episodes": 2.0,
        "wall_time_s": 1.5,
        "env_steps": 1200.0,
    }
    assert [point.key for point in points][:2] == ["training_return", "env_steps_per_s"]
    assert {(point.time_ms, point.step) for point in points} == {(1234, 1200)}
    assert "training_return" not in values(content.iteration_points(iteration(0, 1), 0))  # no episode has ended


def test_params_are_flat_and_the_same_for_every_trial():
    assert content.trial_values(started(7, runners=46), spec()) == {
        "num_env_runners": 46,
        "train_batch_size": 400,
        "lr": 0.00025,
        "seed": 5,
        "baseline": "none",
        "execution": "real",
        "environment": "CartPole-v1",
        "algorithm": "PPO",
        "sampler": "random",
    }


def test_tags():
    assert content.built_tags(built(0)) == {
        "engine": "unknown",
        "timing": "oversubscribed",
        "timing_reason": "3 processes on 2 cores",
        "nodes": "n0, n1",
    }
    parts = {"runner_class": "StockEnvRunner", "learner_class": "PPOTorchLearner"}
    assert content.built_tags(replace(built(0), effective=parts))["engine"] == "RLlib's own"
    assert content.ended_tags(ended(0), num_cut=0, num_episodes=6) == {
        "mlflow.note.content": "**Return 30.** 777 env steps/s (oversubscribed: 3 processes on 2 cores).",
        "status": "finished",
        "checkpoint": "checkpoints/trial_00000",
        "timing": "oversubscribed",
        "timing_reason": "3 processes on 2 cores",
    }
    assert len(content.ended_tags(replace(ended(0), reason="x" * 9000), num_cut=0, num_episodes=0)["reason"]) == 5000
    failed = content.ended_tags(ended(0, "failed"), num_cut=2, num_episodes=6)
    assert (failed["mlflow.note.content"], failed["episodes_cut"]) == ("**Failed:** because of failed", "2 of 6")
    long = {"environment": {"RAY_AUTH_MODE": "token"}, "constraints": {"others": {"a": "1"}}}
    tags = content.opened_tags(replace(opened(), provenance={**opened().provenance, **long}))
    assert not any(key.startswith(("provenance.environment", "provenance.constraints")) for key in tags)
    assert (tags["provenance.git.commit"], tags["cluster.num_nodes"]) == ("abc", "1")
    assert tags["mlflow.source.name"] == "python -m study run demo.yaml"


def test_the_placement_of_processes_is_in_words():
    placed = replace(built(0), placement=PLACEMENT)
    assert content.built_tags(placed)["placement"] == "gros-12: main, runners 1-3, 7; gros-13: runner 4, learners 1-2"
    same = [{**each, "host": "here"} for each in PLACEMENT]
    text = content.built_tags(replace(built(0), placement=same))["placement"]
    assert text == "n0 (here): main, runners 1-3, 7; n1 (here): runner 4, learners 1-2"


@pytest.mark.parametrize(
    ("space", "best", "params"),
    [
        (spec(), "final_return", ["num_env_runners", "train_batch_size", "lr"]),
        (holdup_spec(), "final_return", ["num_env_runners", "train_batch_size", "lr"]),
        (throughput_spec(), "env_steps_per_s", ["num_env_runners", "train_batch_size"]),
    ],
    ids=["search", "hold-up", "throughput"],
)
def test_the_saved_view_begins_with_parameters_and_is_in_the_order_of_the_result(tmp_path, space, best, params):
    key, value = view.view_tag(make_folder(tmp_path / "demo", URI).identity(), space)
    saved = json.loads(value)
    assert key == "mlflow.sharedViewState.id-demo"
    assert view.page_of("7", "id-demo").endswith("/7/runs?workflowType=machine_learning&viewStateShareKey=id-demo")
    state = json.loads(zlib.decompress(b64decode(saved["state"].removeprefix("deflate;"))))
    assert (state["orderByKey"], state["orderByAsc"]) == (f"metrics.`{best}`", False)
    assert state["searchFilter"] == "tags.`study.id` = 'id-demo'"
    columns = state["selectedColumns"]
    assert columns[: len(params)] == [f"params.`{name}`" for name in params]
    assert f"metrics.`{best}`" in columns
    assert "tags.`timing`" in columns
    assert ("params.`stage`" in columns) == (space.design != "search")
    first, *_ = state["compareRunCharts"]
    assert (first["type"], first["selectedParams"], first["selectedMetrics"]) == ("PARALLEL", params, [best])
    sections = {section["uuid"]: section["display"] for section in state["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {
        name for name, unfolded in sections.items() if unfolded
    }
    assert len(value) < 5000  # of an experiment's tag


@pytest.mark.parametrize("space", [spec(), holdup_spec(), throughput_spec()], ids=["search", "hold-up", "throughput"])
def test_every_scale_has_a_colour_of_its_own(space):
    named = {*space.scales, *(space.holdup.unseen_scales if space.holdup else ())}
    named |= {8} if space.throughput else set()
    colours = {runners: view.colour_of(runners, space) for runners in sorted(named)}
    assert len(set(colours.values())) == len(colours) > 1
    assert view.colour_of(1000, space) == colours[max(colours)]


CURSOR = Cursor(experiment_id="1", parent_run_id="abc", offset=12, seq=3)


@pytest.fixture
def mirror(tmp_path) -> MlflowMirror:
    return MlflowMirror(make_folder(tmp_path, URI), URI)


def test_a_cursor_that_is_written_is_read_without_the_password(mirror):
    assert mirror.read_cursor() is None
    mirror.write_cursor(CURSOR)
    assert mirror.read_cursor() == CURSOR
    assert "secret" not in mirror.folder.mirror_state.read_text()
    assert MlflowMirror(mirror.folder, "http://elsewhere").read_cursor() is None
    mirror.forget()
    mirror.forget()
    assert mirror.read_cursor() is None


def test_a_cursor_of_version_0_13_is_gone_on_with(mirror):
    mirror.write_cursor(CURSOR)
    file = mirror.folder.mirror_state
    more = {"format": 3, "time": 1.5, "status": "KILLED", "open": {"7": {"attempt": 2}}, "best": {}}
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    assert mirror.read_cursor() == CURSOR


def test_neither_identity_nor_space_shows_a_secret_of_a_script(tmp_path):
    identity = make_folder(tmp_path / "demo", "").identity()
    given = {
        "config_args": "--hf-token s3cret -n 2",
        "config_kwargs": {"api_token": "t0", "hub": {"passwords": ["t0ken", "it's"]}, "pad_token": 0, "n": None},
        "script": {"values": {"lr": 1e-3}, "settings": {"env_config": {"hf_token": "s3cret"}}},
    }
    identity = replace(identity, spec={**identity.spec, **given})
    shown = json.loads(content.identity_text(identity))["spec"]
    assert shown["config_args"] == "--hf-token *** -n 2"
    assert shown["config_kwargs"] == {"api_token": "***", "hub": {"passwords": ["***"] * 2}, "pad_token": 0, "n": None}
    assert shown["script"] == {"values": {"lr": 1e-3}, "settings": {"env_config": {"hf_token": "***"}}}
    space = """config_args: --hf-token s3cret -n 2
config_kwargs: {api_token: t0, hub: {passwords: [t0ken, %s]}, pad_token: 0}"""
    assert (
        content.space_text(space % '"it\'s"', identity)
        == """config_args: --hf-token *** -n 2
config_kwargs: {api_token: ***, hub: {passwords: ***}, pad_token: 0}"""
    )
    assert content.space_text(space % "'it''s'", identity) == "", "it would show the secret"
