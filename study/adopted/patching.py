"""A trial's values back in the person's own script: as a patch of a few lines, or as lines to add. Reads text; no Ray.

A value is replaced where the script gives it as a literal: an argument of `config.training(...)` or
`config.env_runners(...)`, or an assignment to an attribute. What the script leaves to RLlib is added to such a call.
The patched script is then read as any script is: it counts only if its configuration has the trial's values, and no
other value has changed.
"""

import ast
import difflib
import hashlib
import io
import re
import shlex
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from study.adopted.loading import PATIENCE_S
from study.adopted.reading import Reading, Target, read_script
from study.errors import RecordError, SpaceError
from study.space.parameters import END_FRACTION, FRAGMENT, PARAMETERS, SCALE, Value, attribute
from study.space.script import ScriptFacts
from study.space.spec import StudySpec

RUNNERS, TRAINING = "env_runners", "training"
"""Methods of RLlib's configuration that take what a study varies."""
_OF_RUNNERS = {SCALE: SCALE, "num_envs_per_env_runner": "num_envs_per_env_runner", FRAGMENT: "rollout_fragment_length"}
"""Our parameter -> argument of `env_runners`."""
_SIZES = ("train_batch_size", "minibatch_size")
"""Parameters that RLlib takes for one learner."""
_BATCHES = ("train_batch_size_per_learner", "train_batch_size")
"""RLlib's names of the batch size, of which a script may use either."""
_OF_TUNE = re.compile("grid_search|choice|q?(log)?(uniform|randint|randn)")
"""Functions of Tune that describe what it chooses from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A value that differs from the script's.

    Attributes:
        parameter: Our name of it.
        method: Method of RLlib's configuration that takes it.
        names: Its argument there; where it has two names, the usual one first.
        value: The trial's value, as RLlib takes it.
        is_searched: Whether the script lets Tune choose it.
    """

    parameter: str
    method: str
    names: tuple[str, ...]
    value: Any
    is_searched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """A script with a trial's values.

    Attributes:
        file: The script.
        before: Its text.
        after: Its text with the values; None where they could not be put into it.
        changes: What differs from the script.
        why: Why they could not; or why nobody has read the patched script again.
    """

    file: Path
    before: str
    after: str | None
    changes: tuple[Change, ...]
    why: str = ""

    @property
    def diff(self) -> str:
        """The difference as a unified diff, which `patch -p1` and `git apply` take."""
        name = self.file.name
        lines = _lines(self.before), _lines(self.after or "")
        found = difflib.unified_diff(*lines, fromfile=f"a/{name}", tofile=f"b/{name}")
        return "".join(each if each.endswith("\n") else f"{each}\n\\ No newline at end of file\n" for each in found)

    @property
    def lines(self) -> str:
        """The same as calls that a person adds where the configuration is complete."""
        calls = []
        for method in (RUNNERS, TRAINING):
            given = [f"{each.names[0]}={each.value!r}" for each in self.changes if each.method == method]
            if given:
                calls.append(f"config.{method}({', '.join(given)})\n")
        return "".join(calls)


def patched_script(
    spec: StudySpec, setting: Mapping[str, Value], *, fragment_is_auto: bool = False, may_run: bool
) -> Patched:
    """Return a study's script with the values of one of its trials.

    Args:
        spec: The space, which names a script.
        setting: Every parameter that the trial was given, the scale included.
        fragment_is_auto: Whether the trial let RLlib choose the fragments, where the script gives their length.
        may_run: Whether the patched script may be run, up to where it would train, to see that it has the values.

    Raises:
        SpaceError: There is no such script.
        RecordError: It is not the one that the study was started with.
    """
    facts, file = spec.script, _file_of(spec)
    assert facts is not None
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != facts.source.sha256:
        rule, fix = "must be the script that the study was started with", "Restore it."
        raise RecordError(where=str(file), rule=rule, got="another text", fix=fix, code="script-has-changed")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    changes = changes_of(spec, setting, fragment_is_auto=fragment_is_auto)
    patched = _patched(file, content.decode(encoding), changes)
    if patched.after is None:
        return patched
    if not may_run:
        return replace(patched, why="nobody has read it again: the study is another user's")
    try:
        found = _read_again(spec, file, patched.after.encode(encoding))
    except SpaceError as error:
        why = f"the patched script cannot be read: {' '.join(str(error).split())[:600]}"
        return replace(patched, after=None, why=why)
    why = ", ".join(_unlike(facts, found.adopted.facts, changes))
    return patched if not why else replace(patched, after=None, why=f"something else in it decides: {why}")


