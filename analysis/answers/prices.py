"""The price list: what a million steps cost with each number of runners, measured or predicted. No engine.

Only measured clocks have prices; a model speaks up to twice the largest measured scale.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from analysis import models
from analysis.estimates.results import Results, attempt
from analysis.models.observations import Cells
from analysis.scaling.results import Scaling, ScalingGroup, ScalingRow
from analysis.tables.grid import TableColumn
from analysis.tables.table import Table, estimate_columns, make_frame
from study.statistics import Estimate

MILLION = 1_000_000
SECONDS_PER_HOUR = 3600
MOST_EXTRAPOLATED = 2
"""Times the largest measured scale up to which a prediction is shown."""
MOST_CLOSURE = 0.1
"""Median relative error on its own runs above which the iteration-time model predicts nothing here."""
ASKED = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Scales that are predicted where nobody ran them."""
MOST_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one number of runners costs."""

    num_env_runners: int
    num_cpus: int
    env_steps_per_s: Estimate
    basis: str
    """`measured` or `predicted`."""
    saved: Estimate | None = None
    """CPU-hours that one hour less costs, against the measured row before; None where there is none or no hour is
    saved."""

    @property
    def hours(self) -> Estimate:
        """Hours for a million env steps."""
        return reciprocal(self.env_steps_per_s, MILLION / SECONDS_PER_HOUR)

    @property
    def cpu_hours(self) -> Estimate:
        """CPU-hours for a million env steps."""
        return times(self.hours, self.num_cpus)


def price_list(results: Results, group: ScalingGroup) -> tuple[Price, ...]:
    """Return the prices of one workload: the measured scales, and what the iteration-time model predicts between."""
    known = [row for row in group.rows if row.num_cpus is not None]
    found = [*_measured(known)]
    found += _predicted(results, group, known)
    return tuple(sorted(found, key=lambda each: each.num_env_runners))[:MOST_ROWS]


def main_group(results: Results) -> ScalingGroup | None:
    """Return the workload with most scales; None where no two scales ran equal work with a measured clock."""
    found = results.strong
    return found.groups[0] if isinstance(found, Scaling) and found.groups else None


def prices_table(prices: tuple[Price, ...], *, price_per_cpu_hour: float | None = None, title: str = "") -> Table:
    """Return the price list as a table.

    Args:
        prices: Its rows.
        price_per_cpu_hour: In any currency; without it costs are CPU-hours.
        title: Of the table.
    """
    columns = [
        TableColumn(name="num_env_runners", unit="1", label="runners", meaning="Environment runners."),
        TableColumn(name="num_cpus", unit="1", label="CPUs", meaning="CPUs reserved: one per process."),
        TableColumn(name="env_steps_per_s", unit="1", label="steps/s", meaning="Environment steps per second.",
                    estimate=True),
        TableColumn(name="hours", unit="1", label="hours per million steps", meaning="Hours for a million steps.",
                    estimate=True),
        TableColumn(name="cpu_hours", unit="1", label="CPU-hours per million", meaning="Hours times CPUs.",
                    estimate=True),
    ]  # fmt: skip
    frame = {
        "num_env_runners": [each.num_env_runners for each in prices],
        "num_cpus": [each.num_cpus for each in prices],
        **estimate_columns("env_steps_per_s", [each.env_steps_per_s for each in prices]),
        **estimate_columns("hours", [each.hours for each in prices]),
        **estimate_columns("cpu_hours", [each.cpu_hours for each in prices]),
    }
    if price_per_cpu_hour is not None:
        columns.append(TableColumn(name="cost", unit="1", label="cost per million", estimate=True,
                                   meaning=f"CPU-hours at {price_per_cpu_hour:g} each."))  # fmt: skip
        frame |= estimate_columns("cost", [times(each.cpu_hours, price_per_cpu_hour) for each in prices])
    saved = [each.saved if price_per_cpu_hour is None or each.saved is None else times(each.saved, price_per_cpu_hour)
             for each in prices]  # fmt: skip
    unit = "CPU-hours" if price_per_cpu_hour is None else "cost"
    if any(each is not None for each in saved):
        columns.append(TableColumn(name="saved", unit="1", label=f"one hour saved costs ({unit})", estimate=True,
                                   meaning="What one hour less costs, against the measured row before."))  # fmt: skip
        frame |= estimate_columns("saved", saved)
    columns.append(TableColumn(name="basis", unit="", meaning="How the row is known."))
    frame["basis"] = [each.basis for each in prices]
    return Table(
        key="prices",
        title=title or "What each number of runners costs",
        frame=make_frame(frame),
        columns=tuple(columns),
        n=sum(each.env_steps_per_s.n for each in prices if each.basis == "measured"),
        conclusion="Prices of a million environment steps.",
    )


def _measured(rows: list[ScalingRow]) -> Iterator[Price]:
    before: ScalingRow | None = None
    for row in rows:
        yield Price(
            num_env_runners=row.num_env_runners,
            num_cpus=int(row.num_cpus or 0),
            env_steps_per_s=row.env_steps_per_s,
            basis="measured",
            saved=None if before is None else saved_hour(before, row),
        )
        before = row


def saved_hour(before: ScalingRow, row: ScalingRow) -> Estimate | None:
    """Return the CPU-hours that one hour less costs: (P2 - P1 r) / (r - 1), r being the gain in speed.

    It is below 0 where more runners save CPU-hours too. The interval is that of r, which only falls with it; no
    interval where r may be 1, and nothing where no hour is saved.
    """
    if row.marginal is None or before.num_cpus is None or row.num_cpus is None:
        return None
    grown = row.num_cpus / before.num_cpus
    ratios = [grown**each for each in (row.marginal.value, row.marginal.low, row.marginal.high)]
    if ratios[0] <= 1:
        return None
    cost = [(row.num_cpus - before.num_cpus * r) / (r - 1) if r > 1 else math.inf for r in ratios]
    low, high = (cost[2], cost[1]) if math.isfinite(cost[1]) and math.isfinite(cost[2]) else (-math.inf, math.inf)
    marginal = row.marginal
    return Estimate(value=cost[0], low=low, high=high, n=marginal.n, level=marginal.level, method=marginal.method)


def _predicted(results: Results, group: ScalingGroup, rows: list[ScalingRow]) -> list[Price]:
    """Return what the iteration-time model says of scales that nobody ran, where it describes those that ran."""
    fit = attempt(lambda: results.models.fit)
    if isinstance(fit, str) or fit.closure > MOST_CLOSURE or not rows:
        return []
    cell = results.models.cell
    if int(cell.train_batch_size[0]) != rows[0].train_batch_size:
        return []
    measured = {row.num_env_runners for row in rows}
    least, largest = min(measured), max(measured) * MOST_EXTRAPOLATED
    extra = rows[-1].num_cpus - rows[-1].num_env_runners if rows[-1].num_cpus is not None else 1
    scales = [n for n in dict.fromkeys((*ASKED, largest)) if least < n <= largest and n not in measured]
    if not scales:
        return []
    one = cell.take(np.zeros(len(scales), dtype=np.int64))
    fields = {name: getattr(one, name) for name in one.__slots__} | {"num_env_runners": np.array(scales, dtype=float)}
    found: tuple[models.Prediction, ...] = fit.predict(Cells(**fields))
    return [
        Price(num_env_runners=n, num_cpus=n + extra, env_steps_per_s=each.env_steps_per_s, basis="predicted")
        for n, each in zip(scales, found, strict=True)
    ]


def reciprocal(estimate: Estimate, factor: float) -> Estimate:
    """Return factor / estimate; the ends of the interval change places."""
    low = factor / estimate.high if math.isfinite(estimate.high) and estimate.high > 0 else -math.inf
    high = factor / estimate.low if math.isfinite(estimate.low) and estimate.low > 0 else math.inf
    return Estimate(
        value=factor / estimate.value, low=low, high=high, n=estimate.n, level=estimate.level, method=estimate.method
    )


def times(estimate: Estimate, factor: float) -> Estimate:
    """Return estimate * factor, factor being known exactly and > 0."""
    return Estimate(
        value=estimate.value * factor,
        low=estimate.low * factor,
        high=estimate.high * factor,
        n=estimate.n,
        level=estimate.level,
        method=estimate.method,
    )
