"""Whatever a space file or a study folder holds: a spec or rows, or a message; soon, in little memory, nothing is run.

`--hypothesis-profile many` tries a hundred times the examples.
"""

import functools
import json
import lzma
import os
import resource
import subprocess
import sys
import time

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from analysis import load
from study.errors import AnalysisError, RecordError, SpaceError
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of
from study.records.records import read_lines
from study.space.parsing import parse_space
from study.space.space_file import MAX_BYTES, read_space, read_text
from study.space.spec import StudySpec
from tests.e2e.commands import environment
from tests.security.hostile import BOMBS, EXAMPLES, HOSTILE_LINES, IDENTITIES, RECORDS, contents, files, folders
from tests.spaces import read_again, spec_of

LIMIT_S = 2.0
"""CPU time that a file may take, on an idle core; tests share theirs."""
SHARED = 3
LONGEST_MESSAGE = 200_000
FEW = settings(max_examples=max(150, settings().max_examples), deadline=None, suppress_health_check=list(HealthCheck))


def outcome_of(call):
    """Return what comes of a call, which must be one of the two, in time."""
    begin = time.process_time()
    result: StudySpec | SpaceError
    try:
        result = call()
    except SpaceError as error:
        result = error
    assert time.process_time() - begin < LIMIT_S * SHARED
    return result


def check(result: StudySpec | SpaceError) -> None:
    """A message can be shown, and a spec can be written down and read again, by every reader that we have."""
    if isinstance(result, SpaceError):
        text = str(result)
        assert result.faults
        assert len(text.encode()) < LONGEST_MESSAGE
        assert not {each for each in text if ord(each) < 32} - {"\n"}
        return
    content = result.to_json()
    assert orjson.loads(orjson.dumps(content)).keys() == content.keys()
    assert read_again(result).digest() == result.digest()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("spaces") / "space.yaml"


def read(file, raw: bytes) -> None:
    file.write_bytes(raw)
    check(outcome_of(lambda: parse_space(read_space(file), asked=True)))  # without the script that it may name


@FEW
@given(raw=files())
def test_a_file_gives_a_spec_or_a_message(file, raw):
    read(file, raw)


@FEW
@given(content=contents())
def test_a_content_gives_a_spec_or_a_message(content):
    check(outcome_of(lambda: parse_space(read_text(json.dumps(content), name="test"))))


@pytest.mark.parametrize("line", HOSTILE_LINES, ids=range(len(HOSTILE_LINES)))
def test_every_hostile_line_alone_and_in_a_space_is_answered(file, line):
    text = "environment: {id: CartPole-v1}\nparameters:\n  num_env_runners: 1\n"
    for whole in (line, text + line, text + "  " + line, line + "\n" + text):
        read(file, whole.encode(errors="surrogatepass"))


