"""Whatever a space file holds: a spec or a message; soon, in little memory, and nothing is run.

Damaged study folders are in `tests/unit/test_corrupt_state.py`. `--hypothesis-profile many` tries a hundred times the
examples.
"""

import copy
import json
import os
import time
from typing import Any, get_args

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.errors import SpaceError
from study.space.parsing import parse_space
from study.space.space_file import MAX_BYTES, SHIPPED, read_space, read_text
from study.space.spec import StudySpec
from tests.spaces import read_again, spec_of

LIMIT_S = 6.0
"""CPU time that a space may take on a core that tests share."""
LONGEST_MESSAGE = 200_000
FEW = settings(max_examples=max(150, settings().max_examples), deadline=None, suppress_health_check=list(HealthCheck))

TEXTS = tuple(file.read_text() for file in sorted(SHIPPED.glob("*.yaml")))
CONTENTS = tuple(read_text(text, name="shipped").content for text in TEXTS)


def _keys(model: Any) -> set[str]:
    """Return the keys that a space may have anywhere."""
    found = set[str]()
    for name, info in model.model_fields.items():
        inner = [each for each in (info.annotation, *get_args(info.annotation)) if hasattr(each, "model_fields")]
        found |= {info.alias or name, *(key for each in inner for key in _keys(each))}
    return found


KEYS = (*sorted(_keys(StudySpec)), "x", "", "trial", "status", "seed", "é")
HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 46, 10**6, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400, 10**4299,
    0.0, -0.0, 1e-320, 1e308, -1e308, 0.1, float("inf"), float("nan"), "", " ", "x", "é", "\u2028", "\ud800", "\x1b[2J",
    "x" * 5000, "1e400", "nan", "__class__", "{0.__class__}", "%s%n", "os:system", "tests:Env", [], {}, [[]], [{}],
    [1], [1, 1], [1.5, 2], ["a"], [None], list(range(3000)), {"low": 1, "high": 10**18, "step": 1},
    {"low": 1, "high": 2}, {"low": 2, "high": 1}, {"low": 1e-300, "high": 1e300, "log": True},
    {"low": 5e-324, "high": 1.7e308, "step": 5e-324}, {"low": 0, "high": 1}, {"choices": [1, 2]}, {"choices": []},
    {"choices": [1, 1]}, {"first": 0, "count": 2**62}, {"first": 2**31 - 1, "count": 9}, {"a": {"b": {"c": 1}}},
)  # fmt: skip
"""What a parser gives for some text or other, and no rule has asked for."""
HOSTILE_LINES = (
    *("a: &a [x, *a]", "script: {choices: []}", "parameters: {lr: {value: 1, list: 2}}", "<<: *nothing", "<<: [1, 2]"),
    *("!!int : 1", 'a: !!float "x"', "a: !!binary x", "a: !!set {x, y}", "a: !!python/object/apply:os.system ['true']"),
    *("a: !%1b y", "a: 9999-99-99", "2001-01-01: a", "a: 0x", "a: 1e999", "a: -.inf", "a: 1:2:3", "=: 1", "null: a"),
    *('a: "\\ud800"', '"\\x1b]0;x\\a": 1', "a: |0", "a: 'x", "a: [", "---", "%YAML 9.9", "a : b : c", "@", "&a", "?"),
    *("%TAG ! tag:yaml.org,2002:python/", "? {a: b}\n: c", "a: >9\n x", "\ta: 1", "\ufeff", "a: \x07", "\u2028"),
    *("a: 0x" + "f" * 5000, "a: " + "9" * 5000, "a: " + "{a: " * 60 + "}" * 60, "k" * 1200 + ": 1"),
)
"""What YAML allows, what it forbids, and what parsers stumble over."""


# --- changes of something sound ---------------------------------------------------------------------------------------


def _paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(deeper for key, value in inner for deeper in _paths(value, (*path, key)))]


def change(draw: st.DrawFn, content: Any) -> None:
    """Change one value or key of a JSON object: replaced, removed, renamed, added, or wrapped."""
    path = draw(st.sampled_from(_paths(content)[1:] or [("a",)]))
    holder: Any = content
    for key in path[:-1]:
        holder = holder[key]
    how = draw(st.sampled_from(["replace", "replace", "add", "remove", "rename", "wrap"]))
    if how == "remove":
        holder.pop(path[-1], None) if isinstance(holder, dict) else holder.pop()
    elif how == "wrap" and content:
        holder[path[-1]] = draw(st.sampled_from([[holder[path[-1]]], {"choices": [holder[path[-1]]]}]))
    elif how == "rename" and isinstance(holder, dict):
        holder[draw(st.sampled_from(KEYS))] = holder.pop(path[-1], None)
    else:
        key = draw(st.sampled_from(KEYS)) if how == "add" and isinstance(holder, dict) else path[-1]
        holder[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE_VALUES)))


