"""Whatever a study folder holds: rows, or a message that names the file. Never a traceback, never a silent half.

`--hypothesis-profile many` tries a hundred times the examples.
"""

import json
import lzma
import os
import time
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings

from analysis import load
from study.errors import AnalysisError, RecordError
from study.records.folder import StudyFolder
from study.records.ledger import fold
from study.records.records import read_lines
from tests.security.record_files import EXAMPLES, IDENTITIES, RECORDS, folders

LIMIT_S = 10.0
FEW = settings(max_examples=max(150, settings().max_examples), deadline=None, suppress_health_check=list(HealthCheck))


WAYS = ("lines", "ledger", "identity", "runs", "iterations", "evaluations")


def read_all(folder: StudyFolder, ways: Sequence[str] = WAYS) -> list[str]:
    """Read a folder in every way there is; return how each ended: `rows`, or the message."""

    def data(what):
        return lambda: what(load.from_folder(folder.path))

    calls = {
        "lines": lambda: list(read_lines(folder.records)),
        "ledger": lambda: fold((line.record, line.time) for line in read_lines(folder.records)).counts(),
        "identity": folder.identity,
        "runs": data(lambda study: (study.runs, study.sheet, study.problems)),
        "iterations": data(lambda study: study.iterations()),
        "evaluations": data(lambda study: study.evaluations()),
    }
    ends = []
    begin = time.process_time()
    for way in ways:
        try:
            calls[way]()
        except (RecordError, AnalysisError) as error:
            ends.append(str(error))
            assert "Fix: " in ends[-1]
            assert len(ends[-1]) < 20_000
        else:
            ends.append("rows")
    assert time.process_time() - begin < LIMIT_S
    return ends


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> StudyFolder:
    return StudyFolder(tmp_path_factory.mktemp("study"))


def write(folder: StudyFolder, identity: bytes, records: bytes, packed: bool = False) -> None:
    folder.identity_file.write_bytes(identity)
    for file in (folder.packed_records, folder.path / "records.jsonl"):
        file.unlink(missing_ok=True)
    if packed:
        folder.packed_records.write_bytes(lzma.compress(records, preset=0))
    else:
        folder.records.write_bytes(records)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_records_that_are_changed_are_sound_before(folder, example):
    write(folder, json.dumps(IDENTITIES[example]).encode(), b"".join(RECORDS[example]))
    assert set(read_all(folder)) == {"rows"}


@FEW
@given(content=folders())
def test_a_folder_gives_rows_or_a_message(folder, content):
    write(folder, *content)
    read_all(folder)


def test_what_is_no_file_is_neither_waited_for_nor_read_for_ever(tmp_path):
    folder = StudyFolder(tmp_path)
    identity = json.dumps(IDENTITIES[EXAMPLES[0]]).encode()
    for name, make in {
        "pipe": os.mkfifo,
        "zero": lambda file: file.symlink_to("/dev/zero"),
        "folder": lambda file: file.mkdir(),
    }.items():
        write(folder, identity, b"")
        folder.records.unlink()
        make(folder.records)
        assert "rows" not in read_all(folder)[:1], name
        folder.records.rmdir() if name == "folder" else folder.records.unlink()
        write(folder, identity, b"".join(RECORDS[EXAMPLES[0]]))
        folder.identity_file.unlink()
        make(folder.identity_file)
        assert "rows" not in read_all(folder)[2:6], name
        folder.identity_file.rmdir() if name == "folder" else folder.identity_file.unlink()


def test_a_file_that_never_ends_a_line_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    from study.records import records

    monkeypatch.setattr(records, "MAX_LINE", 100_000)
    folder = StudyFolder(tmp_path)
    folder.packed_records.write_bytes(lzma.compress(b'{"schema":1,' + b" " * 10**8, preset=0))
    with pytest.raises(RecordError, match=r"line 1: a record has fewer than 100000 bytes.*Fix"):
        list(read_lines(folder.records))


def test_an_identity_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "study.json").open("wb") as huge:
        huge.truncate(10**11)  # a hole: no byte of it is on the disk
    with pytest.raises(RecordError, match=r"more than \d+ bytes.*Fix"):
        StudyFolder(tmp_path).identity()
