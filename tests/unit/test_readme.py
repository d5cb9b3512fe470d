"""The README tells the truth: reference, commands, names."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from study import cli
from study.protocol.phases import expected_trials
from study.space.reference import field_reference
from study.space.space_file import SHIPPED
from study.space.spec import load_space

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_field_reference_is_the_schema():
    (found,) = re.findall(r"<!-- reference: .*? -->\n(.*?)<!-- /reference -->", README, flags=re.DOTALL)
    assert found == field_reference(), "paste the output of `python -m study schema --markdown`"


@pytest.mark.parametrize("file", [file for file in SHIPPED.glob("*.yaml") if load_space(file).holdup])
def test_a_hold_up_study_has_as_many_trials_as_the_table_says(file):
    count = sum(expected_trials(load_space(file)).values())
    assert re.search(rf"`{file.name}` \|.*\| up to {count}\b", README), count


def test_every_shipped_space_is_named():
    for file in SHIPPED.glob("*.yaml"):
        assert f"`{file.name}`" in README


@pytest.mark.parametrize("line", re.findall(r"^python (?:run_study\.py|-m study) .*$", README, flags=re.MULTILINE))
def test_every_option_in_an_example_exists(line):
    words = [word for word in shlex.split(line.split("#")[0].split(">")[0])[1:] if word not in ("-m",)]
    name = "run" if words[0] == "run_study.py" else words[1]
    help_text = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, [name, "--help"]).output
    for word in words:
        if word.startswith("--"):
            assert word in help_text, word


def test_the_files_of_the_picture_exist():
    picture = README.split("## How it is put together")[1].split("```")[1]
    for line in picture.splitlines():
        for word in line.split("  ")[0 if not line.startswith(" ") else 1].split():
            if word.endswith(".py"):
                assert (ROOT / word).exists() or (ROOT / "study" / word).exists(), word


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_the_test_command_is_what_ci_runs():
    assert "pip install -e '.[test]' && pytest" in README
    assert "pip install -q -e '.[test]' && pytest" in (ROOT / ".ci" / "run").read_text()
