"""The confound guard: which comparisons are refused, what can be said instead, and what command would settle it. Pure.

Efficiency compares times of equal work. Where the work changed with the runners, a ratio of throughputs is not the
runners' doing alone, and nothing in the two runs tells how much of it is.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import orjson
import pandas as pd

from analysis.scaling.decomposition import cells_of, decompose, missing_cells, squares
from analysis.scaling.fingerprint import ABSENT, BATCH, ENGINE, SETTINGS, differing, fields, in_words, replaced, text_of
from analysis.scaling.results import Cell, Kind, Refusal
from analysis.scaling.selection import as_text, texts
from study.space.parameters import ALGORITHMS, SCALE
from study.space.sections import AXES, LEARNERS
from study.space.space_file import as_options

MOST_COMPARED = 40
"""Workloads per scale, those with the most runs, among which the most alike pair is looked for."""
_NAMES = {field: place.rpartition(".")[2] for field, place in SETTINGS.items()}
"""Field of a fingerprint -> the parameter that a space gives for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """How to run cells of a study."""

    space: str | None
    """Space file that the study came from; None where there is none, and so no command."""
    study: str
    """Its name."""
    stage: str | None = None
    """What its runs are for: None in a search, `throughput`, or stages of a hold-up study, which no command repeats."""

    def command(self, cells: Sequence[Cell]) -> str:
        """Return the command that runs these cells as a study `<name>_missing`; empty where no command can.

        A throughput study has a grid for each workload. A search has one grid for all of them where they differ in no
        more than the scale and one parameter, and else, or where the learners differ, a command for each workload.
        Both run the cells that exist anew: then all of them have common seeds and may be paired.
        """
        scales = sorted({cell.num_env_runners for cell in cells})
        contents = [fields(workload) for workload in dict.fromkeys(cell.fingerprint for cell in cells)]
        if self.space is None or self.stage not in (None, "throughput"):
            return ""
        if self.stage == "throughput":
            grids = {f"missing_{at}": _axes(content, scales) for at, content in enumerate(contents, 1)}
            return self._line("_missing", [f"throughput.grids={_json(grids)}", "throughput.allocation=null"])
        varied = [name for name in SETTINGS if len({repr(content.get(name)) for content in contents}) > 1]
        if len(varied) > 1 or LEARNERS in varied:
            return "\n".join(
                self._line(f"_missing_{at}", [*_grid([content], scales), f"resources.{LEARNERS}={content[LEARNERS]}"])
                if LEARNERS in varied
                else self._line(f"_missing_{at}", _grid([content], scales))
                for at, content in enumerate(contents, 1)
            )
        return self._line("_missing", _grid(contents, scales))

    def _line(self, suffix: str, changes: Sequence[str]) -> str:
        words = ["python", "run_study.py", *as_options(str(self.space)), "--name", f"{self.study}{suffix}"]
        return shlex.join([*words, *(word for each in changes for word in ("--set", each))])


def refusals(
    measured: pd.DataFrame,
    *,
    kind: Kind,
    excluded: Mapping[str, int],
    level: float,
    space: str | None,
) -> tuple[Refusal, ...]:
    """Return the comparisons between scales that are refused.

    1. Nothing to compare: no measured run, one run, or one scale.
    2. A scale that shares no workload with the smallest one: told for the most alike pair of cells. In weak scaling
       only where no two scales share one, with the cell that would be the partner.
    3. In strong scaling, the corners of a complete n x batch square (smallest batch at the smallest scale against the
       largest at the largest): comparable along its sides only, and decomposed.

    Args:
        measured: Selected runs, with the column `key` of equal workload.
        kind: strong or weak.
        excluded: Reason -> runs that were not selected.
        level: Nominal coverage of intervals.
        space: Space file for commands; None: there are none.
    """
    study = as_text(measured, "study")
    stages = sorted(set(texts(measured, "stage")) - {""})
    run = Rerun(space=space, study=study or "study", stage=", ".join(stages) or None)
    present = cells_of(measured)
    scales = sorted({cell.num_env_runners for cell in present})
    if len(scales) < 2:
        return (_nothing_to_compare(measured, present, excluded, run),)
    found = []
    keys: dict[int, set[str]] = {scale: set() for scale in scales}
    for scale, key in set(zip(measured["num_env_runners"].tolist(), measured["key"].tolist(), strict=True)):
        if isinstance(key, str):
            keys[scale].add(key)
    apart = [scale for scale in scales[1:] if not keys[scales[0]] & keys[scale]]
    if kind == "weak":
        # That a study did not grow its batch is no confound: told once, where there is no weak scaling at all.
        apart = scales[1:2] if sum(map(len, keys.values())) == len(set().union(*keys.values())) else []
    for scale in apart:
        first, second = _most_alike(present, scales[0], scale, kind)
        found.append(_refusal(measured, present, first, second, kind, level=level, run=run))
    if kind == "strong":
        # Only the widest square of a workload is a comparison that anybody would make.
        widest = {_rest(first): (first, second) for first, second in squares(present)}
        found += [_refusal(measured, present, *pair, kind, level=level, run=run) for pair in widest.values()]
    return tuple(found)


def _rest(cell: Cell) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(value)) for name, value in fields(cell.fingerprint).items() if name != BATCH)


