"""The price list: what a million steps cost with each number of runners, measured or predicted. Selects; no engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.estimates import Row
from analysis.scaling.blocks import scaled
from analysis.tables.cells import TableColumn
from analysis.tables.table import Table, estimate_columns, make_frame
from study.statistics import Estimate

MOST_ROWS = 12
PRICES: Mapping[str, str] = {
    "env_steps_per_s": "steps/s",
    "hours_per_million_steps": "hours per million steps",
    "cpu_hours_per_million_steps": "CPU-hours per million steps",
    "cpu_hours_per_hour_saved": "CPU-hours more for each hour saved (negative: fewer)",
}
"""Quantity -> heading of its column."""
BASES: Mapping[str, str] = {
    "measured": "measured",
    "predicted": "predicted",
    "extrapolated": "predicted",
}
"""Basis of a row -> what a reader is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload that a study measured at most scales, with every estimate of it.

    Attributes:
        name: What tells it from others, in words.
        engine: Runner and learner.
        rows: Its estimates.
    """

    name: str
    engine: str
    rows: tuple[Row, ...]

    @property
    def scales(self) -> list[int]:
        """Measured numbers of runners, ascending."""
        return sorted(self.at("speed_up"))

    @property
    def train_batch_size(self) -> int | None:
        """Batch of the speed-ups."""
        return next((row.cell.train_batch_size for row in self.rows if row.quantity == "speed_up"), None)

    def at(self, quantity: str) -> dict[int, Row]:
        """Return number of runners -> estimate of a quantity."""
        return {row.cell.num_env_runners: row for row in self.rows if row.quantity == quantity
                and row.cell.num_env_runners is not None}  # fmt: skip


def main_workload(rows: Iterable[Row]) -> Workload | None:
    """Return the workload with most scales, the first of several; None where no two scales ran equal work."""
    rows = tuple(rows)
    scales: dict[tuple[str, str, int | None], set[int | None]] = {}
    for row in rows:
        if row.quantity == "speed_up":
            key = row.cell.workload, row.engine, row.cell.train_batch_size
            scales.setdefault(key, set()).add(row.cell.num_env_runners)
    if not scales:
        return None
    name, engine, batch = max(scales, key=lambda key: len(scales[key]))
    mine = (row for row in rows if (row.cell.workload, row.engine) == (name, engine))
    return Workload(name=name, engine=engine, rows=tuple(row for row in mine if row.cell.train_batch_size == batch))


def price_list(workload: Workload, price_per_cpu_hour: float | None = None) -> Table:
    """Return what each number of runners costs.

    Args:
        workload: Whose prices.
        price_per_cpu_hour: In any currency; None, or 0: without costs.
    """
    found = {quantity: workload.at(quantity) for quantity in PRICES}
    rates = found["env_steps_per_s"]
    scales = sorted(rates)
    while len(scales) > MOST_ROWS and (more := [n for n in scales if rates[n].basis != "measured"]):
        scales.remove(more[-2] if len(more) > 1 else more[-1])
    columns = [
        TableColumn(name="num_env_runners", unit="1", label="runners", meaning="Environment runners."),
        TableColumn(name="num_cpus", unit="1", label="CPUs", meaning="CPUs reserved: one per process."),
    ]
    frame: dict[str, list[object]] = {
        "num_env_runners": [*scales],
        "num_cpus": [rates[n].cell.num_cpus for n in scales],
    }

    def add(name: str, label: str, meaning: str, values: Sequence[Estimate | None]) -> None:
        if any(each is not None for each in values):
            columns.append(TableColumn(name=name, unit="1", label=label, meaning=meaning, estimate=True))
            frame.update(estimate_columns(name, values))

    for quantity, label in PRICES.items():
        values = [found[quantity][n].estimate if n in found[quantity] else None for n in scales]
        add(quantity, label, MEANINGS[quantity], values)
        if quantity == "cpu_hours_per_million_steps" and price_per_cpu_hour:
            costs = [None if each is None else scaled(each, price_per_cpu_hour) for each in values]
            add("cost", "cost per million", f"CPU-hours at {price_per_cpu_hour:g} each.", costs)
    columns.append(TableColumn(name="basis", unit="", label="known by", meaning="How the row is known."))
    frame["basis"] = [BASES.get(rates[n].basis, rates[n].basis) for n in scales]
    batch = f", batch {workload.train_batch_size:,}" if workload.train_batch_size else ""
    return Table(
        key="prices",
        title=f"What each number of runners costs (engine {workload.engine or 'unknown'}{batch})",
        frame=make_frame(frame),
        columns=tuple(columns),
        n=sum(rates[n].estimate.n for n in scales if rates[n].basis == "measured"),
        conclusion="Prices of a million environment steps.",
        first=("num_cpus", *PRICES),
    )


def target_prices(rows: Iterable[Row], price_per_cpu_hour: float | None = None) -> Table | None:
    """Return what reaching the target costs with each setting whose clock was measured; None where there is none.

    Args:
        rows: Estimates of a study.
        price_per_cpu_hour: In any currency; None, or 0: without costs.
    """
    found: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        if row.quantity in ("time_to_target_s", "cpu_hours_to_target") and row.basis == "measured":
            cell = row.cell
            key = cell.num_env_runners, cell.train_batch_size, cell.arm or cell.workload
            found.setdefault(key, {})[row.quantity] = row
    known = [(key, some) for key, some in found.items() if "time_to_target_s" in some]
    known = sorted(known, key=lambda pair: pair[1]["time_to_target_s"].estimate.value)[:MOST_ROWS]
    if not known:
        return None
    hours = [scaled(some["time_to_target_s"].estimate, 1 / 3600) for _, some in known]
    costs = [some["cpu_hours_to_target"].estimate if len(some) > 1 else None for _, some in known]
    columns = [
        TableColumn(name="num_env_runners", unit="1", label="runners", meaning="Environment runners."),
        TableColumn(name="train_batch_size", unit="1", label="batch", meaning="Env steps per iteration."),
        TableColumn(name="setting", unit="", meaning="What tells this setting from the others."),
        TableColumn(name="hours", unit="1", label="hours to the target", meaning="Training.", estimate=True),
        TableColumn(name="cpu_hours", unit="1", label="CPU-hours to the target", meaning="Reserved.", estimate=True),
    ]
    frame: dict[str, list[object]] = {
        name: [key[place] for key, _ in known] for place, name in enumerate(each.name for each in columns[:3])
    }
    frame |= estimate_columns("hours", hours) | estimate_columns("cpu_hours", costs)
    if price_per_cpu_hour:
        meaning = f"CPU-hours at {price_per_cpu_hour:g} each."
        columns.append(TableColumn(name="cost", unit="1", meaning=meaning, estimate=True))
        frame |= estimate_columns("cost", [each and scaled(each, price_per_cpu_hour) for each in costs])
    return Table(
        key="prices",
        title="What reaching the target costs, the soonest first",
        frame=make_frame(frame),
        columns=tuple(columns),
        n=sum(each.n for each in hours),
        conclusion="Prices of reaching the target, measured.",
        first=("train_batch_size", "setting", "hours", "cpu_hours"),
    )


MEANINGS: Mapping[str, str] = {
    "env_steps_per_s": "Environment steps per second.",
    "hours_per_million_steps": "Hours of training for a million environment steps.",
    "cpu_hours_per_million_steps": "Those hours times the CPUs reserved.",
    "cpu_hours_per_hour_saved": "CPU-hours more over hours less, against the next smaller measured scale.",
}
