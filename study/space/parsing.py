"""From a space file to a `StudySpec`, with every fault at once. Pure; imports no Ray, torch or Optuna."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pydantic import ValidationError

from study.errors import Fault, SpaceError
from study.space.checks import batches, common
from study.space.domains import MAX_LISTED
from study.space.faults import faults_of, is_reported
from study.space.holdup_checks import baselines_fit, holdup
from study.space.kinds import KINDS
from study.space.parameters import SCALE
from study.space.plain import MAX_FAULTS, unfit
from study.space.script_checks import script
from study.space.search_checks import baseline_fragments, foreign_values, larger_batch, search
from study.space.space_file import Source
from study.space.spec import VERSION, StudySpec
from study.space.throughput_checks import throughput
from study.withdrawn import withdrawn_values

CHECKS: Mapping[str, tuple[Callable[[StudySpec], Iterator[Fault]], ...]] = {
    "search": (script, common, throughput, batches, search, holdup),
    "throughput": (script, common, throughput),
}
"""Kind of study -> its rules between keys; a kind that is added later has them in `study.space.kinds`."""
OF_NEW_STUDIES = (baseline_fragments, baselines_fit, foreign_values)
"""Rules that are younger than studies on record, which may break them: they are checked where a study is asked for."""
RENAMED = {"search.anchors": "search.baselines"}
"""Key of an earlier version of space files -> its name now."""
_SCORING = ("environment.floor", "environment.reference", "environment.target")
"""Returns that give a score its meaning."""


def parse_space(source: Source, *, scored: bool = True, asked: bool = False) -> StudySpec:
    """Validate the content of a space file.

    Args:
        source: The content.
        scored: Whether the returns that give a score its meaning must be there, and in order.
        asked: Whether a person starts this study now: some rules do not apply to studies on record.

    Raises:
        SpaceError: With every fault found.
    """
    if faults := list(unfit(source.content))[:MAX_FAULTS]:  # the code below expects no such values
        raise SpaceError(source.name, [_with_line(fault, source) for fault in faults])
    gone = [_with_line(fault, source) for fault in withdrawn_values(source.content)]
    renamed = [*gone, *(_with_line(fault, source) for fault in _not_for_people(source))]
    reported: set[str] = set()
    try:
        spec: StudySpec | None = StudySpec.model_validate(source.without([fault.where for fault in gone]))
    except ValidationError as error:
        faults, reported = faults_of(error, source)
        spec = _without(source, [*gone, *faults])
    if spec is not None:
        reported = reported.union((fault.where for fault in faults), () if scored else _SCORING)
        found = [_with_line(fault, source) for fault in _broken(spec, asked=asked)]
        faults += [fault for fault in found if not is_reported(fault.where, reported)]
    if faults or renamed or spec is None:
        raise SpaceError(source.name, sorted([*renamed, *faults], key=lambda fault: fault.line or 0))
    return spec


def _not_for_people(source: Source) -> Iterator[Fault]:
    """Yield a fault for what records say, and a file may not: old names of keys, and what is found in a script."""
    for old, new in RENAMED.items():
        if old in source.lines:
            rule, fix = f"is called {new} since version {VERSION} of space files", f"Write {new} in its place."
            yield Fault(where=old, rule=rule, fix=fix)
    if "script" in source.lines:
        rule, fix = "is found in the script, and not written", "Remove it; `config` names the script."
        yield Fault(where="script", rule=rule, fix=fix)


def _broken(spec: StudySpec, *, asked: bool) -> Iterator[Fault]:
    """Yield a fault for every rule between keys that the spec breaks."""
    if len(spec.scales) > MAX_LISTED:  # checks look at every scale with every number of environments
        where, rule = f"parameters.{SCALE}", f"at most {MAX_LISTED} scales"
        yield Fault(where=where, rule=rule, got=str(len(spec.scales)), fix="List fewer.")
        return
    found = [fault for check in CHECKS.get(spec.kind, KINDS[spec.kind].checks) for fault in check(spec)]
    yield from found
    if asked and spec.learns:
        yield from larger_batch(spec)
        for check in OF_NEW_STUDIES if not found else ():  # values that break no other rule
            yield from check(spec)


def _with_line(fault: Fault, source: Source) -> Fault:
    return replace(fault, line=source.line_of(fault.where))


def _without(source: Source, faults: Sequence[Fault]) -> StudySpec | None:
    """Validate what is left without the faulty keys, so that rules between keys are checked in the same run."""
    content = source.without([fault.where for fault in faults])
    if isinstance(parameters := content.get("parameters"), dict):
        parameters.setdefault(SCALE, 1)  # required: a stand-in lets the other rules be checked
    try:
        return StudySpec.model_validate(content)
    except ValidationError:
        return None
