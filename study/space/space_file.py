"""Space files: where they are, safe YAML with the line of each key, and what a value may be at all. Pure.

Parsers accept more than any space needs: numbers of a million digits, lists nested without end, text that cannot be
written again. `unfit` refuses it, wherever a space was read, so that no check, table or message has to expect it.
"""

import contextlib
import copy
import datetime
import difflib
import io
import reprlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq, TaggedScalar
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scalarbool import ScalarBoolean

from study.errors import Fault, SpaceError
from study.harmless import mask_credentials
from study.space.parameters import MAX_WHOLE

Place = tuple[str | int, ...]

MAX_FAULTS = 100
"""Most faults of one file that are reported."""
MAX_DEPTH = 32
"""Levels of lists and mappings in each other; shipped spaces have five."""
MAX_VALUES = 20_000
"""Guards against aliases that expand without end."""
MAX_CHARACTERS = 1_000_000
"""In all texts together, each counted wherever an alias puts it."""
MAX_KEY = 200
"""Characters of a key."""
SHIPPED = Path(__file__).resolve().parents[2] / "search_spaces"
MAX_BYTES = 64_000
"""No space needs more: shipped ones have 2,000, and the parser takes a second for so many."""
NOTE = "# Changed on the command line:\n"
"""Above a study's copy of its space; `NOTE_CHANGE` begins each change below it, and `NOTE_MORE` its other lines."""
NOTE_CHANGE, NOTE_MORE = "# --set ", "# | "
PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null"))
"""The tags that plain YAML values have."""
_STUMBLES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What ruamel's loader raises, besides its own errors, where a malformed document makes its code stumble: an empty
`!!int` is an IndexError there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The plain content of a space file, with the line of each key."""

    name: str
    content: dict[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)

    def line_of(self, place: str) -> int | None:
        """Return the line of `place`, or of the nearest key that holds it."""
        parts = place.split(".")
        for end in range(len(parts), 0, -1):
            if (line := self.lines.get(".".join(parts[:end]))) is not None:
                return line or None
        return None

    def without(self, places: Iterable[str]) -> dict[str, Any]:
        """Return a copy of the content without the keys at `places`; a faulty item takes its whole list along."""
        content = copy.deepcopy(self.content)
        for place in places:
            holder, key = content, ""
            for part in place.split("."):
                child = holder.get(key) if key else holder
                if not isinstance(child, dict):
                    break
                holder, key = child, part
            holder.pop(key, None)
        return content


def find_space(path: str | Path, *, place: str = "--space") -> Path:
    """Return the file that `path` means: as given, in `./search_spaces`, or among the shipped ones.

    Args:
        path: A file, or the name of one.
        place: What named it on the command line, for the message.

    Raises:
        SpaceError: There is none; names the nearest.
    """
    given = Path(path) if Path(path).name else Path("nothing")
    names = [given] if given.suffix == ".yaml" else [given, given.with_name(f"{given.name}.yaml")]
    places = [folder / name for name in names for folder in (Path(), Path("search_spaces"), SHIPPED)]
    for candidate in places:
        with contextlib.suppress(OSError):  # such as a name that is too long
            if candidate.is_file():
                return candidate
    shipped = sorted(file.name for file in SHIPPED.glob("*.yaml"))
    near = difflib.get_close_matches(given.stem, [Path(name).stem for name in shipped], n=1)
    fix = f"Did you mean '{near[0]}.yaml'?" if near else f"Give a path, or one of: {', '.join(shipped)}."
    rule, got = "no such file", f"'{path}'"
    with contextlib.suppress(OSError):
        if Path(path).is_dir():
            rule, got = "must be a file", f"the folder '{path}'"
        if (given / "space.yaml").is_file():
            fix = f"Of that study it is {given / 'space.yaml'}; with --name {given.name} --resume the study goes on."
    raise _error(str(path), where=place, rule=rule, got=got, fix=fix)


def read_space(path: str | Path, *, overrides: Sequence[str] = ()) -> Source:
    """Read a space file and apply `dotted.key=value` overrides.

    Raises:
        SpaceError: The file is missing, too large, or not plain YAML.
    """
    file = find_space(path)
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _error(str(file), rule=f"cannot be read ({error.strerror})", fix="Check its permissions.") from error
    if len(raw) > MAX_BYTES:
        rule, fix = f"at most {MAX_BYTES} bytes", "Give a space file; this one is too large to be one."
        raise _error(str(file), rule=rule, got="more", fix=fix)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        line, fix = error.object.count(b"\n", 0, error.start) + 1, "Save it as UTF-8 in your editor."
        raise _error(str(file), rule="must be UTF-8 text", got=got, fix=fix, line=line) from error
    source = read_text(text, name=str(file))
    return _override(source, overrides)


def as_options(path: str | Path) -> list[str]:
    """Return the words by which a command runs a space file: of a study's copy, also what its command line changed."""
    changes: list[str] = []
    with contextlib.suppress(OSError):  # no file: one that is found by its name
        first, *lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) or [""]
        for line in lines if first == NOTE else ():
            if line.startswith(NOTE_CHANGE):
                changes.append(line.removeprefix(NOTE_CHANGE))
            elif line.startswith(NOTE_MORE) and changes:
                changes[-1] += line.removeprefix(NOTE_MORE)
            else:
                break
    return ["--space", str(path), *(word for each in changes for word in ("--set", mask_credentials(each[:-1])))]


