"""The records file: whole after every kill, and refused when it is not what was written."""

import json
import math
import resource
import signal
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.errors import RecordError
from study.machine.load import NodeLoad
from study.records.folder import StudyFolder
from study.records.ledger import fold
from study.records.log import RecordLog
from study.records.records import read_lines
from study.records.request import TrialRequest, numbered
from tests import holdup
from tests.synthetic import append, closed, ended, evaluation, iteration, opened, started, whole_trial
from tests.values import replace

RECORDS = [opened(), *whole_trial(0), *whole_trial(1, "failed"), closed()]


@pytest.fixture
def folder(tmp_path) -> StudyFolder:
    folder = StudyFolder(tmp_path)
    append(folder, *RECORDS)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    folder = StudyFolder(tmp_path_factory.mktemp("whole"))
    append(folder, *RECORDS)
    return folder.records.read_bytes()


def records(path) -> list:
    return [line.record for line in read_lines(path)]


def test_reading_goes_on_from_the_end_of_any_line(folder):
    lines = list(read_lines(folder.records))
    for line in lines:
        rest = list(read_lines(folder.records, offset=line.end, first_seq=line.seq + 1))
        assert rest == lines[line.seq + 1 :]


def changed(line, **values):
    return json.dumps(json.loads(line) | values).encode() + b"\n"


HOST = {"host": "a", "num_cores": 2, "seconds": 1.0, "foreign_cores": 0.5, "stolen_cores": 0.0}
STARTED, ITERATION, EVALUATION, ENDED = 1, 3, 4, 6
"""Lines of the file, from 0."""


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (3, lambda line: b"\x00garbage\n"),
        (3, lambda line: b"\n"),
        (3, lambda line: b"\xff\n"),
        (3, lambda line: b'{"schema":1,"seq":3,"time":1.0,"kind":' + b"[" * 100_000 + b"\n"),
        *(
            (number, lambda line, changes=changes: changed(line, **changes))
            for number, changes in [
                (3, {"schema": 99}),
                (3, {"kind": "surprise"}),
                (3, {"time": -1.0}),
                (ITERATION, {"colour": "red"}),
                (ITERATION, {"metrics": {"kl": "0.02"}}),
                (ITERATION, {"metrics": {"kl": 2**53 + 1}}),
                (ITERATION, {"env_steps": True}),
                (EVALUATION, {"returns": []}),
                (ENDED, {"status": "x" * 100_000}),
                (STARTED, {"setting": {"lr": 0.1}}),
            ]
        ),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_number_and_the_file_is_left_as_it_is(folder, number, change):
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(b"".join([*lines[:number], change(lines[number]), *lines[number + 1 :]]))
    before = folder.records.read_bytes()
    with pytest.raises(RecordError) as refusal:
        RecordLog(folder.records)
    assert refusal.value.where == f"{folder.records}: line {number + 1}"
    assert refusal.value.fix
    assert len(str(refusal.value)) < 1000
    assert folder.records.read_bytes() == before


@pytest.mark.parametrize(("number", "times", "line"), [(3, 0, 4), (3, 2, 5), (0, 0, 1)])
def test_a_missing_or_doubled_line_is_refused_at_the_one_behind_it(folder, number, times, line):
    lines = folder.records.read_bytes().splitlines(keepends=True)
    folder.records.write_bytes(b"".join([*lines[:number], *lines[number : number + 1] * times, *lines[number + 1 :]]))
    with pytest.raises(RecordError, match=f"line {line}: `seq` must be"):
        list(read_lines(folder.records))


def test_values_keep_what_they_are(tmp_path):
    folder, load = StudyFolder(tmp_path), NodeLoad(**HOST)
    numbers = replace(evaluation(0, 1), returns=[float("nan"), 2.0, 1])
    kept = [
        replace(opened(), provenance={"git": None, "of our own": {"deep": [1, 2.5, "x"]}}),
        replace(started(0), setting={"num_env_runners": 2, "lr": 1}),
        numbers,
        replace(ended(0), node_loads=[load], summary={"score": np.float64(0.5), "final_return": None}),
    ]
    append(folder, *kept)
    first, begun, judged, end = records(folder.records)
    assert (first, begun) == tuple(kept[:2])
    assert type(begun.setting["lr"]) is int
    assert math.isnan(judged.returns[0])
    assert judged.returns[1:] == [2.0, 1]
    assert (end.node_loads, end.summary) == ([load], {"score": 0.5, "final_return": None})