def test_nothing_else_than_a_small_file_is_opened(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    with (tmp_path / "huge.yaml").open("wb") as huge:
        huge.truncate(10**11)  # a hole: no byte of it is on the disk
    for name in ("folder", "zero", "pipe", "loop", "huge", "missing", "x\0y"):
        assert isinstance(outcome_of(lambda name=name: read_space(tmp_path / f"{name}.yaml")), SpaceError)


WORST = """
import resource, sys, time
from pathlib import Path
from study.errors import SpaceError
from study.space.parsing import parse_space
from study.space.space_file import read_space
for name in ("small.yaml", "space.yaml"):
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        parse_space(read_space(Path(name)), asked=True)
    except SpaceError as error:
        assert len(str(error)) < 200_000
print(time.process_time() - begin, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
MOST_MB = 200.0


@pytest.mark.parametrize("name", BOMBS)
def test_a_text_that_wants_to_become_large_is_answered_soon_and_in_little_memory(tmp_path, name):
    """In a process of its own, which has a gigabyte, and has read a small file before."""
    (tmp_path / "small.yaml").write_text("a: 1\n")
    (tmp_path / "space.yaml").write_text(BOMBS[name][:MAX_BYTES])
    done = subprocess.run(
        [sys.executable, "-c", WORST],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, megabytes = map(float, done.stdout.split())
    assert (seconds < LIMIT_S * SHARED, megabytes < MOST_MB) == (True, True), (seconds, megabytes)


AXES = ("num_env_runners", "num_epochs", "num_envs_per_env_runner", "minibatch_size")
LONG = {
    "grids": {
        "kind": "throughput",
        "environment": {"id": "CartPole-v1"},
        "parameters": {"num_env_runners": 1, "train_batch_size": 4096},
        "throughput": {"grids": {"g": {axis: list(range(1, 100)) for axis in AXES}}},
    },
    "seeds": {"holdup": {"target_scale": 4, "small_scale": 1, "tune_seeds": {"first": 1, "count": 2**62}}},
    "settings": {"holdup": {"target_scale": 4, "small_scale": 1, "num_settings": 2**62}},
    "steps": {"parameters": {"num_env_runners": 1, "train_batch_size": {"low": 1, "high": 2**62, "step": 1}}},
    "scales": {
        "parameters": {"num_env_runners": list(range(1, 15_000)), "train_batch_size": {"low": 1, "high": 2**62}}
    },
    "trials": {"search": {"num_trials": 2**62}},
    "grid": {
        "search": {"sampler": "grid"},
        "parameters": {"num_env_runners": 1, "lr": {"low": 1e-9, "high": 1.0, "step": 1e-9}},
    },
    "runners": {"parameters": {"num_env_runners": {"low": 1, "high": 10**12}}},
    "seed": {"search": {"seeds": [2**31]}},
    "fragments": {
        "algorithm": "IMPALA",
        "parameters": {
            "num_env_runners": 1,
            "train_batch_size": {"low": 1, "high": 9},
            "rollout_fragment_length": {"low": 1, "high": 10**9},
        },
    },
    "nested": {
        "environment": {"id": "CartPole-v1", "kwargs": functools.reduce(lambda deep, _: {"a": deep}, range(40), {})}
    },
    "unknown": {f"key{n}": 1 for n in range(15_000)},
}
"""Small contents whose rules look at every number between two others, if nothing stops them."""
BASE = {
    "environment": {"id": "CartPole-v1", "floor": 0, "reference": 500, "target": 450},
    "parameters": {"num_env_runners": [1, 4], "lr": {"low": 1e-4, "high": 1e-2}},
    "budget": {"env_steps": 1000},
    "search": {"num_trials": 4},
}


@pytest.mark.parametrize("name", LONG)
def test_rules_count_instead_of_looking_at_every_number(name):
    whole = LONG[name] if "kind" in LONG[name] else {**BASE, **LONG[name]}
    result = outcome_of(lambda: spec_of(whole, asked=True))
    assert isinstance(result, SpaceError)
    check(result)


# --- study folders --------------------------------------------------------------------------------------------------

FOLDER_LIMIT_S = 10.0


def read_all(folder: StudyFolder) -> dict[str, str]:
    """Read a folder in every way there is; return how each ended: `rows`, or the message."""

    def data():
        return load.from_folder(folder.path)

    calls = {
        "lines": lambda: list(read_lines(folder.records)),
        "ledger": lambda: ledger_of(folder.records).counts(),
        "identity": folder.identity,
        "runs": lambda: (data().runs, data().sheet, data().problems),
        "iterations": lambda: data().iterations(),
        "evaluations": lambda: data().evaluations(),
    }
    ends = {}
    begin = time.process_time()
    for way, call in calls.items():
        try:
            call()
        except (RecordError, AnalysisError) as error:
            ends[way] = str(error)
            assert "Fix: " in ends[way]
            assert len(ends[way]) < 20_000
        else:
            ends[way] = "rows"
    assert time.process_time() - begin < FOLDER_LIMIT_S
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
    assert set(read_all(folder).values()) == {"rows"}


@FEW
@given(content=folders())
def test_a_folder_gives_rows_or_a_message(folder, content):
    write(folder, *content)
    read_all(folder)


MAKERS = {"pipe": os.mkfifo, "zero": lambda file: file.symlink_to("/dev/zero"), "folder": lambda file: file.mkdir()}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", ["records.jsonl", "study.json"])
def test_what_is_no_file_is_neither_waited_for_nor_read_for_ever(tmp_path, name, kind):
    folder = StudyFolder(tmp_path)
    write(folder, json.dumps(IDENTITIES[EXAMPLES[0]]).encode(), b"".join(RECORDS[EXAMPLES[0]]))
    (tmp_path / name).unlink()
    MAKERS[kind](tmp_path / name)
    ends = read_all(folder)
    ways = ["lines"] if name == "records.jsonl" else ["identity", "runs", "iterations", "evaluations"]
    assert "rows" not in [ends[way] for way in ways]
