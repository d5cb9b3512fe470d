"""From a space file to a `StudySpec`, or all its faults: place, line, rule, value, and what to write instead. Pure.

Faults of single fields are reported together, and once there are none, those of the rules between sections. Parsers of
YAML accept more than any space needs: numbers of a million digits, lists nested without end, text that cannot be
written again. It is refused here, so that no check, table or message has to expect it.
"""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from study.errors import Fault, SpaceError
from study.space.domains import Section, as_yaml, fault, meant_by, suggestion
from study.space.parameters import ALGORITHMS, MAX_WHOLE, NAMES
from study.space.rules import RULES_OF
from study.space.sections import AXES
from study.space.spec import ScriptFacts, StudySpec

SHIPPED = Path(__file__).resolve().parents[2] / "search_spaces"
MAX_BYTES = 64_000
"""No space needs more: shipped ones have 2,000."""
MAX_FAULTS = 100
"""Most faults of one file that are reported."""
MAX_DEPTH = 32
"""Levels of lists and mappings in each other; shipped spaces have five."""
MAX_KEY = 200
"""Characters of a key."""

# --- a file -----------------------------------------------------------------------------------------------------------


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
    for name in (str(path), f"{path}.yaml"):
        for folder in (Path(), Path("search_spaces"), SHIPPED):
            with contextlib.suppress(OSError, ValueError):  # such as a name that is too long
                if (folder / name).is_file():
                    return folder / name
    shipped = {file.stem: file.name for file in sorted(SHIPPED.glob("*.yaml"))}
    near = meant_by(Path(path).stem, [*shipped])
    fix = f"Did you mean '{shipped[near]}'?" if near else f"Give a path, or one of: {', '.join(shipped.values())}."
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
        problem = str(getattr(error, "problem", None) or error).partition("\n")[0]
        line = _line_of(error, text)
        raise SpaceError.of(name, where="file", rule=f"must be YAML ({problem})", fix=fix, line=line) from error
    if not isinstance(tree, MappingNode):
        got = "nothing" if tree is None else "a list" if isinstance(tree, SequenceNode) else "a single value"
        fix = "Write keys with their values, such as environment: {id: CartPole-v1}."
        raise SpaceError.of(name, where="file", rule="must be a mapping of keys to values", got=got, fix=fix)
    reader = _Reader(name, loader.constructor)
    return Source(name=name, content=reader.value(tree, ""), lines=reader.lines)


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


_PLAIN = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null"))