def test_a_hash_that_earlier_versions_wrote_beside_a_decision_is_no_obstacle(tmp_path):
    folder = holdup.write_study(tmp_path / "h", space := holdup.holdup_spec(), holdup.study_records(space))
    whole = records(folder.records)
    lines = folder.records.read_bytes().splitlines(keepends=True)
    older = [changed(line, chain="abc") if b'"stage_decided"' in line else line for line in lines]
    assert older != lines
    folder.records.write_bytes(b"".join(older))
    assert records(folder.records) == whole


def test_lines_of_a_version_without_emulation_are_real_and_keep_the_label_of_their_start(folder):
    lines = [json.loads(line) for line in folder.records.read_bytes().splitlines()]
    for line in lines:
        later = {"trial_started": ("execution",), "trial_built": ("provisional",)}
        for name in {**later, "trial_ended": ("timing", "timing_reason")}.get(line["kind"], ()):
            del line[name]
    folder.records.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    row = fold((line.record, line.time) for line in read_lines(folder.records)).rows[0]
    assert (row.execution, row.timing, row.timing_reason) == ("real", "oversubscribed", "3 processes on 2 cores")


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_prefix_of_a_file_reads_as_a_prefix_of_its_records(tmp_path, whole, data):
    length = data.draw(st.integers(0, len(whole)))
    path = tmp_path / "records.jsonl"
    path.write_bytes(whole[:length])
    assert records(path) == RECORDS[: whole[:length].count(b"\n")]
    with RecordLog(path) as log:
        log.append(opened(2))
    assert records(path) == [*RECORDS[: whole[:length].count(b"\n")], opened(2)]


def test_nothing_is_written_behind_the_end_of_a_session(tmp_path):
    folder = StudyFolder(tmp_path)
    with RecordLog(folder.records) as log:
        for record in (opened(), started(0), closed()):
            log.append(record)
        with pytest.raises(RecordError, match="a session that has ended must write no more, got iteration"):
            log.append(iteration(0, 1))
    assert records(folder.records) == [opened(), started(0), closed()]


def test_threads_do_not_tear_the_numbers_of_the_lines(tmp_path):
    folder = StudyFolder(tmp_path)
    with RecordLog(folder.records) as log:
        log.append(started(0))
        writers = [
            threading.Thread(target=lambda: [log.append(iteration(0, number)) for number in range(1, 300)])
            for _ in range(4)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert [line.seq for line in read_lines(folder.records)] == list(range(1 + 4 * 299))


def test_a_request_is_written_with_the_keys_of_the_first_records():
    setting = {"lr": 0.001}
    request = TrialRequest(stage="search", num_env_runners=4, seed=7, setting=setting, name="arm")
    content = {"stage": "search", "num_env_runners": 4, "seed": 7, "setting": setting, "name": "arm"}
    assert list(request.to_json().items()) == list(content.items())
    assert TrialRequest.from_json(content) == request
    numbered_ones = numbered(
        [TrialRequest(num_env_runners=2, seed=1), request, TrialRequest(num_env_runners=4, seed=1)]
    )
    assert [(each.trial, each.index_at_scale) for each in numbered_ones] == [(0, 0), (1, 0), (2, 0)]


def test_a_count_that_no_table_can_hold_is_refused_with_its_line_and_name(folder):
    append(folder, replace(iteration(0, 1), metrics={"num_episodes": 7}))
    whole = folder.records.read_text()
    folder.records.write_text(whole.replace('"num_episodes":7', '"num_episodes":1e308'))
    with pytest.raises(RecordError, match=r"records\.jsonl: line 1.*`metrics\.num_episodes` must be a count"):
        list(read_lines(folder.records))