def read_text(text: str, *, name: str) -> Source:
    """Parse YAML text into plain values with line numbers; nothing is ever constructed from a tag.

    Raises:
        SpaceError: The text is not one plain YAML mapping with distinct keys.
    """
    # The round-trip loader keeps lines and leaves tags as tags; it constructs no objects.
    loader = YAML(typ="rt")
    loader.max_depth = MAX_DEPTH + 2
    try:
        with warnings.catch_warnings(action="ignore"):  # on an alias that is defined twice
            tree = loader.load(io.StringIO(text))
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        problem = _printable(error.problem or "duplicate key").split(" with value")[0]
        fix = "Remove one of the two."
        raise _error(name, rule=f"keys must be distinct ({problem})", fix=fix, line=line) from error
    except MarkedYAMLError as error:
        # What is never closed is noticed at the end, and to be mended where it begins.
        unclosed = "quoted scalar" in str(error.context) or "flow" in str(error.context)
        mark = error.context_mark if unclosed else error.problem_mark or error.context_mark
        problem, fix = _printable(error.problem or _first_line(error)), "Look there, and in the line before: "
        fix += "a space behind each colon, spaces in front of keys, quotes around text with : or @, brackets in pairs."
        raise _error(name, rule=f"must be YAML ({problem})", fix=fix, line=mark.line + 1 if mark else None) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        number = error.character if isinstance(error.character, int) else ord(error.character)
        got = f"the character U+{number:04X}"
        raise _error(name, rule="must be YAML", got=got, fix="Remove it.", line=line) from error
    except (YAMLError, *_STUMBLES) as error:
        raise _error(name, rule=f"must be YAML ({_first_line(error)})", fix="Check the file.") from error
    if not isinstance(tree, CommentedMap):
        rule, fix = "must be a mapping of keys to values", "Begin with one of search_spaces/, such as quickstart.yaml."
        raise _error(name, rule=rule, got=_kind(tree), fix=fix)
    plain = _Plain()
    if faults := list(unfit(tree))[:MAX_FAULTS]:  # before aliases are expanded
        raise SpaceError(name, faults)
    content = plain.of(tree)
    if plain.faults:
        raise SpaceError(name, plain.faults[:MAX_FAULTS])
    return Source(name=name, content=content, lines=plain.lines)


class _Plain:
    """Turns ruamel's values into plain ones, and notes lines and what no space has."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.faults: list[Fault] = []

    def of(self, node: Any, place: Place = ()) -> Any:
        """Return `node` as plain Python values."""
        tag = getattr(getattr(node, "tag", None), "value", None)
        if tag is not None and str(tag) not in PLAIN_TAGS:
            self._refuse(place, rule="tags are not allowed", got=_printable(repr(str(tag))), fix="Write a plain value.")
            return None
        if isinstance(node, CommentedMap):
            return self._mapping(node, place)
        if isinstance(node, CommentedSeq):
            return [self.of(value, (*place, index)) for index, value in enumerate(node)]
        return self._scalar(node, place)

    def _mapping(self, node: CommentedMap, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        own = node.lc.data or {}  # a key from `<<` has no line here
        for key, value in node.items():
            if (text := _key(key)) is None or text in result:
                rule = "keys must be text" if text is None else "keys must be distinct as text"
                self._refuse(place, rule=rule, got=_printable(text or _kind(key)), fix="Write another key.")
                continue
            inner = (*place, text)
            self.lines[dotted(inner)] = node.lc.key(key)[0] + 1 if key in own else 0
            result[text] = self.of(value, inner)
        return result

    def _scalar(self, node: Any, place: Place) -> Any:
        if isinstance(node, TaggedScalar):
            return node.value
        for kind, plain in _SCALARS:
            if isinstance(node, kind):
                return plain(node)  # ruamel's scalars remember their spelling
        if node is not None:
            rule, fix = "must be text, a number, true, false or null", "Put it in quotes."
            self._refuse(place, rule=rule, got=_kind(node), fix=fix)
        return None

    def _refuse(self, place: Place, *, rule: str, got: str, fix: str) -> None:
        where = dotted(place)
        self.faults.append(Fault(where=where, rule=rule, got=got, fix=fix, line=self.lines.get(where)))


_SCALARS = ((ScalarBoolean, bool), (bool, bool), (int, int), (float, float), (str, str))


def _key(key: Any) -> str | None:
    """Return a key as text; None where it is a list, a date or a number without end."""
    if isinstance(key, int) and not -MAX_WHOLE <= key <= MAX_WHOLE:
        return None
    return str(key) if isinstance(key, (str, int, float, NoneType)) else None


def _kind(value: object) -> str:
    """Return in words what a value of YAML is."""
    kinds: tuple[tuple[Any, str], ...] = (
        (NoneType, "nothing"),
        ((list, tuple), "a list"),
        (dict, "a mapping"),
        (str, "text"),
        ((bool, int, float), "a number"),
        (datetime.date, "a date"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "something else")


def _printable(text: str) -> str:
    """Return the text without what could command a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _first_line(error: Exception) -> str:
    return _printable(next(iter(str(error).splitlines()), type(error).__name__))


