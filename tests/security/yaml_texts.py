"""Space files as somebody might send them: the shipped ones, changed in structure, in text and in bytes."""

import copy
import json
from typing import Any, get_args

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
    *"""
a: &a [x, *a]
a: &a {b: *a}
script: {choices: []}
budget: {value: 1}
parameters: {lr: {value: 1, list: 2}}
a: &x true
a: &x 1
<<: *nothing
<<: [1, 2]
<<: 3
<<: {a: 1}
!!int : 1
a: !!int ""
a: !!float ""
a: !!float "x"
a: !!bool ""
a: !!null x
a: !!binary x
a: !!binary aGk=
a: !!set {x, y}
a: !!omap [x: 1]
a: !!pairs [x: 1]
a: !!timestamp x
a: !!python/object/apply:os.system ['true']
a: !<tag:x> y
a: ! y
a: !%1b y
a: 2001-01-01
a: 9999-99-99
a: 2001-12-14t21:59:43.10-05:00
2001-01-01: a
a: 0b2
a: 0x
a: 1e999
a: -.inf
a: .nan
a: 1:2:3
a: 1_000
a: +
a: _
a: .
a: -
a: ~
a: =
=: 1
1: a
null: a
true: a
1.5: a
a: "\\ud800"
a: "\\x1b[2J"
a: "\\0"
"\\x1b]0;x\\a": 1
a: |0
a: 'x
a: "x
a: [
a: {
- x
---
...
%YAML 1.1
%YAML 9.9
%TAG ! x
%TAG ! tag:yaml.org,2002:python/
a:\tb
a : b : c
a: b: c
@
`
&
*
&a
*a
?
:
""".strip("\n").split("\n"),
    "? [a, b]\n: c",
    "? {a: b}\n: c",
    "a: |\n  x",
    "a: >9\n x",
    "\t",
    "\ta: 1",
    "\ufeff",
    "a: \x07",
    "a: \x85",
    "\u2028",
    "#" * 500,
    "a: 0x" + "f" * 5000,
    "a: 0o" + "7" * 9000,
    "a: " + "9" * 5000,
    "a: " + "[" * 60 + "]" * 60,
    "a: " + "{a: " * 60 + "}" * 60,
    "a: *" + "x" * 500,
    "k" * 1200 + ": 1",
    "a: " + "x " * 2000,
)
"""What YAML allows, what it forbids, and what parsers stumble over."""

BOMBS = {
    "laughs": "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)),
    "maps": "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{b: *a{n - 1}, c: *a{n - 1}}}\n" for n in range(1, 60)),
    "merges": "a0: &a0 {x0: 1}\n"
    + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], x{n}: 1}}\n" for n in range(1, 60)),
    "text": f"a: &a {'x' * 30000}\nb: [{', '.join(['*a'] * 9000)}]\n",
    "keys": "".join(f"k{n}: 1\n" for n in range(6000)),
    "dots": f"{'a.' * 10000}: 1\n",
    "items": f"a: [{','.join(['1'] * 30000)}]\n",
    "depth": f"a: {'[' * 30000}\n",
    "braces": f"a: {'{' * 30000}\n",
    "dashes": f"a:\n  {'- ' * 30000}x\n",
    "questions": "? " * 30000,
    "anchors": "".join(f"a{n}: &x 1\n" for n in range(4000)),
    "comments": "a: 1\n" + "# x\n" * 15000,
    "blank": "a: 1\n" + "\n" * 60000,
    "quotes": "a: " + "'" * 60000,
    "escapes": 'a: "' + "\\x41" * 15000 + '"',
    "digits": "a: " + "1" * 60000,
    "floats": "a: [" + ",".join(["1.0e+1"] * 8000) + "]",
    "underscores": "a: " + "1_" * 30000,
    "colons": "a: " + "1:" * 30000,
    "spaces": "a: 'x" + " " * 60000 + "'",
    "block": "a: |\n" + "  x\n" * 15000,
    "anchor": "a: &" + "x" * 60000 + " 1",
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


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """A shipped space with a few values, keys or sections that do not belong there."""
    content = copy.deepcopy(draw(st.sampled_from(CONTENTS)))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        if draw(st.booleans()):
            places = draw(st.sampled_from([SCHEMA_PATHS, PARAMETER_PATHS]))
            _set(content, draw(st.sampled_from(places)), draw(_domains))
            continue
        path = draw(st.sampled_from(paths_of(content)[1:] or [("a",)]))
        holder: Any = content
        for key in path[:-1]:
            holder = holder[key]
        how = draw(st.sampled_from(["replace", "add", "remove", "rename", "graft", "wrap"]))
        value = copy.deepcopy(draw(st.sampled_from(HOSTILE_VALUES)))
        if how == "replace":
            holder[path[-1]] = value
        elif how == "remove":
            del holder[path[-1]]
        elif how == "wrap":
            holder[path[-1]] = draw(st.sampled_from([[holder[path[-1]]], {"choices": [holder[path[-1]]]}]))
        elif isinstance(holder, dict):
            other = draw(st.sampled_from(CONTENTS))
            place = draw(st.sampled_from(paths_of(other)[1:]))
            for key in place:
                other = other[key]
            added = {"add": value, "rename": holder[path[-1]], "graft": copy.deepcopy(other)}[how]
            holder[str(place[-1]) if how != "add" else draw(st.text(max_size=8))] = added
            if how == "rename":
                holder.pop(path[-1], None)
    return content


def _set(content: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set the value at a place of the schema, making the sections above it where there are none."""
    for key in path[:-1]:
        if not isinstance(content.get(key), dict):
            content[key] = {}
        content = content[key]
    content[path[-1]] = value


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A space file with lines that do not belong there."""
    as_json = contents().map(lambda content: json.dumps(_writable(content)))  # JSON is YAML
    text = draw(st.sampled_from(TEXTS) | as_json)
    lines = text.split("\n")
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(lines)))
        how = draw(st.sampled_from(["insert", "insert", "double", "remove", "indent", "cut", "join"]))
        if how == "insert" or at == len(lines):
            lines.insert(at, " " * draw(st.integers(0, 4)) + draw(st.sampled_from(HOSTILE_LINES)))
        elif how == "double":
            lines.insert(at, lines[at])
        elif how == "remove":
            del lines[at]
        elif how == "indent":
            lines[at] = draw(st.sampled_from([" ", "  ", "\t", "- ", "? "])) + lines[at]
        elif how == "cut":
            lines[at] = lines[at][: draw(st.integers(0, 40))]
        else:
            lines[at] += draw(st.sampled_from(HOSTILE_LINES))
        lines = lines or [""]
    return draw(st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n"])).join(lines)


def _writable(node: Any) -> Any:
    """Return a content without halves of surrogate pairs, which no encoding has."""
    if isinstance(node, dict):
        return {_writable(key): _writable(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_writable(value) for value in node]
    return node.encode(errors="replace").decode() if isinstance(node, str) else node


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """The same as bytes, in this or that encoding, with a few bytes changed."""
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"]))
    raw = bytearray(draw(texts()).encode(encoding, errors="surrogatepass" if "utf" in encoding else "replace"))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        how = draw(st.sampled_from(["set", "insert", "remove"]))
        if how == "insert" or at == len(raw):
            raw[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif how == "remove":
            del raw[at : at + draw(st.integers(1, 20))]
        else:
            raw[at] = draw(st.integers(0, 255))
    return bytes(raw)
