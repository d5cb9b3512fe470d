"""Studies of all kinds write the recorded records, and the analysis says of studies what is recorded.

`GOLDEN=write pytest tests/golden` writes the golden files anew; `-k holdup` only those of some subjects.
"""

import os
from pathlib import Path

import pytest

from study.records.folder import StudyFolder, write_table
from study.records.ledger import ledger_of
from tests.golden import examples, sequences


def check(file: Path, found: str) -> None:
    """Compare a text with that of a golden file, or write it there."""
    if os.environ.get("GOLDEN") == "write":
        file.write_text(found)
    assert found.splitlines() == file.read_text().splitlines()


@pytest.mark.parametrize("name", sequences.CASES)
def test_a_study_killed_resumed_and_troubled_writes_the_recorded_records(name: str, tmp_path: Path) -> None:
    check(sequences.GOLDEN / f"{name}.jsonl", sequences.text_of(name, tmp_path / name))


@pytest.mark.parametrize("name", ["example_study", "example_throughput", "example_coinrun"])
def test_the_table_of_trials_written_anew_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    write_table(tmp_path / "trials.csv", ledger_of(StudyFolder(examples.ANALYSIS / name).records).rows.values())
    assert (tmp_path / "trials.csv").read_bytes() == (examples.ANALYSIS / name / "trials.csv").read_bytes()


@pytest.mark.parametrize("name", [*examples.RECORDED, *examples.INVENTED])
def test_all_that_the_analysis_says_of_a_study_is_what_is_recorded(name: str) -> None:
    check(examples.GOLDEN / f"{name}.txt", examples.views_of(examples.studies()[name]))
