"""The records file: whole after every kill, and refused when it is not what was written; what it says of a driver."""

import json
import math
import os
import resource
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import numpy as np
import pytest

from study.errors import RecordError
from study.machine.load import NodeLoad
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of
from study.records.provenance import git_state, provenance
from study.records.records import RecordLog, StageDecided, TrialRequest, numbered, read_lines
from tests.synthetic import append, closed, ended, evaluation, iteration, opened, started, whole_trial
from tests.values import replace

RECORDS = [opened(), *whole_trial(0), *whole_trial(1, "failed"), closed()]


@pytest.fixture
def folder(tmp_path) -> StudyFolder:
    folder = StudyFolder(tmp_path)
    append(folder, *RECORDS)
    return folder


def records(path) -> list:
    return [line.record for line in read_lines(path)]


def test_reading_goes_on_from_the_end_of_any_line(folder):
    lines = list(read_lines(folder.records))
    for line in lines:
        assert list(read_lines(folder.records, offset=line.end, first_seq=line.seq + 1)) == lines[line.seq + 1 :]


def changed(line, **values):
    return json.dumps(json.loads(line) | values).encode() + b"\n"


STARTED, ITERATION, EVALUATION, ENDED = 1, 3, 6, 7
"""Lines of the file, from 0."""


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (3, b"\x00garbage\n", "must be a record"),
        (3, b"\n", "must be a record"),
        (3, b'{"schema":1,"seq":3,"time":1.0,"kind":' + b"[" * 100_000 + b"\n", "must be a record"),
        (3, b"", "`seq` must be 3"),
        (3, {"schema": 99}, "this version reads schema 1"),
        (3, {"kind": "surprise"}, "must be a record"),
        (3, {"time": -1.0}, "must be a record"),
        (ITERATION, {"colour": "red"}, "must be a record"),
        (ITERATION, {"metrics": {"kl": "0.02"}}, "metrics"),
        (ITERATION, {"env_steps": True}, "env_steps"),
        (EVALUATION, {"returns": []}, "returns"),
        (ENDED, {"status": "x" * 100_000}, "must be a record"),
        (STARTED, {"setting": {"lr": 0.1}}, "no num_env_runners"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_number_and_the_file_is_left_as_it_is(
    folder, number, change, said
):
    lines = folder.records.read_bytes().splitlines(keepends=True)
    damaged = change if isinstance(change, bytes) else changed(lines[number], **change)
    folder.records.write_bytes(b"".join([*lines[:number], damaged, *lines[number + 1 :]]))
    before = folder.records.read_bytes()
    with pytest.raises(RecordError) as refusal:
        RecordLog(folder.records)
    assert refusal.value.where == f"{folder.records}: line {number + 1}"
    assert said in str(refusal.value)
    assert refusal.value.fix
    assert len(str(refusal.value)) < 1000
    assert folder.records.read_bytes() == before


def test_values_keep_what_they_are(tmp_path):
    load = NodeLoad(host="a", num_cores=2, seconds=1.0, foreign_cores=0.5, stolen_cores=0.0)
    folder, setting = StudyFolder(tmp_path), {"lr": 0.001}
    asked = TrialRequest(stage="search", num_env_runners=4, seed=7, setting=setting, name="arm")
    kept = [
        replace(opened(), provenance={"git": None, "of our own": {"deep": [1, 2.5, "x"]}}),
        replace(started(0), setting={"num_env_runners": 2, "lr": 1}),
        replace(evaluation(0, 1), returns=[float("nan"), 2.0, 1]),
        replace(ended(0), node_loads=[load], summary={"score": np.float64(0.5), "final_return": None}),
        StageDecided(number=0, stage="search", phase="search", num_looks=1, kept=["a"], dropped=[], evidence={},
                     requests=[asked], next_stage="race", protocol=1),
    ]  # fmt: skip
    append(folder, *kept)
    first, begun, judged, end, decided = records(folder.records)
    assert (first, begun, decided) == (kept[0], kept[1], kept[4])
    assert type(begun.setting["lr"]) is int
    assert math.isnan(judged.returns[0])
    assert judged.returns[1:] == [2.0, 1]
    assert (end.node_loads, end.summary) == ([load], {"score": 0.5, "final_return": None})
    written = json.loads(folder.records.read_text().splitlines()[-1])["requests"][0]  # as the first versions wrote it
    assert list(written.items()) == list(
        {"stage": "search", "num_env_runners": 4, "seed": 7, "setting": setting, "name": "arm"}.items()
    )
    some = numbered([TrialRequest(num_env_runners=2, seed=1), asked, TrialRequest(num_env_runners=4, seed=1)])
    assert [(each.trial, each.index_at_scale) for each in some] == [(0, 0), (1, 0), (2, 0)]


def test_a_full_disk_leaves_the_file_whole(folder):
    """A file-size limit makes the write short, as a full disk does."""
    before = folder.records.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with RecordLog(folder.records) as log:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, hard))
            for _ in range(2):
                with pytest.raises(RecordError, match=r"could not be written.*Fix: Free some space"):
                    log.append(iteration(0, 9))
                assert folder.records.read_bytes() == before
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        log.append(iteration(0, 9))
    assert records(folder.records) == [*RECORDS, iteration(0, 9)]


