"""A trial's values in the person's own script: what is replaced, what is added, and what is left to the person."""

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from study.adopted.patching import Change, _unlike, _with_value, changes_of, patched_script
from study.errors import RecordError
from study.space.script import ScriptFacts
from study.space.spec import StudySpec
from tests.script_facts import facts, script_spec

SCRIPT = """#!/usr/bin/env python
from ray.rllib.algorithms.ppo import PPOConfig

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=1)
    .training(
        lr=3e-4,  # \u00fcberlegt
        train_batch_size_per_learner=2_000,
        gamma=0.98,
    )
)

if __name__ == "__main__":
    config.build_algo().train()
"""


def facts_of(text: bytes, changes: dict[str, Any], **values: Any) -> ScriptFacts:
    of_rllib = {"lambda": 1.0, "clip_param": 0.3, "vf_clip_param": 10.0, "kl_coeff": 0.2, "kl_target": 0.01}
    of_rllib |= {"entropy_coeff": 0.0, "vf_loss_coeff": 1.0, "grad_clip": None, "num_epochs": 30}
    given = {**of_rllib, "num_env_runners": 1, "train_batch_size": 2000, "lr": 3e-4, "gamma": 0.98}
    given |= {"minibatch_size": 128, "num_envs_per_env_runner": 1, **values}
    source = {"file": "my_train.py", "sha256": hashlib.sha256(text).hexdigest()}
    return facts(source=source, values=given, **changes)


def study_of(
    folder: Path, text: str = SCRIPT, *, encoding: str = "utf-8", changes: dict[str, Any] | None = None, **values: Any
) -> tuple[StudySpec, dict[str, Any]]:
    """Return the space of a script that is written to a folder, and the setting with the script's own values."""
    file = folder / "my_train.py"
    file.write_text(text, encoding=encoding)
    found = facts_of(file.read_bytes(), changes or {}, **values)
    return script_spec(found, config=str(file), budget={"env_steps": 20_000}), dict(found.defaults)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c.training(lr=3e-4)", "c.training(lr=0.01)"),
        ("c.training(gamma=0.9)", "c.training(lr=0.01, gamma=0.9)"),
        ("c.training()", "c.training(lr=0.01)"),
        ("c.lr = 3e-4", "c.lr = 0.01"),
        ("c.training(lr=[[0, 1.0], [10, 0.1]])", "c.training(lr=0.01)"),
        ("é = 1; c.training(lr=1, gamma=2)", "é = 1; c.training(lr=0.01, gamma=2)"),
        ("c.training(\n    gamma=0.9,\n)", "c.training(\n    lr=0.01,\n    gamma=0.9,\n)"),
        ("c.training(lr=1)\nc.training(lr=2)", "c.training(lr=1)\nc.training(lr=0.01)"),
        ("c.training(x=(a if b else 2))", "c.training(lr=0.01, x=(a if b else 2))"),
        ("c.training(  # two,\n    x=(1, 2),\n)", "c.training(  # two,\n    lr=0.01,\n    x=(1, 2),\n)"),
        ("c.training(**more)", "c.training(lr=0.01, **more)"),
        ("\f\nx = 1\nc.training(lr=1)", "\f\nx = 1\nc.training(lr=0.01)"),
        ("c.training(\r\n    gamma=1\r\n)", "c.training(\r\n    lr=0.01,\r\n    gamma=1\r\n)"),
        ("c.training(lr=args.lr)", None),
        ("c = {'lr': 1}", None),
    ],
)
def test_where_a_value_goes(text: str, expected: str | None) -> None:
    change = Change(parameter="lr", method="training", names=("lr",), value=0.01)
    assert _with_value(text, change) == expected


@pytest.mark.minutes
def test_the_patch_is_a_few_lines_that_patch_takes_and_that_say_what_the_trial_had(tmp_path: Path) -> None:
    (tmp_path / "beside.txt").write_text("")
    reads = 'open(__file__.replace("my_train.py", "beside.txt")).close()\n\nif __name__'
    spec, own = study_of(tmp_path, SCRIPT.replace("if __name__", reads))
    patched = patched_script(spec, {**own, "num_env_runners": 2, "lr": 0.01, "num_epochs": 7}, may_run=True)
    assert patched.why == ""
    assert [(each.method, *each.names, each.value) for each in patched.changes] == [
        ("env_runners", "num_env_runners", 2),
        ("training", "num_epochs", 7),
        ("training", "lr", 0.01),
    ]
    changed = [line for line in patched.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == [
        "-    .env_runners(num_env_runners=1)",
        "+    .env_runners(num_env_runners=2)",
        "-        lr=3e-4,  # \u00fcberlegt",
        "+        num_epochs=7,",
        "+        lr=0.01,  # \u00fcberlegt",
    ]
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patched.diff, text=True, check=True)
    assert (tmp_path / "my_train.py").read_text() == patched.after


