"""Whatever a space file holds: a spec, or a message; soon, in little memory, and nothing is run.

`--hypothesis-profile many` tries a hundred times the examples.
"""

import os
import resource
import subprocess
import sys
import time

import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from study.errors import SpaceError
from study.space.parsing import parse_space
from study.space.space_file import MAX_BYTES, read_space
from study.space.spec import StudySpec
from tests.e2e.commands import environment
from tests.security.yaml_texts import BOMBS, HOSTILE_LINES, contents, files
from tests.spaces import read_again, spec_of

LIMIT_S = 2.0
"""CPU time that a file may take, on an idle core; tests share theirs."""
SHARED = 3
LONGEST_MESSAGE = 200_000
FEW = settings(max_examples=max(200, settings().max_examples), deadline=None, suppress_health_check=list(HealthCheck))


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
    check(outcome_of(lambda: spec_of(content)))


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
try:
    parse_space(read_space(Path("small.yaml")), asked=True)
except SpaceError:
    pass
before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    parse_space(read_space(Path(sys.argv[1])), asked=True)
except SpaceError as error:
    assert len(str(error)) < 200_000
print(time.process_time() - begin, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
MOST_MB = 200.0


def worst_of(tmp_path, text: str) -> tuple[float, float]:
    """Return CPU seconds and megabytes that a file takes in a process of its own, which has a gigabyte."""
    (tmp_path / "small.yaml").write_text("a: 1\n")
    (tmp_path / "space.yaml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", WORST, "space.yaml"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


SHORT = ("laughs", "merges", "text", "keys")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.heavy]) for name in BOMBS]
)
def test_a_text_that_wants_to_become_large_is_answered_soon_and_in_little_memory(tmp_path, name):
    seconds, megabytes = worst_of(tmp_path, BOMBS[name][:MAX_BYTES])
    assert (seconds < LIMIT_S * SHARED, megabytes < MOST_MB) == (True, True), (seconds, megabytes)


LONG = {
    "grids": {
        "kind": "throughput",
        "environment": {"id": "CartPole-v1"},
        "parameters": {"num_env_runners": 1, "train_batch_size": 4096},
        "throughput": {
            "grids": {
                "g": {
                    "num_env_runners": list(range(1, 100)),
                    "num_epochs": list(range(1, 100)),
                    "num_envs_per_env_runner": list(range(1, 100)),
                    "minibatch_size": list(range(1, 100)),
                }
            }
        },
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
    check(outcome_of(lambda: spec_of(whole)))