def _nothing_to_compare(
    measured: pd.DataFrame, present: tuple[Cell, ...], excluded: Mapping[str, int], run: Rerun
) -> Refusal:
    if not present:
        others = ", ".join(f"{count:,} {reason}" for reason, count in excluded.items()) or "there is none at all"
        reason = f"No run is finished with a measured clock ({others}): nothing is known about the scaling of time."
        return Refusal(first=None, second=None, reason=reason)
    cell = max(present, key=lambda each: each.n)
    other = Cell(
        num_env_runners=2 * cell.num_env_runners,
        train_batch_size=cell.train_batch_size,
        fingerprint=cell.fingerprint,
        n=0,
    )
    runs = "one measured run" if len(measured) == 1 else f"{len(measured)} measured runs"
    reason = (
        f"There is one scale only ({cell.name}; {runs}): efficiency needs two at equal workload. What can be shown is "
        "the time of an iteration and its phases."
    )
    return Refusal(first=cell, second=None, reason=reason, missing=(other,), command=run.command((cell, other)))


def _most_alike(present: Iterable[Cell], small: int, large: int, kind: Kind) -> tuple[Cell, Cell]:
    """Return a cell of each scale whose fingerprints differ in the fewest fields; with more runs on a tie."""
    growing = (BATCH,) if kind == "weak" else ()
    ones, others = (
        sorted((cell for cell in present if cell.num_env_runners == scale), key=lambda cell: -cell.n)[:MOST_COMPARED]
        for scale in (small, large)
    )

    def distance(pair: tuple[Cell, Cell]) -> tuple[int, int, int]:
        names = [name for name in differing(pair[0].fingerprint, pair[1].fingerprint) if name not in growing]
        return sum(name not in SETTINGS for name in names), len(names), -min(pair[0].n, pair[1].n)

    return min(product(ones, others), key=distance)


def _refusal(
    measured: pd.DataFrame,
    present: tuple[Cell, ...],
    first: Cell,
    second: Cell,
    kind: Kind,
    *,
    level: float,
    run: Rerun,
) -> Refusal:
    difference = differing(first.fingerprint, second.fingerprint)
    start = f"{first.name} against {second.name}{_listed(difference)}."
    foreign = [name for name in difference if name not in SETTINGS]
    if foreign:
        alike = "with one engine, on" if ENGINE in foreign else "on"
        reason = (
            f"{start} {_names(foreign)} cannot be told from the effect of the runners: run both scales {alike} the "
            "same hardware, with the same code and versions."
        )
        return Refusal(first=first, second=second, reason=reason)
    if kind == "weak":
        return _weak_refusal(first, second, start, run)
    missing = missing_cells(present, first, second)
    if missing:
        lacking = " and ".join(f"{cell.runners} at {_workload(cell, difference)}" for cell in missing)
        reason = f"{start} The effect of the runners cannot be told from the workload's without {lacking}."
        command = run.command((first, second))
        return Refusal(first=first, second=second, reason=reason, missing=missing, command=command)
    split = decompose(measured, first, second, level=level)
    return Refusal(
        first=first,
        second=second,
        reason=f"{start} Their ratio is not the effect of the runners alone, so it is no efficiency.",
        decomposition=split,
    )


def _weak_refusal(first: Cell, second: Cell, start: str, run: Rerun) -> Refusal:
    """Refuse where no batch grew in proportion: name the cell that would be the partner of the first."""
    if first.train_batch_size is None:
        reason = f"{start} The batch is not known."
        return Refusal(first=first, second=second, reason=reason)
    batch = round(first.train_batch_size * second.num_env_runners / first.num_env_runners)
    partner = Cell(
        num_env_runners=second.num_env_runners,
        train_batch_size=batch,
        fingerprint=replaced(first.fingerprint, (), {BATCH: batch}),
        n=0,
    )
    reason = (
        f"{start} In weak scaling the batch grows with the runners and nothing else does; the partner of {first.name} "
        f"is {partner.name}."
    )
    return Refusal(
        first=first,
        second=second,
        reason=reason,
        missing=(partner,),
        command=run.command((partner,)),
    )


def _listed(difference: Mapping[str, tuple[Any, Any]]) -> str:
    pairs = [f"{in_words(name)} ({text_of(one)} against {text_of(two)})" for name, (one, two) in difference.items()]
    return f": besides the runners they differ in {'; '.join(pairs)}" if pairs else ""


def _names(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return f"{text[:1].upper()}{text[1:]}"


def _workload(cell: Cell, difference: Iterable[str]) -> str:
    content = fields(cell.fingerprint)
    return ", ".join(f"{in_words(name)} {text_of(content.get(name, ABSENT))}" for name in difference)


def _axes(content: Mapping[str, Any], scales: Sequence[int]) -> dict[str, Any]:
    """Return the grid of one workload."""
    given = {_NAMES[field]: content[field] for field in SETTINGS if content.get(field) is not None}
    return {SCALE: scales} | {name: value for name, value in given.items() if name in AXES}


def _grid(contents: Sequence[Mapping[str, Any]], scales: Sequence[int]) -> list[str]:
    """Return what makes a search one of these workloads alone: all parameters, as what else it tunes would vary too."""
    traits = ALGORITHMS.get(str(contents[0].get("algorithm"))) if contents else None
    parameters: dict[str, Any] = {SCALE: scales}
    for field, name in _NAMES.items():
        values = list(dict.fromkeys(content[field] for content in contents if content.get(field) is not None))
        if values and (traits is None or name in traits.parameters):
            parameters[name] = values[0] if len(values) == 1 else values
    return [
        f"parameters={_json(parameters)}",
        "search.sampler=grid",
        "search.num_trials=null",
        "search.baselines=[]",
    ]


def _json(value: Mapping[str, Any]) -> str:
    """Return a mapping as YAML understands it, on one line."""
    return orjson.dumps(value).decode()
