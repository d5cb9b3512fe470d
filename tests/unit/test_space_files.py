import shutil
from pathlib import Path

import pytest

from study.adopted.loading import load_space
from study.driver.opening import RunOptions, resumed_identity
from study.errors import RecordError, SpaceError
from study.options import load
from study.records.folder import StudyFolder
from study.space.parsing import SHIPPED, parse_space, read_text
from study.space.spec import as_of_now
from tests import holdup
from tests.spaces import read_again, spec, throughput_spec

ROOT = Path(__file__).resolve().parents[2]


def text_faults(text):
    with pytest.raises(SpaceError) as caught:
        parse_space(read_text(text, name="test.yaml"))
    return caught.value.faults


@pytest.mark.parametrize("file", sorted(SHIPPED.glob("*.yaml")), ids=lambda file: file.name)
def test_shipped_spaces_load_and_read_back_what_they_write(file):
    loaded = load_space(file)
    again = read_again(loaded)
    assert (again, again.digest()) == (loaded, loaded.digest())


def test_an_unknown_space_names_the_nearest():
    for name, said in (("quickstrat.yaml", r"got 'quickstrat\.yaml'.*'quickstart\.yaml'"), (".", ""), ("x" * 300, "")):
        with pytest.raises(SpaceError, match=f"no such file.*{said}"):
            load_space(name)


def test_all_faults_of_fields_are_reported_at_once_and_then_all_rules_between_fields():
    fields = {"parameters.num_env_runner": 1, "parameters.gamma": 2, "bogus": 1, "search.sampler": "x"}
    rules = {"parameters.minibatch_size": 900, "environment.floor": None, "config_args": "a"}
    for wrong in (fields, rules):
        with pytest.raises(SpaceError) as caught:
            spec(**{where.replace(".", "__"): value for where, value in wrong.items()})
        assert {fault.where for fault in caught.value.faults} == set(wrong)


def test_overrides_replace_and_add_values_and_name_themselves_when_wrong():
    loaded = load_space("quickstart", overrides=["budget.env_steps=12345", "parameters.gamma=0.9"])
    assert (loaded.budget.env_steps, loaded.domain("gamma")) == (12345, 0.9)
    with pytest.raises(SpaceError, match=r"1 problem\n  --set: must be dotted\.key=value, got 'budget\.env_steps'"):
        load_space("quickstart", overrides=["budget.env_steps"])
    with pytest.raises(SpaceError, match=r"\n  budget\.env_steps: must be greater"):  # in no line of the file
        load_space("quickstart", overrides=["budget.env_steps=-1"])


PLAIN = """environment:
  id: CartPole-v1
  floor: 20
  reference: 500
  target: 475
parameters:
  num_env_runners: [1, 2, 4]
  train_batch_size: {low: 1000, high: 4000, log: true}
  lr: {low: 1.0e-4, high: 1.0e-2, log: true}
budget:
  env_steps: 40000
search:
  num_trials: 12
"""
"""What a new user writes; line 7 is that of the runners."""

