"""How far MLflow has come survives, or everything is sent again; it never sends less than it should."""

import json

import pytest

from study.mirrors.base import count_behind
from study.mirrors.mlflow_content import Point
from study.mirrors.mlflow_mirror import Attempt, Cursor, MlflowMirror
from tests.synthetic import append, make_folder, opened, started

URI = "postgresql://me:secret@db/mlflow"
CURSOR = Cursor(
    experiment_id="1",
    parent_run_id="abc",
    offset=12,
    seq=3,
    time=1.5,
    status="KILLED",
    open={
        7: Attempt(attempt=2, run_id=None, runners=4, env_steps=400, time_ms=9),
        8: Attempt(attempt=1, run_id="r", runners=2, startup=Point(key="startup_time_s", value=3.5, time_ms=7, step=0)),
    },
    best={4: -81.5},
)


@pytest.fixture
def mirror(tmp_path) -> MlflowMirror:
    return MlflowMirror(make_folder(tmp_path, URI), URI)


def test_what_is_written_is_read_without_the_password(mirror):
    assert mirror.read_cursor() is None
    mirror.write_cursor(CURSOR)
    assert mirror.read_cursor() == CURSOR
    assert "secret" not in mirror.folder.mirror_state.read_text()
    assert MlflowMirror(mirror.folder, "http://elsewhere").read_cursor() is None
    mirror.forget()
    mirror.forget()
    assert mirror.read_cursor() is None


@pytest.mark.parametrize("damage", ["", "[]", "null", "{}", '{"format": 1}', '{"format": 99}'])
def test_a_damaged_file_is_no_cursor(mirror, damage):
    mirror.folder.mirror_state.write_text(damage)
    assert mirror.read_cursor() is None


@pytest.mark.parametrize("key", ["offset", "open", "tracking_uri", "format"])
def test_a_file_of_another_version_is_no_cursor(mirror, key):
    mirror.write_cursor(CURSOR)
    file = mirror.folder.mirror_state
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: None, "surprise": 1}))
    assert mirror.read_cursor() is None


def test_a_torn_line_is_not_behind(tmp_path):
    folder = make_folder(tmp_path, URI)
    assert count_behind(folder.records) == 0
    append(folder, opened(), started(0), started(1))
    raw = folder.records.read_bytes()
    folder.records.write_bytes(raw + b'{"torn')
    assert count_behind(folder.records) == 3
    assert count_behind(folder.records, raw.index(b"\n") + 1) == 2
