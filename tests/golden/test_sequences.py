"""Studies of all kinds, killed, resumed and troubled, write the recorded records."""

import json
from pathlib import Path

import pytest

from tests.golden import sequences


@pytest.mark.parametrize("name", sequences.CASES)
def test_a_study_writes_the_recorded_records(name: str, tmp_path: Path) -> None:
    found = sequences.text_of(name, tmp_path / name)
    recorded = (sequences.GOLDEN / f"{name}.jsonl").read_text()
    for number, (line, before) in enumerate(zip(found.splitlines(), recorded.splitlines(), strict=False), start=1):
        assert json.loads(line) == json.loads(before), f"line {number}"
    assert found == recorded
