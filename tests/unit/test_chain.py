"""The hash chain over the records: kept by a packed copy, written with every decision, compared by a verification."""

import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from study.designs.holdup.certificate.making import make_certificate, verify
from study.errors import RecordError
from study.records.chain import following, heads, published_as
from study.records.folder import StudyFolder
from study.records.log import RecordLog
from study.records.packing import pack
from study.records.records import Iteration, Record, StageDecided, StudyOpened, read_lines
from tests import holdup


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return holdup.study_records(holdup.holdup_spec())


@pytest.fixture
def study(records: list[Record], tmp_path: Path) -> StudyFolder:
    folder = holdup.write_study(tmp_path / "demo", holdup.holdup_spec(), records)
    make_certificate(folder).write(folder)
    return folder


@pytest.mark.parametrize("digits", [None, 7])
def test_a_packed_copy_has_the_heads_of_its_study(study: StudyFolder, tmp_path: Path, digits: int | None) -> None:
    packed = pack(study, tmp_path / "copy", digits=digits)
    assert list(heads(packed.records)) == list(heads(study.records))
    assert pack(packed, tmp_path / "again", digits=digits).packed_records.exists()
    assert list(heads(tmp_path / "again" / "records.jsonl.xz")) == list(heads(study.records))


@given(st.text(alphabet="a/:=. ", max_size=20).map("sqlite:///{}".format) | st.text(alphabet="a/:=. ", max_size=20))
@example("sqlite:////somewhere/m.db")
@example("sqlite:///m.db")
@example("--out=../studies/x")
def test_folders_taken_away_twice_leave_what_they_leave_taken_away_once(word: str) -> None:
    opened = orjson.dumps({"kind": "study_opened", "provenance": {"command": [word]}})
    once = published_as(opened, seq=None, digits=None)
    assert published_as(once, seq=None, digits=None) == once
    assert "/" not in once.decode()


def test_every_change_of_a_line_changes_all_later_heads(study: StudyFolder) -> None:
    lines = study.records.read_bytes().splitlines(keepends=True)
    before = list(heads(study.records))
    at = next(place for place, line in enumerate(lines) if b'"kind":"iteration"' in line)
    lines[at] = lines[at].replace(b'"cpu_time_s":36.0', b'"cpu_time_s":36.1')
    study.records.write_bytes(b"".join(lines))
    after = list(heads(study.records))
    assert after[:at] == before[:at]
    assert not set(after[at:]) & set(before[at:])


def test_a_line_with_two_kinds_counts_as_it_is_read(study: StudyFolder) -> None:
    before, raw = list(heads(study.records)), study.records.read_bytes()
    assert b'"kind":"evaluation"' in raw
    study.records.write_bytes(raw.replace(b'"kind":"evaluation"', b'"kind":"iteration","kind":"evaluation"', 1))
    assert list(heads(study.records)) == before


def test_a_driver_writes_the_head_with_every_decision(tmp_path: Path, records: list[Record]) -> None:
    file = tmp_path / "records.jsonl"
    decisions = [each for each in records if isinstance(each, StageDecided)][:2]
    opened = next(each for each in records if isinstance(each, StudyOpened))
    with RecordLog(file) as log:
        log.append(opened)
        first = log.append(decisions[0]).record
    with RecordLog(file) as log:  # after a kill
        second = log.append(decisions[1]).record
    raw = file.read_bytes().splitlines(keepends=True)
    head = following("", raw[0])
    assert isinstance(first, StageDecided)
    assert isinstance(second, StageDecided)
    assert (first.chain, second.chain) == (head, following(head, raw[1]))
    assert [getattr(line.record, "chain", None) for line in read_lines(file)] == [None, first.chain, second.chain]


def test_the_digest_that_was_held_is_that_of_the_lines_before_the_first_test_seed(study: StudyFolder) -> None:
    lines = list(read_lines(study.records))
    asks = next(line for line in lines if isinstance(line.record, StageDecided) and line.record.next_stage == "confirm")
    assert isinstance(asks.record, StageDecided)
    held = asks.record.chain
    assert make_certificate(study).study["frozen_chain"] == held
    verify(study.path, frozen=held)
    with pytest.raises(RecordError, match=f"must be '{'0' * 64}', got {held}"):
        verify(study.path, frozen="0" * 64)


def test_what_is_rewritten_consistently_is_found_by_the_digest_alone(
    study: StudyFolder, records: list[Record], tmp_path: Path
) -> None:
    held = make_certificate(study).study["frozen_chain"]
    at = next(place for place, each in enumerate(records) if isinstance(each, Iteration))
    first = records[at]
    assert isinstance(first, Iteration)
    better = replace(first, metrics={**first.metrics, "episode_len_sum": 7.0})
    copy = StudyFolder(tmp_path / "copy")
    shutil.copytree(study.path, copy.path)
    holdup.write_records(copy, [*records[:at], better, *records[at + 1 :]])
    make_certificate(copy).write(copy)
    verify(copy.path)
    with pytest.raises(RecordError, match="the digest of the records before the first test seed must be"):
        verify(copy.path, frozen=held)


def test_a_field_that_nothing_follows_from_is_found_where_decisions_hold_the_chain(study: StudyFolder) -> None:
    raw = study.records.read_bytes()
    assert b'"episode_len_sum":100.0' in raw
    study.records.write_bytes(raw.replace(b'"episode_len_sum":100.0', b'"episode_len_sum":101.0', 1))
    with pytest.raises(RecordError, match=r"decision 0 \(calibrate\): chain must be \w{64}, of the lines before it"):
        make_certificate(study)


def test_other_digits_than_those_of_the_chain_are_refused(study: StudyFolder, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="digits: must be 7, got 9"):
        pack(study, tmp_path / "copy", digits=9)
