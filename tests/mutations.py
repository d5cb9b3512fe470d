"""Changes of single fields of recorded studies, and what a verification says of each."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from study.designs.holdup.certificate.record_rules import broken_by_study
from study.designs.holdup.certificate.recorded import Study
from study.designs.holdup.certificate.trial_rules import Checked, check_trial
from study.records.records import KINDS, Evaluation, Iteration, Line, Record
from study.records.shapes import read
from study.space.spec import StudySpec

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One value of one record, and what somebody writes there."""

    at: int
    """Place of the line."""
    path: Place
    value: Any

    def field_of(self, lines: Sequence[Line]) -> str:
        """Return which field it is: `iteration.metrics.kl`, `evaluation.returns.*`."""
        return field_name(lines[self.at].record, self.path)


def field_name(record: Record, path: Place) -> str:
    """Return the name of a field; places in lists, and digests of settings, are `*`."""
    words = ["*" if isinstance(part, int) or _is_digest(part) else part for part in path]
    return ".".join([record.kind, *words])


def _is_digest(word: str) -> bool:
    return len(word) == 12 and all(letter in "0123456789abcdef" for letter in word)


def fields_of(record: Record) -> Iterator[tuple[Place, Any]]:
    """Yield every place in a record with its value: leaves, and lists and mappings that hold some."""
    yield from _walk(asdict(record), ())


def _walk(value: Any, path: Place) -> Iterator[tuple[Place, Any]]:
    if path:
        yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _walk(each, (*path, key))


def other_values(value: Any) -> list[Any]:
    """Return what somebody could write in place of a value."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value * 2 + 3]
        case float():
            return [value * 1.5 + 0.001, value - abs(value) * 0.1 - 0.001]
        case str():
            return [f"{value}x"]
        case None:
            return [1, 0.5, "x"]
        case list() | dict():
            return [type(value)(list(value.items())[:-1] if isinstance(value, dict) else value[:-1])] if value else []
    raise TypeError(type(value))


def changed(line: Line, path: Place, value: Any) -> Line | None:
    """Return the line with another value; None where no reader would take it."""
    content = copy.deepcopy(asdict(line.record))
    node: Any = content
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value
    kind = KINDS[line.record.kind]
    try:
        return replace(line, record=read(kind, content))
    except ValueError:
        return None


class Verifier:
    """Verifies a study again after a change; what the change does not touch is not verified again."""

    def __init__(self, lines: Sequence[Line], spec: StudySpec) -> None:
        self.lines, self.spec = list(lines), spec
        self._study = study = Study(self.lines, spec)
        self._checked = {trial: check_trial(study, trial) for trial in study.histories}
        assert not [law for each in self._checked.values() for law in each.broken]
        assert not list(broken_by_study(study, self._checked))

    def objections(self, change: Change) -> list[str]:
        """Return what is wrong after a change; a value that no reader takes is wrong too."""
        before = self.lines[change.at]
        line = changed(before, change.path, change.value)
        if line is None:
            return ["no reader takes it"]
        if isinstance(line.record, Iteration | Evaluation) and change.path[0] != "trial":
            return self._in_training(line)
        lines = [*self.lines[: change.at], line, *self.lines[change.at + 1 :]]
        return self.of_lines(lines, {getattr(each.record, "trial", -1) for each in (line, before)})

    def _in_training(self, line: Line) -> list[str]:
        """Return what is wrong where a line of a trial's training is another one: the rest rests on none of them."""
        trial = line.record.trial  # type: ignore[attr-defined]
        history, before = self._study.histories[trial], self._checked[trial]
        self._study.histories[trial] = [line if each.seq == line.seq else each for each in history]
        try:
            self._checked[trial] = check_trial(self._study, trial)
            return [*self._checked[trial].broken] or list(broken_by_study(self._study, self._checked))
        finally:
            self._study.histories[trial], self._checked[trial] = history, before

    def of_lines(self, lines: Sequence[Line], touched: set[int]) -> list[str]:
        """Return what is wrong with these lines, which differ in these trials and in lines of no trial."""
        try:
            study = Study(lines, self.spec)
            checked: dict[int, Checked] = {}
            for trial in study.histories:
                if trial in touched or trial not in self._checked:
                    checked[trial] = check_trial(study, trial)
                else:
                    checked[trial] = self._checked[trial]
            broken = [law for trial in touched if trial in checked for law in checked[trial].broken]
            return broken or list(broken_by_study(study, checked))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            return [f"nothing follows from them ({type(error).__name__}: {error})"]
