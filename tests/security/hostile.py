"""Files as somebody might send them: spaces and study folders, changed in structure, in text and in bytes."""

import copy
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import orjson
from hypothesis import strategies as st

from study.space.space_file import SHIPPED, read_text
from study.space.spec import StudySpec

TEXTS = tuple(file.read_text() for file in sorted(SHIPPED.glob("*.yaml")))
CONTENTS = tuple(read_text(text, name="shipped").content for text in TEXTS)

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
    *r"""
a: &a [x, *a]
script: {choices: []}
parameters: {lr: {value: 1, list: 2}}
<<: *nothing
<<: [1, 2]
!!int : 1
a: !!float "x"
a: !!binary x
a: !!set {x, y}
a: !!python/object/apply:os.system ['true']
a: !%1b y
a: 9999-99-99
2001-01-01: a
a: 0x
a: 1e999
a: -.inf
a: 1:2:3
=: 1
null: a
a: "\ud800"
"\x1b]0;x\a": 1
a: |0
a: 'x
a: [
---
%YAML 9.9
%TAG ! tag:yaml.org,2002:python/
a : b : c
@
&a
?
""".strip("\n").split("\n"),
    "? {a: b}\n: c",
    "a: >9\n x",
    "\ta: 1",
    "\ufeff",
    "a: \x07",
    "\u2028",
    "a: 0x" + "f" * 5000,
    "a: " + "9" * 5000,
    "a: " + "{a: " * 60 + "}" * 60,
    "k" * 1200 + ": 1",
)
"""What YAML allows, what it forbids, and what parsers stumble over."""

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


