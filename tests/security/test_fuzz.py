"""Whatever a space file holds: a spec or a message; soon, in little memory, and nothing is run.

Wrong values are in `tests/unit/test_bad_spaces.py`, damaged study folders in `tests/unit/test_folder.py`.
`--hypothesis-profile many` tries a hundred times the examples.
"""

import os
import time

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.errors import SpaceError
from study.space.parameters import FRAGMENT
from study.space.parsing import MAX_BYTES, SHIPPED, parse_space, read_space
from tests.spaces import read_again, spec

LIMIT_S = 6.0
"""CPU time that a space may take on a core that tests share."""
LONGEST_MESSAGE = 200_000
FEW = settings(max_examples=max(150, settings().max_examples), deadline=None, suppress_health_check=list(HealthCheck))

TEXTS = tuple(file.read_text() for file in sorted(SHIPPED.glob("*.yaml")))
HOSTILE_LINES = (
    *("a: &a [x, *a]", "script: {choices: []}", "parameters: {lr: {value: 1, list: 2}}", "<<: *nothing", "<<: [1, 2]"),
    *("!!int : 1", 'a: !!float "x"', "a: !!binary x", "a: !!set {x, y}", "a: !!python/object/apply:os.system ['true']"),
    *("a: !%1b y", "a: 9999-99-99", "2001-01-01: a", "a: 0x", "a: 1e999", "a: -.inf", "a: 1:2:3", "=: 1", "null: a"),
    *('a: "\\ud800"', '"\\x1b]0;x\\a": 1', "a: |0", "a: 'x", "a: [", "---", "%YAML 9.9", "a : b : c", "@", "&a", "?"),
    *("%TAG ! tag:yaml.org,2002:python/", "? {a: b}\n: c", "a: >9\n x", "\ta: 1", "\ufeff", "a: \x07", "\u2028"),
    *("a: 0x" + "f" * 5000, "a: " + "9" * 5000, "a: " + "{a: " * 60 + "}" * 60, "k" * 1200 + ": 1"),
)
"""What YAML allows, what it forbids, and what parsers stumble over."""


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A space file with lines and bytes that do not belong there, in this or that encoding."""
    lines = draw(st.sampled_from(TEXTS)).split("\n")
    for _ in range(draw(st.integers(0, 4))):
        at, odd = draw(st.integers(0, len(lines) - 1)), draw(st.sampled_from(HOSTILE_LINES))
        old = lines[at]
        new = [[odd, old], [" " * 3 + odd, old], [old, old], [""], [f"\t{old}"], [old + odd]]
        lines[at : at + 1] = draw(st.sampled_from(new))
    text = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])).join(lines)
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"]))
    raw = bytearray(text.encode(encoding, errors="replace"))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        raw[at : at + draw(st.integers(0, 9))] = draw(st.binary(max_size=4))
    return bytes(raw)


def refusal_of(call):
    """Return the refusal, which can be shown; or None: then the spec can be written down, and read by every reader."""
    begin = time.process_time()
    try:
        found = call()
    except SpaceError as error:
        text = str(error)
        assert error.faults
        assert len(text.encode()) < LONGEST_MESSAGE
        assert not {each for each in text if ord(each) < 32} - {"\n"}
        return error
    finally:
        assert time.process_time() - begin < LIMIT_S
    content = found.to_json()
    assert orjson.loads(orjson.dumps(content)).keys() == content.keys()
    assert read_again(found).digest() == found.digest()
    return None


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("spaces") / "space.yaml"


def read(file, raw: bytes) -> None:
    file.write_bytes(raw)
    refusal_of(lambda: parse_space(read_space(file)))  # without the script that it may name


@FEW
@given(raw=files())
def test_a_file_gives_a_spec_or_a_message(file, raw):
    read(file, raw)


def test_every_hostile_line_alone_and_in_a_space_is_answered(file):
    text = "environment: {id: CartPole-v1}\nparameters:\n  num_env_runners: 1\n"
    for line in HOSTILE_LINES:
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
        with pytest.raises(SpaceError):
            read_space(tmp_path / f"{name}.yaml")


BOMBS = {
    "laughs": "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)),
    "keys": "".join(f"k{n}: 1\n" for n in range(6000)),
    "depth": f"a: {'[' * 30000}\n",
    "digits": "a: " + "1" * 60000,
}
"""Texts that are small and want to become large, or slow; all below the largest size that is read."""


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_text_that_wants_to_become_large_is_answered_soon(file, text):
    read(file, text[:MAX_BYTES].encode())


AXES = ("num_env_runners", "num_epochs", "num_envs_per_env_runner")
GRID = {axis: list(range(1, 100)) for axis in AXES}
HELD_UP = {"target_scale": 4, "small_scale": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "throughput", "parameters": {"num_env_runners": 1}, "throughput": {"grids": {"g": GRID}}},
        {"holdup": {**HELD_UP, "confirm": {"num_seeds": 2**62}}},
        {"holdup": {**HELD_UP, "race": {"blocks": [2**62]}}},
        {"holdup": {**HELD_UP, "num_settings": 2**62}},
        {"parameters": {"num_env_runners": [*range(1, 15_000)], "train_batch_size": {"low": 1, "high": 2**62}}},
        {"search": {"num_trials": 2**62}},
        {"search": {"sampler": "grid"}, "parameters": {"num_env_runners": 1, "lr": {"low": 1e-9, "high": 1.0}}},
        {"parameters": {"num_env_runners": {"low": 1, "high": 10**12}}},
        {"algorithm": "IMPALA", "parameters": {"num_env_runners": 1, FRAGMENT: {"low": 1, "high": 10**9}}},
        {f"key{n}": 1 for n in range(15_000)},
    ],
    ids=range(10),
)
def test_rules_count_instead_of_looking_at_every_number(changes):
    assert refusal_of(lambda: spec(**changes))
