"""What is made of the recorded studies, and of invented ones, is what was made of them before."""

import json
from pathlib import Path

import pytest

from tests.golden import entry, examples


def test_the_certificate_of_an_example_written_anew_has_the_same_bytes(tmp_path: Path) -> None:
    study = "example_study"
    for name, content in examples.certificate_anew(study, tmp_path).items():
        assert content == (examples.ANALYSIS / study / name).read_bytes(), name


@pytest.mark.parametrize("name", ["example_study", "example_throughput", "example_coinrun"])
def test_the_table_of_trials_written_anew_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    entry.write_trials_csv(examples.ANALYSIS / name, tmp_path / "trials.csv")
    assert (tmp_path / "trials.csv").read_bytes() == (examples.ANALYSIS / name / "trials.csv").read_bytes()


@pytest.mark.parametrize("name", examples.NAMES)
def test_the_frame_of_trials_is_the_recorded_one(name: str) -> None:
    recorded = json.loads((examples.GOLDEN / name / "frame.json").read_text())
    assert json.loads(examples.frame_of(name)) == recorded


@pytest.mark.parametrize("name", examples.NAMES)
def test_the_report_holds_what_is_recorded(name: str, tmp_path: Path) -> None:
    for file, text in examples.report_of(name, tmp_path).items():
        assert text == (examples.GOLDEN / name / file).read_text(), file


@pytest.mark.parametrize("name", ["scaling", "amdahl", "provisional", "search", "arms", "certified"])
def test_all_that_the_analysis_says_of_an_invented_study_is_what_is_recorded(name: str) -> None:
    assert examples.views_of(examples.invented()[name]) == (examples.GOLDEN / "invented" / f"{name}.txt").read_text()
