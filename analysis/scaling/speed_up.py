"""Strong and weak scaling: speed-up and efficiency at equal workload, or a refusal. Imports pandas and pure parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

from analysis.scaling import guard
from analysis.scaling.blocks import Logs, block_means, contrast, exact, exponential, rate_of, ratio_of_totals, scaled
from analysis.scaling.efficiency import efficiency, karp_flatt, karp_flatt_trend, marginal, reading
from analysis.scaling.fingerprint import BATCH, fields, labels, replaced
from analysis.scaling.results import Kind, Scaling, ScalingGroup, ScalingRow
from analysis.scaling.selection import as_int, select
from study.statistics import Estimate

ALONE = "no run of equal workload at another scale"
OVERSTEPPING = 0.01
"""Relative difference of the env steps per iteration from which a note tells it."""


def strong_scaling(runs: pd.DataFrame, *, level: float = 0.95, space: str | None = None) -> Scaling:
    """Return speed-up and efficiency of every workload that ran at several scales with everything else equal.

    Only finished runs whose timing is `measured` enter; the others are counted by reason in `excluded`. A group holds
    runs with equal fingerprints. S(n) = T(n_ref) / T(n), T the seconds per iteration after the warm-up, n_ref the
    smallest scale of the group. Ratios are
    paired by block (runs with the same seed), see `blocks.contrast`; T and X themselves are totals over totals, so
    that their quotient may differ from S in the last digits. Within one group a scale has a row per number of CPUs
    and nodes.

    Args:
        runs: One row per trial (`analysis.load`).
        level: Nominal coverage of the intervals, in (0, 1).
        space: Space file for commands that would run missing cells; None: no commands.

    Returns:
        The groups, largest first; refusals where scales have no workload in common, where the extremes of a complete
        2x2 invite a naive comparison, or where there is nothing to compare.
    """
    return _scaling(runs, "strong", level=level, space=space)


def weak_scaling(runs: pd.DataFrame, *, level: float = 0.95, space: str | None = None) -> Scaling:
    """Return weak efficiency T(n_ref) / T(n) where the batch grows with the runners, steps per runner fixed.

    A group holds runs with equal env steps per runner and equal fingerprints but for the batch. The workload of an
    iteration then grows with n: the learner makes n times the updates. Sampling could stay at weak efficiency 1,
    learning on one learner cannot.

    Args:
        runs: One row per trial (`analysis.load`).
        level: Nominal coverage of the intervals, in (0, 1).
        space: Space file for commands that would run missing cells; None: no commands.
    """
    return _scaling(runs, "weak", level=level, space=space)


def _scaling(
    runs: pd.DataFrame,
    kind: Kind,
    *,
    level: float,
    space: str | None,
) -> Scaling:
    selection = select(runs)
    measured = selection.runs.assign(key=_workloads(selection.runs, kind))
    failed = selection.failed.assign(key=_workloads(selection.failed, kind))
    excluded = dict(selection.excluded)
    scales = measured.groupby("key", sort=False)["num_env_runners"]
    several = measured["key"].map(scales.nunique()) > 1
    if num_alone := int((~several).sum()):
        excluded[ALONE] = num_alone
    inside = measured[several.astype(bool)]
    parts = {str(key): part for key, part in inside.groupby("key", sort=True)}
    names = dict(zip(parts, labels(list(parts)), strict=True)) if parts else {}
    groups = [
        _group(kind, key, names[key], part, failed[failed["key"] == key], level=level) for key, part in parts.items()
    ]
    groups.sort(key=lambda group: (-len(group.rows), -sum(row.n for row in group.rows), group.label))
    return Scaling(
        kind=kind,
        level=level,
        groups=tuple(groups),
        refusals=guard.refusals(measured, kind=kind, excluded=selection.excluded, level=level, space=space),
        excluded=excluded,
        n=len(inside),
        n_failed=selection.n_failed,
    )


def _workloads(runs: pd.DataFrame, kind: Kind) -> "pd.Series[Any]":
    """Return, per run, the JSON text that runs of equal workload share; in weak scaling NA without a batch.

    In strong scaling the fingerprint; in weak scaling that with the env steps per runner in place of the batch.
    """
    fingerprints = runs["fingerprint"].astype(object)
    if kind == "strong" or not len(runs):
        return fingerprints

    @cache
    def key(fingerprint: str, batch: int, scale: int) -> str:
        return replaced(fingerprint, (BATCH,), {"env_steps_per_runner": round(batch / scale, 6)})

    names = [BATCH, "num_env_runners"]
    known = runs[names].notna().all(axis=1)
    result = pd.Series(pd.NA, index=runs.index, dtype=object)
    parts = [fingerprints[known], *(runs.loc[known, name] for name in names)]
    result[known] = [key(str(text), int(b), int(n)) for text, b, n in zip(*parts, strict=True)]
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The runs of one row, with their block means."""

    num_env_runners: int
    num_cpus: int | None
    num_nodes: int | None
    runs: pd.DataFrame
    times: Logs
    rates: Logs


def _scales(part: pd.DataFrame) -> list[_Scale]:
    result = []
    for _, cell in part.groupby(["num_env_runners", "num_cpus", "num_nodes"], dropna=False, sort=True):
        blocks = cell["block"].tolist()
        result.append(
            _Scale(
                num_env_runners=int(cell["num_env_runners"].iloc[0]),
                num_cpus=as_int(cell, "num_cpus"),
                num_nodes=as_int(cell, "num_nodes"),
                runs=cell,
                times=block_means(cell["log_time"], blocks),
                rates=block_means(cell["log_rate"], blocks),
            )
        )
    return result


