"""Where an iteration's time goes. Imports NumPy, pandas and pure parts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.scaling.blocks import Block, ratio_of_totals, transformed
from analysis.scaling.fingerprint import labels
from analysis.scaling.results import PhaseRow, Phases
from analysis.scaling.selection import as_int, select
from study.statistics import Estimate, FloatArray

PHASES = ("runners", "imbalance", "transfer", "learning", "sync", "rest")
"""Mean runner sampling; waiting for the slowest runner; from its end until its samples were there; learning; weights to
the runners; the rest. They add up to the iteration."""
TIMES = (
    "iteration_time_s",
    "sampling_time_s",
    "slowest_runner_time_s",
    "mean_runner_time_s",
    "learning_time_s",
    "sync_time_s",
)
CELL = ["text", "num_env_runners"]
MOST_CELLS = 500
"""More rows than that are no table: the cells with the most runs are kept, the other runs counted."""
BEYOND = f"beyond the {MOST_CELLS} cells with the most runs"
NO_PHASES = "no phase times"
PLACED_WIDER = "on more CPUs or nodes than others of their number of runners"
STRAGGLING = 2.0
"""Slowest runner's time over the mean runner's from which a hold-up study's diagnosis speaks of a straggler."""


def phases(runs: pd.DataFrame, *, level: float = 0.95) -> Phases:
    """Return, per workload and scale, the phases of an iteration.

    Of several placements of a scale only the runs on the fewest CPUs and nodes enter: transfers differ between them.

    Seconds are totals over totals: each run counts with its timed iterations. The rest is the iteration less sampling,
    learning and synchronisation: what no clock saw.

    Args:
        runs: One row per trial (`analysis.load`).
        level: Nominal coverage of the intervals, in (0, 1).
    """
    selection = select(runs)
    complete = selection.runs[list(TIMES)].notna().all(axis=1).to_numpy(dtype=bool)
    excluded = dict(selection.excluded)
    if not complete.all():
        excluded[NO_PHASES] = int((~complete).sum())
    kept = selection.runs[complete]
    kept = kept.assign(text=kept["fingerprint"].astype(object))
    for reason, choose in ((PLACED_WIDER, _on_fewest), (BEYOND, _largest_cells)):
        before, kept = len(kept), choose(kept)
        if len(kept) < before:
            excluded[reason] = before - len(kept)
    grouped = kept.groupby(CELL, sort=True)
    parts = [(str(part["text"].iloc[0]), int(part["num_env_runners"].iloc[0]), part) for _, part in grouped]
    texts = sorted({text for text, *_ in parts})
    names = dict(zip(texts, labels(texts), strict=True)) if texts else {}
    failed = Counter(
        zip(selection.failed["fingerprint"].tolist(), selection.failed["num_env_runners"].tolist(), strict=True)
    )
    rows = [_row(text, scale, names[text], part, failed[text, scale], level) for text, scale, part in parts]
    return Phases(rows=tuple(rows), excluded=excluded, n=len(kept), n_failed=selection.n_failed)


def stragglers(table: Phases) -> Iterator[tuple[PhaseRow, Estimate]]:
    """Yield, with that ratio, the cells whose slowest runner surely takes over `STRAGGLING` times the mean one's time.

    Surely: the lower end of the interval is above the limit; without an interval the value is.
    """
    for row in table.rows:
        ratio = transformed(row.load_balance, lambda value: 1 / value)
        if (ratio.low if ratio.has_interval else ratio.value) > STRAGGLING:
            yield row, ratio


def _on_fewest(runs: pd.DataFrame) -> pd.DataFrame:
    """Return of each cell the runs on the fewest CPUs, of these the ones on the fewest nodes; unknown is most."""
    for name in ("num_cpus", "num_nodes"):
        least = runs.groupby(CELL)[name].transform("min")
        runs = runs[runs[name].eq(least).fillna(False) | least.isna()]
    return runs


def _largest_cells(runs: pd.DataFrame) -> pd.DataFrame:
    sizes = runs.groupby(CELL).size().sort_values(ascending=False, kind="stable")
    if len(sizes) <= MOST_CELLS:
        return runs
    return runs[pd.MultiIndex.from_frame(runs[CELL]).isin(sizes.index[:MOST_CELLS])]


def _row(text: str, scale: int, label: str, part: pd.DataFrame, n_failed: int, level: float) -> PhaseRow:
    counts = part["timed_iterations"].to_numpy(dtype=np.float64)
    blocks: list[Block] = part["block"].tolist()
    totals = {name: part[name].to_numpy(dtype=np.float64) * counts for name in TIMES}
    iteration, sampling = totals["iteration_time_s"], totals["sampling_time_s"]
    slowest, mean = totals["slowest_runner_time_s"], totals["mean_runner_time_s"]
    clocked = sampling + totals["learning_time_s"] + totals["sync_time_s"]
    by_phase = dict(
        zip(
            PHASES,
            (
                mean,
                slowest - mean,
                sampling - slowest,
                totals["learning_time_s"],
                totals["sync_time_s"],
                iteration - clocked,
            ),
            strict=True,
        )
    )

    def over(above: FloatArray, below: FloatArray) -> Estimate:
        return ratio_of_totals(above, below, blocks, level=level)

    seconds = {name: over(total, counts) for name, total in (by_phase | {"iteration": iteration}).items()}
    return PhaseRow(
        num_env_runners=scale,
        num_cpus=as_int(part, "num_cpus"),
        train_batch_size=as_int(part, "train_batch_size"),
        fingerprint=text,
        label=label,
        n=len(part),
        n_failed=n_failed,
        seconds=seconds,
        shares={name: over(total, iteration) for name, total in by_phase.items()},
        unexplained=float(np.median(np.abs(iteration - clocked) / iteration)),
        load_balance=_at_most_one(over(mean, slowest)),
        sampling=_at_most_one(over(sampling, iteration)),
    )


def _at_most_one(estimate: Estimate) -> Estimate:
    """Cut the interval of a share at 1, which it cannot pass; the value stays as measured."""
    if not estimate.has_interval or estimate.high <= 1:
        return estimate
    return replace(estimate, high=max(1.0, estimate.value))
