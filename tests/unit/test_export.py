"""What leaves the study: a script without this project, and a space file of it."""

import ast
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from study.cli import commands as cli
from study.designs.holdup.certificate import make_certificate
from study.errors import AnalysisError, SpaceError
from study.exporting.script import plain_script, trial_as_script, trial_as_space, trial_of
from study.records.folder import StudyFolder
from study.space.parameters import ALGORITHMS, PARAMETERS
from study.space.parsing import parse_space, read_text
from study.space.settings import resolve
from study.space.spec import StudySpec
from tests import holdup, synthetic
from tests.scripts import FACTS, facts, script_spec
from tests.spaces import requests_of, throughput_spec
from tests.spaces import spec as plain_spec
from tests.values import replace

SETTING = {name: PARAMETERS[name].default for name in ALGORITHMS["PPO"].parameters if not PARAMETERS[name].optional} | {
    "num_env_runners": 4
}


def arguments(script: str, method: str) -> dict[str, object]:
    """Return what the script passes to a method of the configuration, read from its source."""
    calls = [node for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Call)]
    (call,) = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == method]
    return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}


def test_a_script_holds_the_texts_of_a_space_and_its_header_as_texts() -> None:
    attack = 'x\'); import os; (\'"""\nimport os\rimport os\u2028import os'
    changes = {"environment__id": attack, "environment__kwargs": {attack: attack}}
    script = plain_script(plain_spec(**changes), SETTING, header=[attack], iterations=None)
    nodes = [*ast.walk(ast.parse(script))]
    assert "os" not in [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    assert attack in [node.value for node in nodes if isinstance(node, ast.Constant)]


def test_what_rllib_lacks_is_not_left_out_of_a_script() -> None:
    for lacking, changes in {
        "conv_net": {"model__conv_net": "nature"},
        "the update of A2C": {"algorithm": "A2C", "parameters__minibatch_size": None},
        "the backend envpool": {"environment__backend": "envpool"},
    }.items():
        with pytest.raises(AnalysisError, match=rf"RLlib lacks {lacking}\. Fix: Use `export --format yaml`"):
            plain_script(plain_spec(**changes), SETTING, header=[], iterations=None)


# --- any trial of any study -------------------------------------------------------------------------------------


def study_of(path: Path, spec: StudySpec, *, trials: int = 1, **changes: Any) -> StudyFolder:
    """Return a study whose trials have a complete setting and, but for the last one, have ended."""
    folder = synthetic.make_folder(path, of=spec)
    synthetic.append(folder, synthetic.opened())
    for trial in range(trials):
        begun, *others = synthetic.whole_trial(trial)
        setting = {**SETTING, "lr": 0.001 * (trial + 1)} | changes.pop("setting", {})
        ended = others if trial < trials - 1 or trials == 1 else others[:-1]
        synthetic.append(folder, replace(begun, setting=setting, seed=7, **changes), *ended)
    return folder


def exported(folder: StudyFolder, *words: str) -> str:
    done = CliRunner().invoke(cli.app, ["export", str(folder.path), *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_chosen_setting_of_a_hold_up_study_is_exported_for_any_number_of_runners(tmp_path: Path) -> None:
    spec = holdup.holdup_spec()
    study = holdup.write_study(tmp_path / "demo", spec)
    text, chosen = exported(study, "--scale", "9", "--format", "yaml"), make_certificate(study)
    again = parse_space(read_text(text, name="export"))
    assert {name: again.domain(name) for name in again.parameter_names} == resolve(chosen["winner"]["rule"], 9)
    assert [request.num_env_runners for request in requests_of(again)] == [9]
    assert (again.tuned, again.environment.target, again.budget.env_steps, again.holdup) == ({}, 450, 2000, None)
    warning = "# WARNING: these are its numbers for 9 environment runners, with which the trial did not run."
    for said in (text, exported(study, "--scale", "9")):
        assert warning in said and f"# The study chose this setting, which {chosen['sentence']}." in said
    assert warning not in exported(study, "--scale", "6") == exported(study)
    unfinished = holdup.write_study(tmp_path / "begun", spec, holdup.study_records(spec, until="confirm"))
    refused = CliRunner().invoke(cli.app, ["export", str(unfinished.path)])
    assert "a certificate needs a confirmed study" in str(refused.exception)


def test_a_trial_of_a_search_is_exported_with_its_seed_and_what_became_of_it(tmp_path: Path) -> None:
    folder = study_of(tmp_path / "demo", plain_spec(), trials=2)
    script = exported(folder, "--trial", "0")
    assert arguments(script, "training")["lr"] == 0.001
    assert "at 4 environment runners, seed 7." in script.splitlines()[0]
    assert "Last evaluation: mean return " in script and "def make_config(seed=7):" in script
    assert exported(folder) == script, "by default the best"
    warning = "# WARNING: this trial is running."
    assert warning not in script and warning in exported(folder, "--trial", "1")


def test_a_trial_becomes_a_space_that_runs_it_again(tmp_path: Path) -> None:
    folder = study_of(tmp_path / "demo", plain_spec(budget__iterations=5), iterations=5)
    spec = parse_space(read_text(exported(folder, "--trial", "0", "--format", "yaml"), name="export"))
    assert {name: spec.domain(name) for name in spec.parameter_names} == SETTING | {"lr": 0.001}
    assert [(each.seed, each.iterations) for each in requests_of(spec)] == [(7, 5)]


def test_a_trial_of_a_throughput_study_has_its_learners_and_no_space(tmp_path: Path) -> None:
    folder = study_of(tmp_path / "demo", throughput_spec(), setting={"num_learners": 2}, iterations=9)
    script = exported(folder, "--trial", "0")
    assert arguments(script, "learners")["num_learners"] == 2
    assert arguments(script, "training")["train_batch_size_per_learner"] == SETTING["train_batch_size"] / 2
    assert "iterations < 9" in script
    with pytest.raises(AnalysisError, match="a throughput study"):
        trial_as_space(trial_of(folder, 0))
    with pytest.raises(SpaceError, match="--trial: must be a trial of"):
        trial_of(folder, 9)


def test_a_trial_of_a_script_is_the_calls_that_give_the_script_its_values(tmp_path: Path) -> None:
    found = facts(num_learners=2, values={**FACTS["values"], "kl_coeff": 0.0}, searched=["gamma"])
    own = dict(found.defaults)
    changed = {"num_env_runners": 4, "train_batch_size": 600, "kl_coeff": 0.3}

    def calls(setting: dict[str, Any]) -> list[str]:
        folder = study_of(tmp_path / str(len(list(tmp_path.iterdir()))), script_spec(found))
        trial = trial_of(folder, 0)
        text = trial_as_script(replace(trial, setting=setting))
        return [line for line in text.splitlines() if not line.startswith("#")]

    assert calls(own) == ["config.training(gamma=0.99)"], "what the script lets Tune choose is always given"
    assert calls({**own, **changed}) == [
        "config.env_runners(num_env_runners=4)",
        "config.training(train_batch_size_per_learner=300, gamma=0.99, kl_coeff=0.3, use_kl_loss=True)",
    ]
    assert calls({**own, "lr_end_fraction": 0.1}) == ["config.training(gamma=0.99, lr=[[0, 0.001], [800, 0.0001]])"]
