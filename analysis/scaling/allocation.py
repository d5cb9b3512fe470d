"""Trials against runners: one large trial, or several on the same CPUs? Imports pandas and pure parts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.scaling.blocks import Block, Logs, contrast, exact, exponential, scaled
from analysis.scaling.results import AllocationRow
from analysis.scaling.selection import SIDE_BY_SIDE, as_int, select, texts, trials_side_by_side

INCOMPLETE = "another trial of its block is not measured"
NOT_TOGETHER = "did not run beside the others of its block"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Total:
    """All trials of one cell in one block, side by side."""

    rate: float
    cpus: float


def allocation(runs: pd.DataFrame, *, level: float = 0.95) -> tuple[AllocationRow, ...]:
    """Return total env steps per second of each way to share the CPUs of one large trial.

    Rows are the cells `allocation T x n` of a throughput study: T trials of n runners each, started together. A
    block's total is the sum of the rates of its T trials; it counts only when all T were measured and ran at the same
    time. The rate of a row is the geometric mean of its blocks' totals; ratios are paired by block.

    Env steps of several trials are no faster way to one policy: T trials are T experiments.

    Args:
        runs: One row per trial (`analysis.load`).
        level: Nominal coverage of the intervals, in (0, 1).

    Returns:
        By number of trials; empty where the study has no such cells or none with a complete block.
    """
    ours = runs.loc[np.array([bool(SIDE_BY_SIDE.fullmatch(name)) for name in texts(runs, "baseline")], dtype=bool)]
    if not len(ours):
        return ()
    measured = select(ours, alone=False).runs
    totals: dict[str, dict[Block, _Total]] = {}
    excluded: dict[str, Counter[str]] = {}
    for name, cell in ours.groupby("baseline", sort=False, observed=True):
        good = measured[(measured["baseline"] == name).fillna(False).astype(bool)]
        reasons = Counter(select(cell, alone=False).excluded)
        totals[str(name)] = {}
        for block, together in good.groupby("block"):
            reason = _unfit(together, trials_side_by_side(str(name)))
            if reason:
                reasons[reason] += len(together)
                continue
            cpus = together["num_cpus"].to_numpy(dtype=np.float64, na_value=np.nan)
            totals[str(name)][block] = _Total(rate=float(np.exp(together["log_rate"]).sum()), cpus=float(cpus.sum()))
        excluded[str(name)] = reasons
    order = sorted((name for name in totals if totals[name]), key=trials_side_by_side)
    return tuple(_row(name, totals, order[0], ours, excluded[name], level) for name in order)


def _unfit(together: pd.DataFrame, num_trials: int) -> str:
    """Return why the trials of a block have no total; empty when they have."""
    if len(together) < num_trials:
        return INCOMPLETE
    started, ended = together["started"].max(), together["ended"].min()
    return NOT_TOGETHER if pd.notna(started) and pd.notna(ended) and started >= ended else ""


def _row(
    name: str,
    totals: Mapping[str, Mapping[Block, _Total]],
    reference: str,
    runs: pd.DataFrame,
    excluded: Mapping[str, int],
    level: float,
) -> AllocationRow:
    blocks = totals[name]
    logs: Logs = {block: float(np.log(total.rate)) for block, total in blocks.items()}
    base: Logs = {block: float(np.log(total.rate)) for block, total in totals[reference].items()}
    rate = exponential(contrast((logs,), (1.0,), level=level))
    cpus = {total.cpus for total in blocks.values()}
    cpu = int(cpus.pop()) if len(cpus) == 1 and np.isfinite(next(iter(cpus))) else None
    own = runs[(runs["baseline"] == name).fillna(False).astype(bool)]
    if name == reference:
        relative = exact(1.0, n=len(blocks), level=level)
    else:
        relative = exponential(contrast((logs, base), (1.0, -1.0), level=level))
    return AllocationRow(
        label=name,
        num_trials=trials_side_by_side(name),
        num_env_runners=as_int(own, "num_env_runners") or int(name.rpartition(" ")[2]),
        num_cpus=cpu,
        n=len(blocks),
        n_failed=int((own["status"] == "failed").sum()),
        excluded=dict(sorted(excluded.items())),
        env_steps_per_s=rate,
        env_steps_per_s_per_cpu=None if cpu is None else scaled(rate, 1 / cpu),
        relative=relative,
    )