def paths_of(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the place of everything in a content, its own first."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(deeper for key, value in inner for deeper in paths_of(value, (*path, key)))]


def _schema_paths(model: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the place of every field that a space may have."""
    found = []
    for name, info in model.model_fields.items():
        place = (*path, info.alias or name)
        inner = [each for each in (info.annotation, *get_args(info.annotation)) if hasattr(each, "model_fields")]
        found += [place, *(deeper for each in inner for deeper in _schema_paths(each, place))]
    return found


SCHEMA_PATHS = tuple(_schema_paths(StudySpec))
PARAMETER_PATHS = tuple(path for path in SCHEMA_PATHS if path[0] == "parameters" and len(path) == 2)
NUMBERS = (
    0, 1, 2, 3, 4, 7, 46, 128, 4096, 10**6, 2**31 - 1, 2**31, 2**53, 2**62, 2**63, 10**400, -1, 0.0, 0.5, 1.0, 1e-9,
    5e-324, 1e-300, 1e300, 1.7e308,
)  # fmt: skip
_numbers = st.sampled_from(NUMBERS)
_ranges = st.builds(
    lambda ends, more: {"low": min(ends), "high": max(ends), **more},
    st.tuples(_numbers, _numbers),
    st.fixed_dictionaries({}, optional={"step": _numbers, "log": st.booleans()}),
)
_domains = (
    _numbers
    | _ranges
    | _ranges
    | st.lists(_numbers, max_size=4)
    | st.fixed_dictionaries({"choices": st.lists(_numbers, max_size=4)})
    | st.fixed_dictionaries({"first": _numbers, "count": _numbers})
)
"""What looks like a value, a list, a range or a set of seeds, with numbers at which rules may stumble."""


def change(draw: st.DrawFn, content: Any, others: Sequence[Any]) -> None:
    """Change one value or key of a JSON object or a space: replaced, removed, renamed, added, or taken from another."""
    path = draw(st.sampled_from(paths_of(content)[1:] or [("a",)]))
    holder: Any = content
    for key in path[:-1]:
        holder = holder[key]
    how = draw(st.sampled_from(["replace", "replace", "add", "remove", "rename", "graft", "wrap"]))
    value = copy.deepcopy(draw(st.sampled_from(HOSTILE_VALUES)))
    if how == "remove":
        holder.pop(path[-1], None) if isinstance(holder, dict) else holder.pop()
    elif how == "wrap" and content:
        holder[path[-1]] = draw(st.sampled_from([[holder[path[-1]]], {"choices": [holder[path[-1]]]}]))
    elif how == "graft":
        other = draw(st.sampled_from(others))
        for key in draw(st.sampled_from(paths_of(other)[1:])):
            other = other[key]
        holder[path[-1]] = copy.deepcopy(other)
    elif how == "add" and isinstance(holder, dict):
        holder[draw(st.text(max_size=8))] = value
    elif how == "rename" and isinstance(holder, dict):
        holder[draw(st.sampled_from(["x", "", "trial", "status", "seed", "é"]))] = holder.pop(path[-1], None)
    else:
        holder[path[-1]] = value


def change_bytes(draw: st.DrawFn, raw: bytes, times: int) -> bytes:
    """Return bytes of which some are set, removed or added, up to so many times."""
    changed = bytearray(raw)
    for _ in range(draw(st.integers(0, times))):
        at = draw(st.integers(0, len(changed)))
        changed[at : at + draw(st.integers(0, 9))] = draw(st.binary(max_size=4))
    return bytes(changed)


# --- spaces ---------------------------------------------------------------------------------------------------------


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """A shipped space with a few values, keys or sections that do not belong there."""
    content = copy.deepcopy(draw(st.sampled_from(CONTENTS)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        if draw(st.booleans()):
            places = draw(st.sampled_from([SCHEMA_PATHS, PARAMETER_PATHS]))
            _set(content, draw(st.sampled_from(places)), draw(_domains))
        else:
            change(draw, content, CONTENTS)
    return content


def _set(content: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set the value at a place of the schema, making the sections above it where there are none."""
    for key in path[:-1]:
        if not isinstance(content.get(key), dict):
            content[key] = {}
        content = content[key]
    content[path[-1]] = value


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A space file with lines and bytes that do not belong there, in this or that encoding."""
    as_json = contents().map(json.dumps)  # JSON is YAML
    lines = draw(st.sampled_from(TEXTS) | as_json).split("\n")
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["insert", "insert", "double", "empty", "indent", "join"]))
        if how == "insert":
            lines.insert(at, " " * draw(st.integers(0, 4)) + draw(st.sampled_from(HOSTILE_LINES)))
        elif how == "double":
            lines.insert(at, lines[at])
        elif how == "empty":
            lines[at] = ""
        elif how == "indent":
            lines[at] = draw(st.sampled_from([" ", "  ", "\t", "- ", "? "])) + lines[at]
        else:
            lines[at] += draw(st.sampled_from(HOSTILE_LINES))
    text = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])).join(lines)
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"]))
    return change_bytes(draw, text.encode(encoding, errors="replace"), 3)


# --- study folders --------------------------------------------------------------------------------------------------

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
EXAMPLES = ("example_throughput", "example_study")
LINES_TAKEN = 40
"""Of each example: enough for every kind of record, and few enough to read thousands of times."""
RAW_VALUES = (b"1e999", b"-1e999", b"NaN", b"Infinity", b"1" * 400, b'"\\ud800"', b"[" * 2000 + b"]" * 2000, b"00", b"")
"""What a JSON reader may or may not take, in the place of a number."""


def _lines(example: str) -> tuple[bytes, ...]:
    """Return the first lines, and the first of every kind that comes later, numbered anew."""
    kept, kinds = [], set()
    for raw in lzma.decompress((ANALYSIS / example / "records.jsonl.xz").read_bytes()).splitlines():
        line = orjson.loads(raw)
        if len(kept) < LINES_TAKEN or (line["kind"] not in kinds and "trial" not in line):
            kept.append(line)
        kinds.add(line["kind"])
    return tuple(orjson.dumps({**line, "seq": number}) + b"\n" for number, line in enumerate(kept))


RECORDS = {example: _lines(example) for example in EXAMPLES}
IDENTITIES = {example: orjson.loads((ANALYSIS / example / "study.json").read_bytes()) for example in EXAMPLES}


@st.composite
def folders(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """Return identity and records with values, lines or bytes that do not belong there, and whether to pack them.

    Files that are cut, lost or overwritten are in `tests/unit/test_corrupt_state.py`.
    """
    example = draw(st.sampled_from(EXAMPLES))
    identity, lines = copy.deepcopy(IDENTITIES[example]), list(RECORDS[example])
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        change(draw, identity, [identity])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["value", "value", "value", "raw", "double", "bytes"]))
        if how == "value" and lines[at] in RECORDS[example]:
            content = orjson.loads(lines[at])
            change(draw, content, [content])
            lines[at] = json.dumps(content).encode() + b"\n"
        elif how == "raw":
            number = draw(st.sampled_from([b":1", b":0", b":2.", b':"', b":null"]))
            lines[at] = lines[at].replace(number, b":" + draw(st.sampled_from(RAW_VALUES)), 1)
        elif how == "double":
            lines.insert(at, lines[at])
        else:
            lines[at] = change_bytes(draw, lines[at], 1)
    raw = change_bytes(draw, json.dumps(identity).encode(), draw(st.sampled_from([0, 0, 0, 1])))
    return raw, b"".join(lines), draw(st.integers(0, 9)) == 0