class _Reader:
    """Makes plain values of the nodes of a document, notes the line of each key, and refuses what no space has."""

    def __init__(self, name: str, constructor: Any) -> None:
        self._name, self._constructor = name, constructor
        self.lines: dict[str, int] = {}

    def value(self, node: Node, place: str) -> Any:
        if node.anchor is not None or str(node.tag) not in _PLAIN:  # aliases can expand without end
            fix = "Write a plain value. Put it in quotes if it is text."
            self._refuse(node, place, "anchors, aliases, tags and dates are not allowed", fix)
        if isinstance(node, MappingNode):
            return self._mapping(node, place)
        if isinstance(node, SequenceNode):
            return [self.value(each, _under(place, str(index))) for index, each in enumerate(node.value)]
        try:
            value = self._constructor.construct_object(node, deep=True)
            str(value).encode()  # not half of a surrogate pair
            is_known = not isinstance(value, int) or -MAX_WHOLE <= value <= MAX_WHOLE
        except (ValueError, LookupError, MarkedYAMLError):  # `!!int x`, a number of 5000 digits
            is_known = False
        if not is_known:
            self._refuse(node, place, "must be text, or a number of at most 64 bits", "Write a plain value.")
        return value

    def _mapping(self, node: MappingNode, place: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or len(key.value) > MAX_KEY or not key.value.isprintable():
                rule = f"keys must be text, at most {MAX_KEY} printable characters"
                self._refuse(key, place, rule, "Write another key.")
            inner = _under(place, key.value)
            if key.value in result:
                got = f"'{key.value}' in line {self.lines[inner]} too"
                self._refuse(key, inner, "keys must be distinct", "Remove one of the two.", got=got)
            self.lines[inner] = key.start_mark.line + 1
            result[key.value] = self.value(value, inner)
        return result

    def _refuse(self, node: Node, place: str, rule: str, fix: str, *, got: str = "") -> NoReturn:
        line = node.start_mark.line + 1
        raise SpaceError.of(self._name, where=place or "file", rule=rule, got=got, fix=fix, line=line)


def _under(place: str, part: str) -> str:
    return f"{place}.{part}" if place else part


# --- its faults -------------------------------------------------------------------------------------------------------


def parse_space(source: Source, *, scored: bool = True) -> StudySpec:
    """Validate the content of a space file; `scored`: whether the returns that make a score must be there, in order.

    Raises:
        SpaceError: With every fault found.
    """
    if "script" in source.lines:
        faults = [fault("script", "is found in the script, and not written", "", "Remove it; `config` names it.")]
    else:
        try:
            spec = StudySpec.model_validate(source.content)
        except ValidationError as error:
            faults = _faults_of(error, source.content)
        else:
            faults = [each for rule in RULES_OF[spec.kind] for each in rule(spec)]
            faults = [each for each in faults if scored or each.where not in _SCORING]
    if faults:
        first = {each.where: replace(each, line=source.line_of(each.where)) for each in reversed(faults)}
        raise SpaceError(source.name, sorted(reversed(first.values()), key=lambda each: each.line or 0)[:MAX_FAULTS])
    return spec


_SCORING = ("environment.floor", "environment.reference", "environment.target")
"""Returns that give a score its meaning."""


def _fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield place and field of every key that a person may write; `[]` stands for the number of an item."""
    for name, info in model.model_fields.items():
        kinds = (info.annotation, *get_args(info.annotation))  # perhaps an optional section, or a list of such
        if ScriptFacts not in kinds:
            yield f"{above}{name}", info
        items = "[]" if get_origin(info.annotation) is list else ""
        for inner in kinds:
            if isinstance(inner, type) and issubclass(inner, Section) and inner is not ScriptFacts:
                yield from _fields(inner, f"{above}{name}{items}.")


FIELDS = dict(_fields(StudySpec))
"""Place of every key of a space -> its field."""
_PLACES = [place.replace("[]", "") for place in (*FIELDS, *(f"parameters.{name}" for name in NAMES))]
_PLACE_OF = {place.rpartition(".")[2]: place for place in reversed(_PLACES)}
"""Key -> its first place."""
_FIXES: Mapping[str, str] = {
    "missing": "Add it.",
    "int_type": "Write a whole number, such as 1000000 or 1e6.",
    "float_type": "Write a number, such as 0.0003 or 3e-4.",
    "string_type": "Write it in quotes.",
    "list_type": "Write a list, such as [1, 2].",
}
"""Kind of pydantic's error -> what to do, where it is not to change the value."""
_FORMS = frozenset({"list", "dict", "int", "float"})
"""Parts of a pydantic location that name a type of a value, not a key."""


def _faults_of(error: ValidationError, content: Mapping[str, Any]) -> list[Fault]:
    """Return pydantic's errors as faults; where an unknown key is probably another's name, that is not missing."""
    faults, meant = list[Fault](), set[str]()
    for item in error.errors(include_url=False)[:MAX_FAULTS]:  # to look for what each may mean takes time
        parts = [str(part) for part in item["loc"] if part not in _FORMS] or ["file"]
        where, section = ".".join(parts), ".".join(parts[:-1])
        if item["type"] != "extra_forbidden":
            faults.append(_fault_of(item, where))
            continue
        keys, elsewhere = _known_keys(section, content), meant_by(parts[-1], [*_PLACE_OF], cutoff=0.8)
        near = meant_by(parts[-1], keys)
        fix = suggestion(parts[-1], keys) if near or not elsewhere else f"Did you mean '{_PLACE_OF[elsewhere]}'?"
        faults.append(fault(where, "unknown key", "", fix))
        meant.add(_under(section, str(near)))
    return [each for each in faults if each.where not in meant or each.rule != "must be given"]


def _fault_of(item: ErrorDetails, where: str) -> Fault:
    kind, known, found = item["type"], item.get("ctx", {}), item.get("input")
    if kind == "rule":  # of a validator of ours
        return fault(known.get("where", where), known["rule"], known["got"], known["fix"])
    rule, fix = re.sub("^(Input|List|String) should", "must", item["msg"]), _FIXES.get(kind, "Change the value.")
    if kind == "missing":
        return fault(where, "must be given", "", fix)
    if kind in ("dict_type", "model_type"):
        keys = ", ".join(_known_keys(where, {})) or "one a line"
        rule, fix = "must be a mapping of keys to values", f"Write its keys below it, indented, without dashes: {keys}."
    if kind == "literal_error":
        options = re.findall(r"[\w-]+", known["expected"].replace(" or ", " "))
        fix = suggestion(str(found), options)
    return fault(where, rule, as_yaml(found), fix)


def _known_keys(section: str, content: Mapping[str, Any]) -> list[str]:
    """Return the keys that a section of a space may have; of parameters those of its algorithm."""
    if section == "holdup.published" or section.endswith("parameters"):
        return list(ALGORITHMS.get(str(content.get("algorithm")), ALGORITHMS["PPO"]).names)
    if section.startswith("throughput.grids."):
        return [*AXES]
    place = re.sub(r"\.\d+", "", section)  # an index
    return [each.rpartition(".")[2] for each in _PLACES if each.rpartition(".")[0] == place]
