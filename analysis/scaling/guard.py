"""The confound guard: which comparisons are refused, and what can be said instead.

Efficiency compares times of equal work. Where the work changed with the runners, a ratio of throughputs is not the
runners' doing alone. Where all four cells of scale and workload were measured, the ratio is split into what the runners
and what the workload did; else nothing tells how much of it is theirs, and the missing cells are named.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Literal

import pandas as pd

from analysis.fingerprint import ABSENT, BATCH, ENGINE, SETTINGS, differing, fields, in_words, text_of, without_batch
from analysis.quantity import Row, declare, row
from analysis.scaling.blocks import block_means, blocks, contrast, exponential
from study.statistics import Estimate
from study.text import count

NOT_GROWN = (
    "No two scales ran with equal env steps per runner: in weak scaling the batch grows with the runners, and nothing "
    "else does."
)
SQUARE = {
    "ratio_total": ((-1.0, 0.0, 0.0, 1.0), "both", "Throughput of the second cell over that of the first."),
    "ratio_runners": ((-0.5, 0.5, -0.5, 0.5), "runners", "What the runners did, averaged over both workloads."),
    "ratio_workload": ((-0.5, -0.5, 0.5, 0.5), "workload", "What the workload did, averaged over both scales."),
}
"""Quantity -> weights of the logs of (first scale, first workload), (second, first), (first, second), (second, second),
its label and its definition."""
for _name, (_, _label, _definition) in SQUARE.items():
    declare("square", _name, "1", _label, _definition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Measured runs of one workload at one scale; `n` counts their blocks, 0 for a cell that nobody has run."""

    num_env_runners: int
    train_batch_size: int | None
    fingerprint: str
    n: int

    @property
    def runners(self) -> str:
        """In words, such as `16 runners`."""
        return count(self.num_env_runners, "runner")

    @property
    def name(self) -> str:
        """In words, such as `16 runners, batch 2,000`."""
        return self.runners if self.train_batch_size is None else f"{self.runners}, batch {self.train_batch_size:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An efficiency that is not computed, and why.

    Attributes:
        first: Cell of the smaller scale; None where there is nothing to compare.
        second: That of the larger one.
        reason: In a sentence, with the cells without which the effect of the scale cannot be told.
        parts: Quantity of `SQUARE` -> part of the ratio; empty where a cell is missing.
        changed: What changed besides the runners, such as `batch: 2,000 -> 4,000`.
        sentence: The parts in a sentence; empty without them.
    """

    reason: str
    first: Cell | None = None
    second: Cell | None = None
    parts: Mapping[str, Estimate] = field(default_factory=dict)
    changed: str = ""
    sentence: str = ""

    def rows(self) -> Iterator[Row]:
        """Yield the parts as rows of the long frame."""
        if self.first is not None and self.second is not None:
            place = {
                "workload": self.changed,
                "arm": f"{self.first.name} -> {self.second.name}",
                "num_env_runners": self.second.num_env_runners,
                "train_batch_size": self.second.train_batch_size,
            }
            yield from (row(name, estimate, place, base=self.first.name) for name, estimate in self.parts.items())


def refusals(
    measured: pd.DataFrame, *, kind: Literal["strong", "weak"], excluded: Mapping[str, int]
) -> tuple[Refusal, ...]:
    """Return the comparisons between scales that are refused, of selected runs with the column `key` of equal workload.

    Those are all where there are no two scales (in weak scaling: of equal work); in strong scaling a scale that shares
    no workload with the smallest one, told for the most alike cells; and the corners of a complete n x batch square.
    """
    present = cells_of(measured)
    scales = sorted({cell.num_env_runners for cell in present})
    if len(scales) < 2:
        return (_nothing_to_compare(present, excluded),)
    pairs = measured[["num_env_runners", "key"]].dropna()
    keys = {scale: set(pairs.loc[pairs["num_env_runners"] == scale, "key"]) for scale in scales}
    if kind == "weak":
        # That a study did not grow its batch is no confound: told once, where there is no weak scaling at all.
        shared = sum(map(len, keys.values())) > len(set().union(*keys.values()))
        return () if shared else (Refusal(reason=NOT_GROWN),)
    apart = [scale for scale in scales[1:] if not keys[scales[0]] & keys[scale]]
    chosen = [*(_most_alike(present, scales[0], scale) for scale in apart), *squares(present)]
    return tuple(_refusal(measured, present, *pair) for pair in chosen)


def _nothing_to_compare(present: tuple[Cell, ...], excluded: Mapping[str, int]) -> Refusal:
    if not present:
        others = ", ".join(f"{number:,} {reason}" for reason, number in excluded.items()) or "there is none at all"
        return Refusal(
            reason=f"No run is finished with a measured clock ({others}): nothing is known about the scaling of time."
        )
    cell = max(present, key=lambda each: each.n)
    runs = count(sum(each.n for each in present), "measured run")
    reason = f"There is one scale only ({cell.name}; {runs}): efficiency needs two at equal workload. "
    return Refusal(first=cell, reason=f"{reason}What can be shown is the time of an iteration and its phases.")


def _most_alike(present: Iterable[Cell], small: int, large: int) -> tuple[Cell, Cell]:
    """Return a cell of each scale whose fingerprints differ in the fewest fields; with more runs on a tie."""
    ones, others = (
        sorted((cell for cell in present if cell.num_env_runners == scale), key=lambda cell: -cell.n)
        for scale in (small, large)
    )

    def distance(pair: tuple[Cell, Cell]) -> tuple[int, int, int]:
        names = differing(pair[0].fingerprint, pair[1].fingerprint)
        return sum(name not in SETTINGS for name in names), len(names), -min(pair[0].n, pair[1].n)

    return min(product(ones, others), key=distance)


def _refusal(measured: pd.DataFrame, present: tuple[Cell, ...], first: Cell, second: Cell) -> Refusal:
    """Return why two cells are not compared."""
    difference = differing(first.fingerprint, second.fingerprint)
    told = [f"{in_words(name)} ({text_of(one)} against {text_of(two)})" for name, (one, two) in difference.items()]
    start = f"{first.name} against {second.name}: besides the runners they differ in {'; '.join(told)}."
    if foreign := [name for name in difference if name not in SETTINGS]:
        alike = "with one engine, on" if ENGINE in foreign else "on"
        names = ", ".join(foreign)
        reason = (
            f"{start} {names[:1].upper()}{names[1:]} cannot be told from the effect of the runners: run both scales "
            f"{alike} the same hardware, with the same code and versions."
        )
        return Refusal(first=first, second=second, reason=reason)
    there = {(cell.num_env_runners, cell.fingerprint) for cell in present}
    others = (
        replace(first, num_env_runners=second.num_env_runners, n=0),
        replace(second, num_env_runners=first.num_env_runners, n=0),
    )
    if missing := tuple(cell for cell in others if (cell.num_env_runners, cell.fingerprint) not in there):

        def workload(cell: Cell) -> str:
            known = fields(cell.fingerprint)
            return ", ".join(f"{in_words(name)} {text_of(known.get(name, ABSENT))}" for name in difference)

        lacking = " and ".join(f"{cell.runners} at {workload(cell)}" for cell in missing)
        reason = f"{start} The effect of the runners cannot be told from the workload's without {lacking}."
        return Refusal(first=first, second=second, reason=reason)
    reason = f"{start} Their ratio is not the effect of the runners alone, so it is no efficiency."
    before, after = (" and ".join(text_of(pair[side]) for pair in difference.values()) for side in (0, 1))
    changed = f"{' and '.join(map(in_words, difference))}: {before} -> {after}"
    return _decomposed(measured, Refusal(first=first, second=second, reason=reason, changed=changed), first, second)


def cells_of(measured: pd.DataFrame) -> tuple[Cell, ...]:
    """Return the cells of some runs, by scale and batch."""
    if not len(measured):
        return ()
    names = ["num_env_runners", "fingerprint", BATCH]
    seen = measured.astype({"fingerprint": object}).assign(block=blocks(measured)).drop_duplicates([*names, "block"])
    numbers = Counter(zip(*(seen[name].tolist() for name in names), strict=True))
    found = [
        Cell(
            num_env_runners=int(scale),
            train_batch_size=None if pd.isna(batch) else int(batch),
            fingerprint=str(text),
            n=number,
        )
        for (scale, text, batch), number in numbers.items()
    ]
    return tuple(sorted(found, key=lambda cell: (cell.num_env_runners, cell.train_batch_size or 0, cell.fingerprint)))


def squares(present: Collection[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the corners of one complete n x batch square of each family of workloads, where there is one.

    A family differs in nothing but the batch. Its square is that of the smallest scale that shares two batches with
    another, and of the largest such one; it goes from the smallest to the largest of these batches.
    """
    scales = Counter(cell.fingerprint for cell in present)
    families: dict[str, dict[int, dict[int, Cell]]] = {}
    for cell in present:
        if scales[cell.fingerprint] > 1 and cell.train_batch_size is not None:
            family = families.setdefault(without_batch(cell.fingerprint), {})
            family.setdefault(cell.num_env_runners, {})[cell.train_batch_size] = cell
    found = []
    for _, family in sorted(families.items()):
        for small, large in sorted(combinations(sorted(family), 2), key=lambda pair: (pair[0], -pair[1])):
            if len(common := sorted(family[small].keys() & family[large].keys())) > 1:
                found.append((family[small][common[0]], family[large][common[-1]]))
                break
    return found


