"""A ratio of throughputs split into what the scale did and what the workload did. Imports NumPy, pandas, pure parts."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import groupby

import pandas as pd

from analysis.scaling.blocks import block_means, contrast, exponential, rate_of
from analysis.scaling.fingerprint import BATCH, differing, in_words, replaced, text_of
from analysis.scaling.results import Cell, Decomposition
from study.statistics import Estimate

PARTS = (
    (-0.5, 0.5, -0.5, 0.5),  # parallel: mean of the speed-ups at the first and at the second workload
    (-0.5, -0.5, 0.5, 0.5),  # batch: mean of the workload's effects at the first and at the second scale
    (-1.0, 0.0, 0.0, 1.0),  # total
    (1.0, -1.0, -1.0, 1.0),  # interaction
    (-1.0, 1.0, 0.0, 0.0),  # parallel at the first workload
    (0.0, 0.0, -1.0, 1.0),  # parallel at the second workload
)
"""Weights of the logs of (first scale, first workload), (second, first), (first, second), (second, second)."""


def cells_of(measured: pd.DataFrame) -> tuple[Cell, ...]:
    """Return the cells of measured runs (`selection.select`), by scale and batch."""
    if not len(measured):
        return ()
    keys = list(zip(measured["num_env_runners"].tolist(), measured["fingerprint"].tolist(), strict=True))
    counts = Counter(keys)
    batches = dict(zip(keys, measured[BATCH].tolist(), strict=True))
    found = [
        Cell(
            num_env_runners=int(scale),
            train_batch_size=batch if isinstance(batch := batches[scale, text], int) else None,
            fingerprint=text,
            n=count,
        )
        for (scale, text), count in counts.items()
    ]
    return tuple(sorted(found, key=lambda cell: (cell.num_env_runners, cell.train_batch_size or 0, cell.fingerprint)))


def missing_cells(present: Collection[Cell], first: Cell, second: Cell) -> tuple[Cell, ...]:
    """Return the other two cells of the 2x2, of those that have no measured run."""
    wanted = (
        replace(first, num_env_runners=second.num_env_runners, n=0),
        replace(second, num_env_runners=first.num_env_runners, n=0),
    )
    there = {(cell.num_env_runners, cell.fingerprint) for cell in present}
    return tuple(cell for cell in wanted if (cell.num_env_runners, cell.fingerprint) not in there)


def decompose(measured: pd.DataFrame, first: Cell, second: Cell, *, level: float) -> Decomposition:
    """Return the ratio of throughputs of two cells as parallel part times workload part.

    The log ratio ln X(n2, B2) - ln X(n1, B1) can be walked in two orders: scale first, or workload first. Each part is
    the mean of its two values (Shapley), so that the parts add up to the total in any case; they differ by the
    interaction. Intervals are paired by block where the four cells share two blocks, see `blocks.contrast`.

    Args:
        measured: Measured runs (`selection.select`), some in each of the four cells of the 2x2.
        first: n1 runners at workload B1.
        second: n2 runners at workload B2, n2 another number than n1.
        level: Nominal coverage of the intervals, in (0, 1).

    Source:
        Shapley, Contributions to the Theory of Games II (1953), for two players.
    """
    difference = differing(first.fingerprint, second.fingerprint)
    grid = (
        first,
        replace(first, num_env_runners=second.num_env_runners),
        replace(second, num_env_runners=first.num_env_runners),
        second,
    )
    parts = [_runs_of(measured, cell) for cell in grid]
    logs = [block_means(part["log_rate"], part["block"].tolist()) for part in parts]
    parallel, batch, total, interaction, at_first, at_second = (
        contrast(logs, weights, level=level) for weights in PARTS
    )
    result = Decomposition(
        first=replace(first, n=len(parts[0])),
        second=replace(second, n=len(parts[3])),
        factor=" and ".join(map(in_words, difference)),
        values=_values(difference),
        rates=tuple(
            (replace(cell, n=len(part)), rate_of(part, level=level)) for cell, part in zip(grid, parts, strict=True)
        ),
        total=exponential(total),
        parallel=exponential(parallel),
        batch=exponential(batch),
        interaction=exponential(interaction),
        total_log=total,
        parallel_log=parallel,
        batch_log=batch,
        parallel_at_first=exponential(at_first),
        parallel_at_second=exponential(at_second),
    )
    return replace(result, sentence=_sentence(result))


def squares(present: Collection[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Yield the corners (first, second) of every complete n x batch square from the smallest scale and batch.

    For workloads that differ in nothing but the batch, and each scale above the smallest: from the smallest batch at
    the smallest scale to the largest batch that both scales have.
    """
    scales: dict[str, set[int]] = {}
    for cell in present:
        scales.setdefault(cell.fingerprint, set()).add(cell.num_env_runners)
    several = [cell for cell in present if len(scales[cell.fingerprint]) > 1 and cell.train_batch_size is not None]

    def family(cell: Cell) -> str:
        return replaced(cell.fingerprint, (BATCH,))

    for _, members in groupby(sorted(several, key=family), key=family):
        by_scale: dict[int, dict[int, Cell]] = {}
        for cell in members:
            by_scale.setdefault(cell.num_env_runners, {})[cell.train_batch_size or 0] = cell
        reference, *others = sorted(by_scale)
        for scale in others:
            common = sorted(by_scale[reference].keys() & by_scale[scale].keys())
            if len(common) > 1:
                yield by_scale[reference][common[0]], by_scale[scale][common[-1]]


def _runs_of(measured: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    same = (measured["num_env_runners"] == cell.num_env_runners) & (measured["fingerprint"] == cell.fingerprint)
    return measured[same.fillna(False).astype(bool)]


def _values(difference: Mapping[str, tuple[object, object]]) -> tuple[str, str]:
    first, second = (" and ".join(text_of(pair[side]) for pair in difference.values()) for side in (0, 1))
    return first, second


def _sentence(split: Decomposition) -> str:
    scales = f"{split.first.num_env_runners} -> {split.second.num_env_runners}"
    change = f"{split.factor} {split.values[0]} -> {split.values[1]}"
    return (
        f"{split.first.name} to {split.second.name}: {_told(split.total)}x env steps/s, of which the runners "
        f"({scales}) give {_told(split.parallel)}x and the workload ({change}) {_told(split.batch)}x; "
        f"{_n(split.total)}."
    )


def _told(estimate: Estimate) -> str:
    text = f"{estimate.value:.2f}"
    return f"{text} [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else text


def _n(estimate: Estimate) -> str:
    blocks = f"n={estimate.n}"
    return blocks if estimate.has_interval else f"{blocks}, no interval"