def _override(source: Source, overrides: Sequence[str]) -> Source:
    content, lines, faults = copy.deepcopy(source.content), dict(source.lines), []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not all(key.split(".")):
            rule, fix = "must be dotted.key=value", "Write for instance --set budget.env_steps=10000."
            faults.append(Fault(where="--set", rule=rule, got=f"'{override}'", fix=fix))
            continue
        value = read_text(f"value: {text}", name=f"--set {key}").content["value"]
        *parents, last = key.split(".")
        node = content
        for part in parents:
            child = node.get(part)
            node[part] = child if isinstance(child, dict) else {}
            node = node[part]
        node[last] = value
        for place in [place for place in lines if place.startswith(f"{key}.")]:
            del lines[place]
        lines[key] = 0  # the value no longer comes from a line of the file
    if faults:
        raise SpaceError(source.name, faults)
    return Source(name=source.name, content=content, lines=lines)


def _error(
    name: str, *, where: str = "file", rule: str, got: str = "", fix: str, line: int | None = None
) -> SpaceError:
    return SpaceError.of(name, where=where, rule=rule, got=got, fix=fix, line=line)


def unfit(content: Mapping[Any, Any]) -> Iterator[Fault]:
    """Yield a fault for every value that no space has; ends early where there are too many values."""
    waiting: list[tuple[Place, Any]] = [((), content)]
    seen = characters = 0
    while waiting:
        place, value = waiting.pop()
        where = dotted(place)
        seen += 1
        characters += len(value) if isinstance(value, str) else 0
        if seen > MAX_VALUES or characters > MAX_CHARACTERS:
            rule, fix = f"at most {MAX_VALUES} values and {MAX_CHARACTERS} characters", "Do not nest aliases."
            yield Fault(where="file", rule=rule, fix=fix)
            return
        if isinstance(value, (Mapping, list)):
            if len(place) >= MAX_DEPTH:
                rule, fix = f"at most {MAX_DEPTH} levels", "Nest less, and do not nest aliases."
                yield Fault(where=dotted(place[:3]), rule=rule, fix=fix)
                continue
            inner = list(value.items() if isinstance(value, Mapping) else enumerate(value))
            for key in value if isinstance(value, Mapping) else ():
                if not _fits(key):
                    rule = f"keys must be at most {MAX_KEY} printable characters"
                    got = shown(key) if isinstance(key, str) else "another"
                    yield Fault(where=where, rule=rule, got=got, fix="Rename it.")
            waiting.extend(((*place, key), each) for key, each in reversed(inner) if _fits(key))
        elif isinstance(value, str) and not _is_text(value):
            rule, got, fix = "must be text", "half of a surrogate pair", "Write the character itself."
            yield Fault(where=where, rule=rule, got=got, fix=fix)
        elif isinstance(value, int) and not -MAX_WHOLE <= value <= MAX_WHOLE:
            yield Fault(where=where, rule="whole numbers have at most 64 bits", fix="Write a smaller number.")


def dotted(place: Place) -> str:
    """Return the name of a place as messages show it: `parameters.lr`."""
    return ".".join(map(str, place)) or "file"


def shown(value: object) -> str:
    """Return a value as a message shows it: a long one in part."""
    return _SHORT.repr(value)


def as_yaml(value: object) -> str:
    """Return a value in a message as its YAML says it."""
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else shown(value)


def _fits(key: object) -> bool:
    if isinstance(key, int) and not -MAX_WHOLE <= key <= MAX_WHOLE:
        return False
    return len(str(key)) <= MAX_KEY and str(key).isprintable()


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 4, 20, 20, 200, 200