def test_nothing_is_written_behind_the_end_of_a_session_nor_behind_another_driver(tmp_path):
    """However the lock was lost: the records of the next session are in the file."""
    folder = StudyFolder(tmp_path)
    append(folder, opened(1), started(0))
    with RecordLog(folder.records) as first, RecordLog(folder.records) as second:
        second.append(opened(2))
        for record in (iteration(0, 2), closed("stopped")):
            with pytest.raises(RecordError, match=r"only one driver may write.*Fix: "):
                first.append(record)
        second.append(closed(session=2))
        with pytest.raises(RecordError, match="a session that has ended must write no more"):
            second.append(iteration(0, 1))
    with RecordLog(folder.records) as log:
        copy = folder.records.read_bytes()
        folder.records.unlink()
        with pytest.raises(RecordError, match="got no file"):
            log.append(started(0))
        folder.records.write_bytes(copy)
        with pytest.raises(RecordError, match="got another file"):
            log.append(started(0))
    assert records(folder.records) == [opened(1), started(0), opened(2), closed(session=2)]


def test_a_clock_that_is_set_back_moves_no_time_of_a_session_nor_before_the_last_one(tmp_path, monkeypatch):
    folder, now = StudyFolder(tmp_path), time.time
    with RecordLog(folder.records) as log:
        log.append(started(0))
        monkeypatch.setattr(time, "time", lambda: now() - 5 * 3600)
        log.append(ended(0))
    assert 0 <= ledger_of(folder.records).rows[0].duration_s < 60
    append(folder, opened(2))
    first, *_, last = (line.time for line in read_lines(folder.records))
    assert first <= last < first + 60


def test_threads_do_not_tear_the_numbers_of_the_lines(tmp_path):
    path = tmp_path / "records.jsonl"
    with RecordLog(path) as log, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: log.append(iteration(0, number)), range(1200)))
    assert [line.seq for line in read_lines(path)] == list(range(1200))


# --- with what a driver ran: JSON, no secret --------------------------------------------------------------------------


def test_commit_and_dirty_flag(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # an account may sign its commits

    def git(*arguments: str) -> str:
        words = ["git", "-C", tmp_path, "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    assert git_state(tmp_path) is None
    git("init")
    assert git_state(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    assert git_state(tmp_path) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path)["dirty"] is True
    monkeypatch.setenv("PATH", str(tmp_path))  # where no git is installed
    assert git_state(tmp_path) is None


def test_it_is_json_that_describes_this_process_and_keeps_no_secret(monkeypatch):
    line = "run.py --tracking-uri=postgresql://me:s3cret@db/x --password s3cret --api-key=s3cret --name a"
    monkeypatch.setattr("sys.argv", [*line.split(), "--config-args", "--hf-token s3cret -n 2"])
    found = provenance({})
    assert found["command"] == [
        *("run.py", "--tracking-uri=postgresql://***@db/x", "--password", "***", "--api-key=***", "--name", "a"),
        *("--config-args", "--hf-token *** -n 2"),
    ]
    assert "s3cret" not in json.dumps(found)
    assert json.loads(json.dumps(found)) == found
    assert found["versions"]["mlflow"] == metadata.version("mlflow")
    assert 1 <= found["usable_cpus"] <= found["logical_cpus"]
    assert found["memory_mb"] > 100
    assert found["scheduler"] is None
