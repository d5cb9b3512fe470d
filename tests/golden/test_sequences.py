"""Studies of all kinds, killed, resumed and troubled, write the recorded records."""

import json
from pathlib import Path

import pytest

from tests.golden import entry, sequences


@pytest.mark.parametrize("name", sequences.CASES)
def test_a_study_writes_the_recorded_records(name: str, tmp_path: Path) -> None:
    found = sequences.texts_of(name, tmp_path)
    assert set(found) == {path.name for path in sequences.GOLDEN.iterdir() if path.name.partition(".")[0] == name}
    for file, text in found.items():
        recorded = (sequences.GOLDEN / file).read_text()
        if text == recorded:
            continue
        for number, (line, before) in enumerate(zip(text.splitlines(), recorded.splitlines(), strict=False), start=1):
            assert _parsed(line) == _parsed(before), f"{file}, line {number}"
        raise AssertionError(f"{file} differs in its length or its spelling")


def test_a_complete_study_that_is_resumed_starts_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = sequences.CASES["throughput"]
    study = sequences.run(case, tmp_path)
    before = (study / "records.jsonl").read_bytes()
    with entry.on_cluster(case.nodes):
        monkeypatch.setattr("study.driver.run.joined_ray", None)
        code, text = entry.run_command(*sequences.command(tmp_path), "--resume")
    assert code == 1, text  # as before: a trial has failed
    assert "demo: complete" in text
    assert (study / "records.jsonl").read_bytes() == before


def _parsed(line: str) -> object:
    """Return a record as pytest shows its differences best; a line of a certificate as it is."""
    return json.loads(line) if line.startswith('{"') else line
