"""Study folders as somebody might send them: real records, changed in values, in lines and in bytes."""

import copy
import json
import lzma
from pathlib import Path
from typing import Any

import orjson
from hypothesis import strategies as st

from tests.security.yaml_texts import paths_of

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
EXAMPLES = ("example_throughput", "example_study")
LINES_TAKEN = 40
"""Of each example: enough for every kind of record, and few enough to read thousands of times."""

HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 46, 2**31, 2**53, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 0.5, -0.5, 1e308, -1e308,
    1e-320, "", "x", "x" * 3000, "é", "\u2028", "\x1b[2J", "NaN", "finished", "measured", "emulated", [], {}, [[]],
    [{}], [None], [1], ["x"], [1.5, "x"], {"x": 1}, {"num_env_runners": 1}, {"num_env_runners": "x"},
    {"x": {"y": {"z": []}}},
)  # fmt: skip
RAW_VALUES = (b"1e999", b"-1e999", b"NaN", b"Infinity", b"1" * 400, b'"\\ud800"', b"[" * 2000 + b"]" * 2000, b"00", b"")
"""What a JSON reader may or may not take, in the place of a number."""


def _lines(example: str) -> tuple[bytes, ...]:
    """Return the first lines, and the first of every kind that comes later, numbered anew."""
    content = lzma.decompress((ANALYSIS / example / "records.jsonl.xz").read_bytes())
    all_lines = [orjson.loads(raw) for raw in content.splitlines()]
    kept, kinds = all_lines[:LINES_TAKEN], {line["kind"] for line in all_lines[:LINES_TAKEN]}
    for line in all_lines[LINES_TAKEN:]:
        if line["kind"] not in kinds and "trial" not in line:
            kinds.add(line["kind"])
            kept.append(line)
    return tuple(orjson.dumps({**line, "seq": number}) + b"\n" for number, line in enumerate(kept))


RECORDS = {example: _lines(example) for example in EXAMPLES}
IDENTITIES = {example: orjson.loads((ANALYSIS / example / "study.json").read_bytes()) for example in EXAMPLES}


def _changed(draw: st.DrawFn, content: Any) -> Any:
    """Return a JSON object with one value, or one key, that does not belong there."""
    path = draw(st.sampled_from(paths_of(content)[1:]))
    holder: Any = content
    for key in path[:-1]:
        holder = holder[key]
    how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename", "add", "swap"]))
    if how == "remove":
        del holder[path[-1]]
    elif how == "rename" and isinstance(holder, dict):
        holder[draw(st.sampled_from(["x", "", "trial", "status", "seed", "metrics", "é"]))] = holder.pop(path[-1])
    elif how == "swap":
        other = draw(st.sampled_from(paths_of(content)))
        value: Any = content
        for key in other:
            value = value[key]
        holder[path[-1]] = copy.deepcopy(value)
    elif how == "add" and isinstance(holder, dict):
        holder[draw(st.text(max_size=5))] = draw(st.sampled_from(HOSTILE_VALUES))
    else:
        holder[path[-1]] = copy.deepcopy(draw(st.sampled_from(HOSTILE_VALUES)))
    return content


@st.composite
def records(draw: st.DrawFn, example: str) -> bytes:
    """A records file with a few lines, values or bytes that do not belong there."""
    lines = list(RECORDS[example])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["value", "value", "value", "value", "raw", "double", "remove", "bytes", "tear"]))
        if how == "value":
            try:
                content = _changed(draw, orjson.loads(lines[at]))
            except orjson.JSONDecodeError:  # changed before
                continue
            lines[at] = json.dumps(content).encode() + b"\n"
        elif how == "raw":
            number = draw(st.sampled_from([b":1", b":0", b":2.", b':"', b":null"]))
            lines[at] = lines[at].replace(number, b":" + draw(st.sampled_from(RAW_VALUES)), 1)
        elif how == "double":
            lines.insert(at, lines[at])
        elif how == "remove" and len(lines) > 1:
            del lines[at]
        elif how == "bytes":
            cut = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:cut] + draw(st.binary(max_size=4)) + lines[at][cut + draw(st.integers(0, 9)) :]
        else:
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
    return b"".join(lines)


@st.composite
def identities(draw: st.DrawFn, example: str) -> bytes:
    """A `study.json`, mostly as it was."""
    content = copy.deepcopy(IDENTITIES[example])
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        content = _changed(draw, content)
    raw = json.dumps(content).encode()
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(raw)))
        raw = raw[:cut] + draw(st.binary(max_size=4)) + raw[cut + draw(st.integers(0, 9)) :]
    return raw


@st.composite
def folders(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """Return identity, records, and whether the records are packed."""
    example = draw(st.sampled_from(EXAMPLES))
    return draw(identities(example)), draw(records(example)), draw(st.integers(0, 9)) == 0
