"""The cursor survives, or everything is sent again; it never sends less than it should."""

import json

import pytest

from study.mirrors.mirror_cursor import Attempt, Cursor, CursorFile, count_behind
from tests.synthetic import append, make_folder, opened, started

URI = "postgresql://me:secret@db/mlflow"
CURSOR = Cursor(
    experiment_id="1",
    parent_run_id="abc",
    offset=12,
    seq=3,
    time=1.5,
    status="KILLED",
    open={7: Attempt(attempt=2, run_id=None, env_steps=400, time_ms=9), 8: Attempt(attempt=1, run_id="r")},
)


@pytest.fixture
def file(tmp_path) -> CursorFile:
    return CursorFile.of(make_folder(tmp_path, URI), URI)


def test_what_is_written_is_read(file):
    assert file.read() is None
    file.write(CURSOR)
    assert file.read() == CURSOR
    file.forget()
    file.forget()
    assert file.read() is None


def test_the_password_is_not_in_it(file):
    file.write(CURSOR)
    assert "secret" not in file.path.read_text()


@pytest.mark.parametrize("damage", ["", "[]", "null", "{}", '{"format": 1}', '{"format": 99}'])
def test_a_damaged_file_is_no_cursor(file, damage):
    file.path.write_text(damage)
    assert file.read() is None


@pytest.mark.parametrize("key", ["offset", "open", "tracking_uri", "format"])
def test_a_file_of_another_version_is_no_cursor(file, key):
    file.write(CURSOR)
    content = json.loads(file.path.read_text())
    file.path.write_text(json.dumps(content | {key: None, "surprise": 1}))
    assert file.read() is None


def test_every_uri_has_its_own_cursor_and_lock(tmp_path):
    folder = make_folder(tmp_path, URI)
    own, other = CursorFile.of(folder, URI), CursorFile.of(folder, "http://elsewhere")
    assert own.path == folder.mirror_state
    assert own.lock.name == ".mirror.lock"
    assert len({own.path, own.lock, other.path, other.lock}) == 4


def test_a_torn_line_is_not_behind(tmp_path):
    folder = make_folder(tmp_path, URI)
    assert count_behind(folder.records, None) == 0
    append(folder, opened(), started(0), started(1))
    raw = folder.records.read_bytes()
    folder.records.write_bytes(raw + b'{"torn')
    first = raw.index(b"\n") + 1
    assert count_behind(folder.records, None) == 3
    assert count_behind(folder.records, Cursor(experiment_id="", parent_run_id="", offset=first, seq=1)) == 2