def _patched(file: Path, before: str, changes: tuple[Change, ...]) -> Patched:
    after = before
    for change in changes:
        text = _with_value(after, change)
        if text is None:
            why = f"it has no literal for {change.method}({change.names[0]}=…), and no call to add it to"
            return Patched(file=file, before=before, after=None, changes=changes, why=why)
        after = text
    return Patched(file=file, before=before, after=after, changes=changes)


def changes_of(spec: StudySpec, setting: Mapping[str, Value], *, fragment_is_auto: bool = False) -> tuple[Change, ...]:
    """Return what of a trial's setting differs from its script, and all that the script lets Tune choose."""
    assert spec.script is not None
    own, searched = spec.script.defaults, spec.script.searched
    found = []

    def change(name: str, method: str, names: tuple[str, ...], value: Any) -> None:
        found.append(Change(parameter=name, method=method, names=names, value=value, is_searched=name in searched))

    for name, value in setting.items():
        if (name in own and own[name] == value and name not in searched) or name == END_FRACTION:
            continue
        if name in _OF_RUNNERS:
            change(name, RUNNERS, (_OF_RUNNERS[name],), value)
        elif name in _SIZES:  # RLlib's sizes are those of one learner
            names = _BATCHES if name == "train_batch_size" else (name,)
            change(name, TRAINING, names, int(value) // spec.script.num_learners)
        elif name in PARAMETERS:
            change(name, TRAINING, (attribute(name),), value)
            if name == "kl_coeff" and own.get(name) == 0:
                change("use_kl_loss", TRAINING, ("use_kl_loss",), True)
    if fragment_is_auto:
        change(FRAGMENT, RUNNERS, (_OF_RUNNERS[FRAGMENT],), "auto")
    fraction = setting.get(END_FRACTION, 1.0)
    if fraction != 1:
        schedule = [[0, setting["lr"]], [spec.budget.env_steps, setting["lr"] * fraction]]
        found = [each for each in found if each.parameter != "lr"]
        change("lr", TRAINING, ("lr",), schedule)
    order = [*PARAMETERS, "use_kl_loss"]
    return tuple(sorted(found, key=lambda each: (each.method != RUNNERS, order.index(each.parameter))))


def _file_of(spec: StudySpec) -> Path:
    target = Target.parse(str(spec.config))
    if target.file is not None:
        return target.file
    # Not by Python's own search, which would run the packages around the module.
    places = [Path(folder, *target.module.split(".")) for folder in ("", *sys.path)]
    files = (file for place in places for file in (place / "__init__.py", place.with_suffix(".py")))
    if (found := next((file.resolve() for file in files if file.is_file()), None)) is None:
        rule, fix = "the script must be there", "Start in the folder in which the study was started."
        raise SpaceError.of(
            "command line", where="config", rule=rule, got=target.module, fix=fix, code="no-such-script"
        )
    return found


# --- the text ----------------------------------------------------------------------------------------------------


def _with_value(text: str, change: Change) -> str | None:
    """Return the text with a value in it; None where there is no place for it."""
    tree = ast.parse(text)
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == change.method
    ]
    literals = [
        keyword.value
        for call in calls
        for keyword in call.keywords
        if keyword.arg in change.names and _is_replaceable(keyword.value, change)
    ]
    literals += [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and _is_replaceable(node.value, change)
        and any(isinstance(target, ast.Attribute) and target.attr in change.names for target in node.targets)
    ]
    if literals:
        last = max(literals, key=lambda node: (node.lineno, node.col_offset))
        return _replaced(text, last, repr(change.value))
    named = [keyword for call in calls for keyword in call.keywords if keyword.arg in change.names]
    if named or not calls:  # an expression of the script's own decides
        return None
    call = max(calls, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    return _added(text, call, f"{change.names[0]}={change.value!r}")


def _is_replaceable(node: ast.expr, change: Change) -> bool:
    """Return whether a value stands there: a literal, or what Tune would choose from."""
    if change.is_searched and isinstance(node, ast.Call):
        return _OF_TUNE.fullmatch(getattr(node.func, "attr", getattr(node.func, "id", ""))) is not None
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _replaced(text: str, node: ast.expr, value: str) -> str:
    start, end = _places(text, node)
    return text[:start] + value + text[end:]


def _added(text: str, call: ast.Call, argument: str) -> str:
    """Return the text with one more argument before the first one of a call; RLlib takes them by their names alone."""
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    if not given:
        end = _places(text, call)[1]
        return text[: end - 1] + argument + text[end - 1 :]
    first = min(given, key=lambda node: (node.lineno, node.col_offset))
    start, line = _places(text, first)[0], _lines(text)[first.lineno - 1]
    indent = line[: len(line) - len(line.lstrip())]
    between = " "
    if text[:start].endswith("\n" + indent):  # it begins its line
        between = ("\r\n" if line.endswith("\r\n") else "\n") + indent
    return f"{text[:start]}{argument},{between}{text[start:]}"


def _lines(text: str) -> list[str]:
    r"""Return the lines of a text with their ends, as Python counts them: form feeds end none."""
    return list(io.StringIO(text))


def _places(text: str, node: ast.expr | ast.keyword) -> tuple[int, int]:
    """Return where a node begins and ends, in characters; Python's own columns are bytes."""
    lines = _lines(text)

    def place(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)


# --- whether it is true -------------------------------------------------------------------------------------------


def _read_again(spec: StudySpec, file: Path, after: bytes) -> Reading:
    """Return what a patched script gives, which is run as if it stood in the script's place, up to its training."""
    name = Target.parse(str(spec.config)).name
    with tempfile.TemporaryDirectory(prefix="study-patch-") as folder:
        changed = Path(folder) / file.name
        changed.write_bytes(after)
        args, text = shlex.split(spec.config_args), f"{file}:{name}" if name else str(file)
        return read_script(text, args=args, kwargs=spec.config_kwargs, timeout_s=PATIENCE_S, changed=changed)


def _unlike(facts: ScriptFacts, found: ScriptFacts, changes: tuple[Change, ...]) -> Iterator[str]:
    """Yield what is not as it should be in the configuration of a patched script."""
    changed = {change.parameter for change in changes}
    yield from (f"Tune chooses {name}" for name in found.searched)
    ours = changed | {name for change in changes for name in change.names}
    for old, new in ((facts.values, found.values), (facts.settings, found.settings)):
        for name in sorted({*old, *new} - ours):
            if old.get(name) != new.get(name):
                yield f"{name} is {new.get(name)}, was {old.get(name)}"
    for change in changes:
        got, wanted = found.values.get(change.parameter), change.value
        if isinstance(wanted, list):
            if change.parameter not in found.schedules:
                yield f"{change.parameter} is {got}, must be a schedule"
        elif change.parameter in PARAMETERS:
            wanted = wanted * facts.num_learners if change.parameter in _SIZES else wanted
            if got != (None if wanted == "auto" else wanted):
                yield f"{change.parameter} is {got}, must be {wanted}"