RUNNERS, BATCH, LR = "[1, 2, 4]", "{low: 1000, high: 4000, log: true}", "{low: 1.0e-4, high: 1.0e-2, log: true}"
MISTAKES = [  # text -> what stands in its place; place and line of the fault, and a part of what it says to write
    *(
        ("40000", text, "budget.env_steps", 11, "Write a whole number")
        for text in ("1,000,000", "'40000'", "1e400")
    ),
    ("budget:\n  env_steps: 40000", "budget: 40000", "budget", 10, "below it, indented, without dashes: env_steps, it"),
    *(
        (RUNNERS, text, "parameters.num_env_runners", 7, "or a range such as {low: 1, high: 46}")
        for text in ("1-46", "1, 2, 4", "")
    ),
    (RUNNERS, "{1, 2, 4}", "parameters.num_env_runners", 7, "Write 1, [1, 2] or a range"),
    (RUNNERS, "{low: 1, high: 900, step: 1}", "parameters.num_env_runners", 7, "a range such as {low: 1, high: 46}"),
    ("id: CartPole-v1", "id: 'mazes/my_maze.py:Maze'", "environment.id", 2, "Did you mean 'mazes.my_maze:Maze'?"),
    (RUNNERS, "!!python/tuple [1, 2]", "parameters.num_env_runners", 7, "Write a plain value."),
    (LR, "{low: 0,0001, high: 0.01}", "parameters.lr", 9, "or a range such as {low: 1, high: 46}"),
    (LR, "{low: 0.1, high: 0.01}", "parameters.lr", 9, "Swap the bounds"),
    (LR, "{low: 0.01, high: 0.1, log: maybe}", "parameters.lr", 9, "with log: true"),
    ("num_env_runners", "num_workers", "parameters.num_workers", 7, "Did you mean 'num_env_runners'?"),
    ("id: CartPole-v1", "id: 2020-01-01", "environment.id", 2, "Put it in quotes if it is text."),
    ("num_trials: 12", "num_trials: 12\nlr: 0.1", "lr", 14, "Did you mean 'parameters.lr'?"),
    ("num_trials: 12", "num_trials: 12\ndescription: a: b", "file", 14, "quotes around text with :"),
    ("  id", "\tid", "file", 2, "spaces in front of keys"),
    ("id: CartPole-v1", "id: Cart\x07Pole-v1", "file", 2, "no control characters"),
    (RUNNERS, "[1, 2, 4", "file", 7, "brackets in pairs"),
    (RUNNERS, "[" * 5000, "file", 7, "brackets in pairs"),
    (PLAIN, "", "file", None, "Write keys with their values"),
    ("num_trials: 12", "num_trials: 12\n  num_trials: 3", "search.num_trials", 14, "Remove one of the two."),
    ("num_trials: 12", "1: a\n  '1': b", "search.1", 14, "Remove one of the two."),
    ("num_trials: 12", "? [a, b]\n  : 3", "search", 13, "Write another key."),
    (RUNNERS, "&a [1, 2]\n  lr: *a", "parameters.num_env_runners", 7, "Write a plain value."),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where", "line", "fix"), MISTAKES, ids=lambda value: repr(value)[:30])
def test_one_mistake_of_a_new_user_is_one_fault_with_its_line_and_what_to_write(old, new, where, line, fix):
    (fault,) = text_faults(PLAIN.replace(old, new, 1))
    assert (fault.where, fault.line) == (where, line) and fix in fault.fix


@pytest.mark.parametrize("number", ["1e6", "+1.0E6", "1_000_000", "1000000.0"])
def test_whole_numbers_may_be_written_as_people_write_them(number, tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(PLAIN.replace("40000", number).replace(BATCH, "[1e3, 4.0e3]").replace(RUNNERS, "[1e0, 2]"))
    loaded = load_space(file, overrides=[f"evaluation.max_episode_steps={number}", "environment.kwargs={x: 1e3}"])
    assert [loaded.budget.env_steps, loaded.evaluation.max_episode_steps] == [1_000_000, 1_000_000]
    assert (loaded.domain("train_batch_size").choices, loaded.scales) == ([1000, 4000], (1, 2))
    assert isinstance(loaded.budget.env_steps, int)
    assert isinstance(loaded.environment.kwargs["x"], float)  # whose kind nobody here knows


def test_a_range_of_runners_stands_for_scales():
    for said, scales in (("{low: 1, high: 46}", (1, 2, 4, 8, 16, 32, 46)), ("{low: 10, high: 46}", (10, 20, 40, 46))):
        loaded = parse_space(read_text(PLAIN.replace(RUNNERS, said), name="test.yaml"))
        assert (loaded.scales, read_again(loaded).digest()) == (scales, loaded.digest())
    axes = throughput_spec(throughput__grids={"all": {"num_learners": {"low": 0, "high": 4}}}).throughput.axes()
    assert axes == {"all": {"num_learners": [0, 1, 2, 4]}}


def test_a_file_that_is_not_text_is_refused(tmp_path: Path):
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xff\xfe\x00\x01")
    for read in (load_space, lambda file: load(str(file), [], None)):
        with pytest.raises(SpaceError, match=r"UTF-8 text. Fix: Save it as UTF-8"):
            read(file)
    file.write_bytes(PLAIN.replace("12", "12 # caf\u00e9").encode("latin-1"))
    with pytest.raises(SpaceError, match=r"\(line 13\).*must be UTF-8 text"):
        load_space(file)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    "changes", [[], ["search.num_trials=21"], ['description="one\nexecution: real"', "environment.kwargs={a: [1, x]}"]]
)
def test_the_space_that_a_study_keeps_is_read_as_it_ran(mark, changes, tmp_path):
    file, kept = tmp_path / "my space.yaml", tmp_path / "space.yaml"
    file.write_bytes((mark + PLAIN).replace("\n", "\r\n").encode())
    kept.write_text(load(str(file), changes, None).text)
    assert load_space(kept) == load_space(file, overrides=changes)


# Identity


def test_the_digest_ignores_what_a_resume_may_change_and_what_equals_a_default():
    base = spec()
    usual = {"parameters__gamma": 0.99, "evaluation__seed": 10_000}
    for changes in ({"search__num_trials": 60}, {"description": "x"}, usual):
        assert spec(**changes).digest() == base.digest()
    for changes in (
        {"search__sampler": "tpe"},
        {"budget__env_steps": 1001},
        {"parameters__lr": 3e-4},
        {"environment__step_wait_ms": 4},
    ):
        assert spec(**changes).digest() != base.digest()
    appo = {"algorithm": "APPO", "parameters": {"num_env_runners": 1}}
    assert spec(**appo).digest() == spec(**appo, parameters__lr=5e-4).digest()  # the default of this algorithm
    assert spec(**appo).digest() != spec(**appo, parameters__lr=3e-4).digest()  # that of PPO


@pytest.mark.parametrize("path", sorted(ROOT.glob("analysis/example_*")), ids=lambda path: path.name)
def test_a_study_that_an_earlier_version_recorded_is_resumed_with_its_space(path, tmp_path):
    folder = StudyFolder(shutil.copytree(path, tmp_path / "demo"))
    begun = folder.identity().parse()
    options = RunOptions(name="demo", out=tmp_path, resume=True)
    assert resumed_identity(folder, read_again(begun), options) == folder.identity()
    other = begun.model_copy(update={"runner": "stock"})
    with pytest.raises(RecordError, match=r"the study was started with, got other values of runner\. Fix: "):
        resumed_identity(folder, other, options)


def test_what_other_versions_recorded_is_read_and_what_chose_trials_is_named():
    recorded = holdup.holdup_spec(holdup__published={"lr": 0.01}).to_json()
    assert as_of_now(recorded) == (recorded, [])
    for normalised in (True, False):
        environment = {**recorded["environment"], "normalize_rewards": normalised, "frame_stack": 1}
        parameters = {**recorded["parameters"], **({"normalize_rewards": 1} if normalised else {})}
        assert as_of_now({**recorded, "environment": environment}) == ({**recorded, "parameters": parameters}, [])
    baseline = {"name": "a", "parameters": {"lr": 0.1}}
    old = {**recorded, "learner": "lean", "exclusive": False, "gravity": 9.81}
    old["search"] = {**recorded["search"], "baselines": [{**baseline, "published": None}]}
    old["environment"] = {**recorded["environment"], "frame_stack": 4}
    now, gone = as_of_now(old)
    assert set(gone) == {"gravity", "environment.frame_stack"}
    assert now == {**recorded, "learner": "fused", "search": {**recorded["search"], "baselines": [baseline]}}
