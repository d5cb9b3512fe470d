"""What is made of the recorded studies, and of invented ones, is what was made of them before."""

from pathlib import Path

import pytest

from tests.golden import entry, examples


@pytest.mark.parametrize("name", ["example_study", "example_throughput", "example_coinrun"])
def test_the_table_of_trials_written_anew_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    entry.write_trials_csv(examples.ANALYSIS / name, tmp_path / "trials.csv")
    assert (tmp_path / "trials.csv").read_bytes() == (examples.ANALYSIS / name / "trials.csv").read_bytes()


@pytest.mark.parametrize("name", [*examples.RECORDED, *examples.INVENTED])
def test_all_that_the_analysis_says_of_a_study_is_what_is_recorded(name: str) -> None:
    assert examples.views_of(examples.studies()[name]) == (examples.GOLDEN / f"{name}.txt").read_text()