def _decomposed(measured: pd.DataFrame, refusal: Refusal, first: Cell, second: Cell) -> Refusal:
    """Return the refusal with the ratio of throughputs of its cells as parallel part times workload part.

    The log ratio ln X(n2, B2) - ln X(n1, B1) can be walked scale first or workload first: each part is the mean of its
    two values (Shapley, Contributions to the Theory of Games II, 1953, two players), so that they add up.
    """
    logs = []
    for text in (first.fingerprint, second.fingerprint):
        for scale in (first.num_env_runners, second.num_env_runners):
            same = measured["num_env_runners"].eq(scale) & measured["fingerprint"].eq(text)
            runs = measured[same.fillna(False).astype(bool)]
            logs.append(block_means(runs["log_rate"], runs["block"].tolist()))
    parts = {name: exponential(contrast(logs, weights)) for name, (weights, *_) in SQUARE.items()}

    def told(name: str) -> str:
        part = parts[name]
        return f"{part.value:.2f}" + (f" [{part.low:.2f}, {part.high:.2f}]" if part.has_interval else "") + "x"

    total = parts["ratio_total"]
    sentence = (
        f"{first.name} to {second.name}: {told('ratio_total')} env steps/s, of which the runners "
        f"({first.num_env_runners} -> {second.num_env_runners}) give {told('ratio_runners')} and the workload "
        f"({refusal.changed.replace(': ', ' ', 1)}) {told('ratio_workload')}; n={total.n}"
        f"{'' if total.has_interval else ', no interval'}."
    )
    return replace(refusal, parts=parts, sentence=sentence)
