"""Space files: where they are, plain YAML with the line of each key, and how a space is written back. Pure.

Parsers accept more than any space needs: numbers of a million digits, lists nested without end, text that cannot be
written again. It is refused here, so that no check, table or message has to expect it.
"""

import contextlib
import difflib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from study.errors import SpaceError
from study.space.parameters import MAX_WHOLE

SHIPPED = Path(__file__).resolve().parents[2] / "search_spaces"
MAX_BYTES = 64_000
"""No space needs more: shipped ones have 2,000."""
MAX_FAULTS = 100
"""Most faults of one file that are reported."""
MAX_DEPTH = 32
"""Levels of lists and mappings in each other; shipped spaces have five."""
MAX_KEY = 200
"""Characters of a key."""
_PLAIN = ("map", "seq", "str", "int", "float", "bool", "null")
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The plain content of a space file, with the line of each key."""

    name: str
    content: dict[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)

    def line_of(self, place: str) -> int | None:
        """Return the line of `place`, or of the nearest key that holds it."""
        while place and place not in self.lines:
            place = place.rpartition(".")[0]
        return self.lines.get(place) or None


def find_space(path: str | Path, *, place: str = "--space") -> Path:
    """Return the file that `path` means: as given, in `./search_spaces`, or among the shipped ones.

    Raises:
        SpaceError: There is none; names the nearest. `place`: what named it on the command line.
    """
    given = Path(path)
    for name in (str(path), f"{path}.yaml"):
        for folder in (Path(), Path("search_spaces"), SHIPPED):
            with contextlib.suppress(OSError, ValueError):  # such as a name that is too long
                if (folder / name).is_file():
                    return folder / name
    shipped = sorted(file.name for file in SHIPPED.glob("*.yaml"))
    near = difflib.get_close_matches(f"{given.stem}.yaml", shipped, n=1)
    fix = f"Did you mean '{near[0]}'?" if near else f"Give a path, or one of: {', '.join(shipped)}."
    raise SpaceError.of(str(path), where=place, rule="no such file", got=f"'{path}'", fix=fix)


def read_space(path: str | Path, *, overrides: Sequence[str] = ()) -> Source:
    """Read a space file and apply `dotted.key=value` overrides.

    Raises:
        SpaceError: The file is missing, too large, or not plain YAML.
    """
    file = find_space(path)
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        rule = f"cannot be read ({error.strerror})"
        raise SpaceError.of(str(file), where="file", rule=rule, fix="Check its permissions.") from error
    except UnicodeDecodeError as error:
        line, fix = raw.count(b"\n", 0, error.start) + 1, "Save it as UTF-8 in your editor."
        raise SpaceError.of(str(file), where="file", rule="must be UTF-8 text", fix=fix, line=line) from error
    if len(raw) > MAX_BYTES:
        fix = "Give a space file; this one is too large to be one."
        raise SpaceError.of(str(file), where="file", rule=f"at most {MAX_BYTES} bytes", got="more", fix=fix)
    source = read_text(text, name=str(file))
    content, lines = source.content, dict(source.lines)
    for override in overrides:
        key, equals, value = override.partition("=")
        *parents, last = key.split(".")
        if not (equals and all([*parents, last])):
            rule, fix = "must be dotted.key=value", "Write for instance --set budget.env_steps=10000."
            raise SpaceError.of(source.name, where="--set", rule=rule, got=f"'{override}'", fix=fix)
        node = content
        for part in parents:
            node[part] = node[part] if isinstance(node.get(part), dict) else {}
            node = node[part]
        node[last] = read_text(f"value: {value}", name=f"--set {key}").content["value"]
        lines = {place: line for place, line in lines.items() if not f"{place}.".startswith(f"{key}.")}
        lines[key] = 0  # the value no longer comes from a line of the file
    return Source(name=source.name, content=content, lines=lines)


def read_text(text: str, *, name: str) -> Source:
    """Parse YAML text into plain values with line numbers; nothing is ever constructed from a tag.

    Raises:
        SpaceError: The text is not one plain YAML mapping with distinct keys.
    """
    loader = YAML(typ="safe", pure=True)
    loader.max_depth = MAX_DEPTH
    try:
        tree = loader.compose(io.StringIO(text))
    except Exception as error:  # a malformed document makes the code of ruamel stumble in many ways
        fix = "Look there, and in the line before: a space behind each colon, spaces in front of keys, quotes around "
        fix += "text with : or @, brackets in pairs, no control characters."
        problem = _printable(getattr(error, "problem", None) or str(error))
        line = _line_of(error, text)
        raise SpaceError.of(name, where="file", rule=f"must be YAML ({problem})", fix=fix, line=line) from error
    if not isinstance(tree, MappingNode):
        got = "nothing" if tree is None else "a list" if isinstance(tree, SequenceNode) else "a single value"
        fix = "Write keys with their values, such as environment: {id: CartPole-v1}."
        raise SpaceError.of(name, where="file", rule="must be a mapping of keys to values", got=got, fix=fix)
    lines: dict[str, int] = {}
    return Source(name=name, content=_Reader(name, loader.constructor, lines).value(tree, ""), lines=lines)


def _line_of(error: Exception, text: str) -> int | None:
    if isinstance(error, ReaderError):
        return text.count("\n", 0, error.position) + 1
    if not isinstance(error, MarkedYAMLError):
        return None
    # What is never closed is noticed at the end, and to be mended where it begins.
    unclosed = "quoted scalar" in str(error.context) or "flow" in str(error.context)
    mark = error.context_mark if unclosed else error.problem_mark or error.context_mark
    return mark.line + 1 if mark else None


def written(content: Mapping[str, Any], *, header: str = "") -> str:
    """Return what a `Source` or `StudySpec.to_json` holds as YAML, below a header of comment lines."""
    stream, yaml = io.StringIO(), YAML()
    yaml.width = 120
    yaml.dump(dict(content), stream)
    return f"{header}\n{stream.getvalue()}" if header else stream.getvalue()


class _Reader:
    """Makes plain values of the nodes of a document, notes the line of each key, and refuses what no space has."""

    def __init__(self, name: str, constructor: Any, lines: dict[str, int]) -> None:
        self._name, self._constructor, self._lines = name, constructor, lines

    def value(self, node: Node, place: str) -> Any:
        """Return a node as plain Python values."""
        if node.anchor is not None:  # aliases can expand without end
            self._refuse(node, place, "anchors and aliases are not allowed", "Write the value again.")
        if str(node.tag).removeprefix(_TAG) not in _PLAIN:
            fix = "Write a plain value. Put it in quotes if it is text."
            self._refuse(node, place, "tags and dates are not allowed", fix, got=_printable(str(node.tag)))
        if isinstance(node, MappingNode):
            return self._mapping(node, place)
        if not isinstance(node, ScalarNode):
            return [self.value(each, _under(place, index)) for index, each in enumerate(node.value)]
        try:
            value = self._constructor.construct_object(node, deep=True)
            if isinstance(value, str):
                value.encode()  # not half of a surrogate pair
        except (ValueError, LookupError, MarkedYAMLError):  # `!!int x`, a number of 5000 digits
            self._refuse(node, place, "must be text or a number that can be read", "Write a plain value.")
        if isinstance(value, int) and not -MAX_WHOLE <= value <= MAX_WHOLE:
            self._refuse(node, place, "whole numbers have at most 64 bits", "Write a smaller number.")
        return value

    def _mapping(self, node: MappingNode, place: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        if node.flow_style and any(value.value == "" and value.style is None for _, value in node.value):
            fix = "Write [1, 2] for a list; in braces a space behind each colon, and decimals with a point."
            self._refuse(node, place, "every key in braces must have a value", fix)
        for key, value in node.value:
            text, inner = key.value, _under(place, key.value)
            if not isinstance(key, ScalarNode) or len(text) > MAX_KEY or not text.isprintable():
                rule = f"keys must be text, at most {MAX_KEY} printable characters"
                self._refuse(key, place, rule, "Write another key.")
            if text in result:
                got = f"'{text}' in line {self._lines[inner]} too"
                self._refuse(key, inner, "keys must be distinct", "Remove one of the two.", got=got)
            self._lines[inner] = key.start_mark.line + 1
            result[text] = self.value(value, inner)
        return result

    def _refuse(self, node: Node, place: str, rule: str, fix: str, *, got: str = "") -> NoReturn:
        line = node.start_mark.line + 1
        raise SpaceError.of(self._name, where=place or "file", rule=rule, got=got, fix=fix, line=line)


def _under(place: str, part: str | int) -> str:
    return f"{place}.{part}" if place else str(part)


def _printable(text: str) -> str:
    """Return the first line of a text without what could command a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text.partition("\n")[0])
