"""Does a cell that is run again and again still take the same time? Imports NumPy, SciPy, pandas and pure parts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis.scaling.fingerprint import labels
from analysis.scaling.results import Drift
from analysis.scaling.selection import select, texts
from study.space.cells import BASE_CELL
from study.statistics import Estimate, FloatArray, t_estimate
from study.text import count

MOST_CELLS = 20
LEVEL = 0.95
"""Nominal coverage of the slopes."""


def anchors(runs: pd.DataFrame) -> tuple[Drift, ...]:
    """Return the drift of a throughput study's base cell; elsewhere of the cells that were repeated within a block.

    A straight line through ln T of the cell's runs over their place in the study: the number of measured runs that
    started before, in blocks' worth of runs (a clock would count pauses). The slope has Student's t interval with
    runs - 2 degrees of freedom. It assumes that runs of one cell differ independently; where whole blocks differ at
    random it claims a drift too often, which is the safe side: the machine did change. Ratios are paired by block
    and free of a drift between blocks, absolute times are not.

    Args:
        runs: One row per trial (`analysis.load`).

    Returns:
        One per cell, at most `MOST_CELLS`, those with the most runs first; empty where no cell was repeated. Without a
        slope where one run of the cell was measured.
    """
    measured = select(runs).runs.sort_values(["started", "trial"])
    per_block = len(measured) / max(measured["block"].nunique(), 1)
    measured = measured.assign(
        text=measured["fingerprint"].astype(object), place=np.arange(len(measured)) / max(per_block, 1)
    )
    cell = ["text", "num_env_runners"]
    named = np.asarray(texts(measured, "baseline") == BASE_CELL, dtype=bool)
    repeated = measured.duplicated([*cell, "block"], keep=False).to_numpy(dtype=bool)
    chosen = measured[
        pd.MultiIndex.from_frame(measured[cell]).isin(_cells(measured[named if named.any() else repeated]))
    ]
    parts = [part for _, part in chosen.groupby(cell, sort=True)]
    parts.sort(key=lambda part: -len(part))
    names = labels([str(cell["fingerprint"].iloc[0]) for cell in parts]) if parts else []
    return tuple(_drift(name, cell) for name, cell in zip(names, parts, strict=True))


def _cells(runs: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return the cells with the most runs, as (fingerprint, runners)."""
    sizes = runs.groupby(["text", "num_env_runners"]).size().sort_values(ascending=False, kind="stable")
    return sizes.index[:MOST_CELLS].tolist()


def slope(places: Sequence[float] | FloatArray, values: Sequence[float] | FloatArray, *, level: float) -> Estimate:
    """Return the least-squares slope of `values` over `places` with Student's t interval.

    No interval below three points; `n` counts points.

    Args:
        places: Shape (points,), not all equal.
        values: Shape (points,).
        level: Nominal coverage, in (0, 1).
    """
    n, fit = len(places), stats.linregress(places, values)
    return t_estimate(float(fit.slope), float(fit.stderr) ** 2, n - 2, n=n, level=level, method="least squares")


def _drift(label: str, cell: pd.DataFrame) -> Drift:
    logs, places = (cell[name].to_numpy(dtype=np.float64) for name in ("log_time", "place"))
    estimate = slope(places, logs, level=LEVEL) if len(cell) > 1 else None  # a line needs two points
    drifting = estimate is not None and estimate.has_interval and not estimate.low <= 0 <= estimate.high
    name = f"{label}, {count(int(cell['num_env_runners'].iloc[0]), 'runner')}"
    return Drift(slope=estimate, drifting=drifting, sentence=_sentence(name, len(cell), estimate, drifting))


def _sentence(cell: str, n: int, estimate: Estimate | None, drifting: bool) -> str:
    if estimate is None or not estimate.has_interval:
        return f"{cell}: {count(n, 'run')}, too few to see a drift."
    change = f"{estimate.value:+.1%} [{estimate.low:+.1%}, {estimate.high:+.1%}] per block (n={estimate.n})"
    if drifting:
        return f"{cell}: seconds per iteration drifted by {change}; absolute times of early and late blocks differ."
    return f"{cell}: no drift is shown, {change}."