def change_bytes(draw: st.DrawFn, raw: bytes, times: int) -> bytes:
    """Return bytes of which some are set, removed or added, up to so many times."""
    changed = bytearray(raw)
    for _ in range(draw(st.integers(0, times))):
        at = draw(st.integers(0, len(changed)))
        changed[at : at + draw(st.integers(0, 9))] = draw(st.binary(max_size=4))
    return bytes(changed)


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """A shipped space with a few values, keys or sections that do not belong there."""
    content = copy.deepcopy(draw(st.sampled_from(CONTENTS)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        change(draw, content)
    return content


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A space file with lines and bytes that do not belong there, in this or that encoding."""
    lines = draw(st.sampled_from(TEXTS) | contents().map(json.dumps)).split("\n")  # JSON is YAML
    for _ in range(draw(st.integers(0, 4))):
        at, odd = draw(st.integers(0, len(lines) - 1)), draw(st.sampled_from(HOSTILE_LINES))
        how = draw(st.sampled_from(["insert", "double", "empty", "indent", "join"]))
        if how == "insert":
            lines.insert(at, " " * draw(st.integers(0, 4)) + odd)
        elif how == "double":
            lines.insert(at, lines[at])
        else:
            lines[at] = {"empty": "", "indent": f"\t{lines[at]}", "join": lines[at] + odd}[how]
    text = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])).join(lines)
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"]))
    return change_bytes(draw, text.encode(encoding, errors="replace"), 3)


# --- spaces -----------------------------------------------------------------------------------------------------------


def refusal_of(call):
    """Return the refusal, which can be shown; or None: then the spec can be written down, and read by every reader."""
    begin = time.process_time()
    try:
        spec = call()
    except SpaceError as error:
        text = str(error)
        assert error.faults
        assert len(text.encode()) < LONGEST_MESSAGE
        assert not {each for each in text if ord(each) < 32} - {"\n"}
        return error
    finally:
        assert time.process_time() - begin < LIMIT_S
    content = spec.to_json()
    assert orjson.loads(orjson.dumps(content)).keys() == content.keys()
    assert read_again(spec).digest() == spec.digest()
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
    "merges": "a0: &a0 {x0: 1}\n"
    + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], x{n}: 1}}\n" for n in range(1, 60)),
    "text": f"a: &a {'x' * 30000}\nb: [{', '.join(['*a'] * 9000)}]\n",
    "keys": "".join(f"k{n}: 1\n" for n in range(6000)),
    "depth": f"a: {'[' * 30000}\n",
    "digits": "a: " + "1" * 60000,
    "tags": "".join(f"a{n}: !x{n} 1\n" for n in range(4000)),
}
"""Texts that are small and want to become large, or slow; all below the largest size that is read."""


@pytest.mark.parametrize("name", BOMBS)
def test_a_text_that_wants_to_become_large_is_answered_soon(file, name):
    read(file, BOMBS[name][:MAX_BYTES].encode())


BASE = {
    "environment": {"id": "CartPole-v1", "floor": 0, "reference": 500, "target": 450},
    "parameters": {"num_env_runners": [1, 4], "lr": {"low": 1e-4, "high": 1e-2}},
    "budget": {"env_steps": 1000},
    "search": {"num_trials": 4},
}
AXES = ("num_env_runners", "num_epochs", "num_envs_per_env_runner", "minibatch_size")


def _parameters(**domains: Any) -> dict[str, Any]:
    return {"parameters": {"num_env_runners": 1, **domains}}


@pytest.mark.parametrize(
    "changes",
    [
        {
            "kind": "throughput",
            **_parameters(train_batch_size=4096),
            "throughput": {"grids": {"g": {axis: list(range(1, 100)) for axis in AXES}}},
        },
        {"holdup": {"target_scale": 4, "small_scale": 1, "confirm": {"num_seeds": 2**62}}},
        {"holdup": {"target_scale": 4, "small_scale": 1, "race": {"blocks": [2**62]}}},
        {"holdup": {"target_scale": 4, "small_scale": 1, "num_settings": 2**62}},
        _parameters(train_batch_size={"low": 1, "high": 2**62, "step": 1}),
        _parameters(num_env_runners=list(range(1, 15_000)), train_batch_size={"low": 1, "high": 2**62}),
        {"search": {"num_trials": 2**62}},
        {"search": {"sampler": "grid"}, **_parameters(lr={"low": 1e-9, "high": 1.0, "step": 1e-9})},
        _parameters(num_env_runners={"low": 1, "high": 10**12}),
        {"search": {"seeds": [2**31]}},
        {"algorithm": "IMPALA", **_parameters(rollout_fragment_length={"low": 1, "high": 10**9})},
        {f"key{n}": 1 for n in range(15_000)},
    ],
    ids=range(12),
)
def test_rules_count_instead_of_looking_at_every_number(changes):
    assert refusal_of(lambda: spec_of({**BASE, **changes}))