def _group(
    kind: Kind,
    key: str,
    label: str,
    part: pd.DataFrame,
    failed: pd.DataFrame,
    *,
    level: float,
) -> ScalingGroup:
    scales = _scales(part)
    base = scales[0]
    chosen = base.num_env_runners
    rows = []
    for index, scale in enumerate(scales):
        first_of_scale = not index or scales[index - 1].num_env_runners != scale.num_env_runners
        n_failed = int((failed["num_env_runners"] == scale.num_env_runners).sum()) if first_of_scale else 0
        rows.append(_row(kind, index, scales, n_failed=n_failed, level=level))
    text = ""
    if kind == "strong":
        above = [base, *(scale for scale in scales if scale.num_env_runners > chosen)]
        trend = karp_flatt_trend(
            [scale.times for scale in above], [scale.num_env_runners for scale in above], level=level
        )
        text = reading(
            [(row.num_env_runners, row.karp_flatt) for row in rows if row.karp_flatt is not None],
            trend,
            reference=chosen,
        )
    return ScalingGroup(
        fingerprint=key,
        label=label,
        reference=chosen,
        reference_time_s=next(row.iteration_time_s for row in rows if row.is_reference),
        rows=tuple(rows),
        reading=text,
        notes=_overstepping(kind, rows),
    )


def _before(scales: Sequence[_Scale], scale: _Scale) -> int | None:
    """Return the place of the next smaller scale: of several rows the one with the most similar number of nodes."""

    def nearness(place: int) -> tuple[int, int]:
        other = scales[place]
        return other.num_env_runners, -abs((other.num_nodes or 0) - (scale.num_nodes or 0))

    smaller = (place for place, other in enumerate(scales) if other.num_env_runners < scale.num_env_runners)
    return max(smaller, key=nearness, default=None)


def _row(kind: Kind, index: int, scales: Sequence[_Scale], *, n_failed: int, level: float) -> ScalingRow:
    scale, base, place = scales[index], scales[0], _before(scales, scales[index])
    before = None if place is None else scales[place]
    runs, n = scale.runs, len(scale.runs)
    blocks = runs["block"].tolist()
    steps, seconds = runs["timed_env_steps"].astype(float), runs["timed_s"].astype(float)
    iterations = runs["timed_iterations"].astype(float)
    p = scale.num_env_runners / base.num_env_runners
    speed_up = _speed_up(kind, scale, base, level=level)
    # Environments that wait may share cores: CPUs reserved are then not CPUs used.
    waits = any(fields(str(each)).get("environment.step_wait_ms") for each in runs["fingerprint"].unique())
    cpus = (None, None) if waits else (scale.num_cpus, base.num_cpus)
    return ScalingRow(
        num_env_runners=scale.num_env_runners,
        num_cpus=scale.num_cpus,
        num_nodes=scale.num_nodes,
        n=n,
        n_failed=n_failed,
        train_batch_size=as_int(runs, BATCH),
        env_steps_per_iteration=float(steps.sum() / iterations.sum()),
        env_steps_per_s=rate_of(runs, level=level),
        iteration_time_s=ratio_of_totals(seconds, iterations, blocks, level=level),
        speed_up=speed_up,
        efficiency_n=efficiency(speed_up, resources=scale.num_env_runners, reference=base.num_env_runners),
        efficiency_p=None
        if cpus[0] is None or cpus[1] is None
        else efficiency(speed_up, resources=cpus[0], reference=cpus[1]),
        marginal=None
        if before is None or waits
        else marginal(scale.rates, before.rates, num_cpus=scale.num_cpus, num_cpus_before=before.num_cpus, level=level),
        karp_flatt=karp_flatt(speed_up, p) if kind == "strong" else None,
        gain=None if before is None else exponential(contrast((scale.rates, before.rates), (1.0, -1.0), level=level)),
        before=place,
        is_reference=scale is base,
    )


def _speed_up(kind: Kind, scale: _Scale, base: _Scale, *, level: float) -> Estimate:
    if scale is base:
        return exact(1.0, n=len(scale.runs), level=level)
    ratio = exponential(contrast((base.times, scale.times), (1.0, -1.0), level=level))
    # Weak scaling: the work of an iteration grew with the runners.
    return ratio if kind == "strong" else scaled(ratio, scale.num_env_runners / base.num_env_runners)


def _overstepping(kind: Kind, rows: list[ScalingRow]) -> tuple[str, ...]:
    """Tell where iterations of equal workload did not hold equally many steps (per runner, in weak scaling)."""
    base = next(row for row in rows if row.is_reference)

    def work(row: ScalingRow) -> float:
        return row.env_steps_per_iteration / (row.num_env_runners if kind == "weak" else 1)

    return tuple(
        f"At {row.num_env_runners} runners an iteration held {row.env_steps_per_iteration:,.0f} env steps, "
        f"{work(row) / work(base) - 1:+.1%} against the reference: its time is for that much more or less work."
        for row in rows
        if abs(work(row) / work(base) - 1) > OVERSTEPPING
    )