@pytest.mark.minutes
def test_a_batch_is_that_of_one_learner_of_the_script_s(tmp_path: Path) -> None:
    text = SCRIPT.replace(".training(", ".learners(num_learners=2)\n    .training(")
    spec, own = study_of(tmp_path, text, changes={"num_learners": 2}, train_batch_size=4000, minibatch_size=256)
    patched = patched_script(spec, {**own, "train_batch_size": 6000}, may_run=True)
    assert patched.why == ""
    assert "train_batch_size_per_learner=3000," in patched.diff


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SCRIPT.replace("lr=3e-4", "lr=float('3e-4')"), r"no literal for training\(lr="),
        pytest.param(
            SCRIPT.replace("if __name__", "config.lr = float('3e-4')\nif __name__"),
            r"something else in it decides: lr is 0\.0003, must be 0\.01",
            marks=pytest.mark.minutes,
        ),
    ],
)
def test_what_the_script_computes_is_left_to_the_person_as_lines_to_add(text: str, why: str, tmp_path: Path) -> None:
    spec, own = study_of(tmp_path, text)
    patched = patched_script(spec, {**own, "num_env_runners": 2, "lr": 0.01}, may_run=True)
    assert patched.after is None
    assert re.search(why, patched.why), patched.why
    assert patched.lines == "config.env_runners(num_env_runners=2)\nconfig.training(lr=0.01)\n"


def test_a_patch_that_changes_another_setting_does_not_count() -> None:
    """As where the script has `Defaults.lr = 3e-4`, and gives it to its environment, too."""
    change = Change(parameter="lr", method="training", names=("lr",), value=0.01)
    before, after = ({"values": {"lr": lr}, "settings": {"env_config": {"pace": lr}}} for lr in (3e-4, 0.01))
    found = list(_unlike(facts(**before), facts(**after), (change,)))
    assert found == ["env_config is {'pace': 0.01}, was {'pace': 0.0003}"]


def test_a_script_that_was_changed_is_refused_and_one_that_must_not_run_is_not_run(tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'mark')!r}, 'w')\n{SCRIPT}"
    spec, own = study_of(tmp_path, text)
    patched = patched_script(spec, {**own, "lr": 0.01}, may_run=False)
    assert "another user's" in patched.why
    assert "lr=0.01" in str(patched.after)
    assert not (tmp_path / "mark").exists()
    (tmp_path / "my_train.py").write_text(SCRIPT + "# more\n")
    with pytest.raises(RecordError, match="another text"):
        patched_script(spec, own, may_run=False)


def test_the_file_of_a_module_is_found_without_running_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    spec, own = study_of(tmp_path / "pkg")
    named = spec.model_copy(update={"config": "pkg.my_train:config"})
    assert "lr=0.01" in str(patched_script(named, {**own, "lr": 0.01}, may_run=False).after)


def test_a_learning_rate_that_falls_becomes_rllib_s_schedule(tmp_path: Path) -> None:
    spec, own = study_of(tmp_path)
    (change,) = changes_of(spec, {**own, "lr_end_fraction": 0.1})
    assert change.value == [[0, 3e-4], [20_000, pytest.approx(3e-5)]]


@pytest.mark.minutes
@pytest.mark.parametrize("rest", ["", ", grad_clip=tune.uniform(1, 2)"])
def test_what_tune_would_choose_becomes_the_trial_s_value_even_where_it_is_the_one_that_was_read(
    rest: str, tmp_path: Path
) -> None:
    text = SCRIPT.replace("lr=3e-4", f"lr=tune.grid_search([3e-4, 1e-3]){rest}").replace(
        "\nconfig", "from ray import tune\nconfig"
    )
    searched = ["grad_clip", "lr"] if rest else ["lr"]
    spec, own = study_of(tmp_path, text, changes={"searched": searched})
    patched = patched_script(spec, own, may_run=True)
    if rest:  # no value of the trial is known
        assert "Tune chooses grad_clip" in patched.why and patched.after is None
    else:
        assert patched.why == "" and "lr=0.0003,  # \u00fcberlegt" in str(patched.after)


@pytest.mark.minutes
def test_fragments_are_left_to_rllib_where_the_trial_left_them_to_it(tmp_path: Path) -> None:
    text = SCRIPT.replace("num_env_runners=1", "num_env_runners=1, rollout_fragment_length=200")
    spec, own = study_of(tmp_path, text, rollout_fragment_length=200)
    setting = {**own, "train_batch_size": 700}
    refused = patched_script(spec, setting, may_run=True)
    assert refused.after is None and "rollout_fragment_length" in refused.why
    patched = patched_script(spec, setting, fragment_is_auto=True, may_run=True)
    assert patched.why == "" and "rollout_fragment_length='auto'" in str(patched.after)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_a_file_may_have_another_encoding_and_no_end_of_its_last_line(encoding: str, tmp_path: Path) -> None:
    cookie = "# coding: latin-1\n" if encoding == "latin-1" else ""
    spec, own = study_of(
        tmp_path, f"{cookie}{SCRIPT}# \u00fc\nconfig.lr = 3e-4".replace("lr=3e-4,", ""), encoding=encoding
    )
    patched = patched_script(spec, {**own, "lr": 0.01}, may_run=False)
    end = "\\ No newline at end of file\n"
    assert f"-config.lr = 3e-4\n{end}+config.lr = 0.01\n{end}" in patched.diff
