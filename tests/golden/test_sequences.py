"""Studies of all kinds, killed, resumed and troubled, write the recorded records."""

import json
from pathlib import Path

import pytest

from tests.golden import sequences


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


def _parsed(line: str) -> object:
    """Return a record as pytest shows its differences best; a line of a certificate as it is."""
    return json.loads(line) if line.startswith('{"') else line
