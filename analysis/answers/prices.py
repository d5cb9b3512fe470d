"""The price list: what a million steps cost with each number of runners, measured or predicted. Selects; no engine."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.estimates import Row
from analysis.scaling.blocks import scaled
from analysis.tables import columns
from analysis.tables.cells import TableColumn
from analysis.tables.table import Layout, Table
from study.statistics import Estimate

MOST_ROWS = 12
PRICES = (
    columns.estimate("env_steps_per_s", "1", "steps/s", "Environment steps per second."),
    columns.estimate(
        "hours_per_million_steps",
        "1",
        "hours per million steps",
        "Hours of training for a million environment steps.",
    ),
    columns.estimate(
        "cpu_hours_per_million_steps",
        "1",
        "CPU-hours per million steps",
        "Those hours times the CPUs reserved.",
    ),
    columns.estimate(
        "cpu_hours_per_hour_saved",
        "1",
        "CPU-hours more for each hour saved (negative: fewer)",
        "CPU-hours more over hours less, against the next smaller measured scale on the nearest number of nodes.",
    ),
)
"""The prices of a million steps; where a CPU-hour has a price, their cost stands before the last one."""


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
        """Return number of runners -> estimate of a quantity; of several placements that on the fewest CPUs and nodes.

        These come first among the rows, and what was measured comes before what is predicted.
        """
        found: dict[int, Row] = {}
        for row in self.rows:
            if row.quantity == quantity and row.cell.num_env_runners is not None:
                found.setdefault(row.cell.num_env_runners, row)
        return found

    @property
    def placed_once(self) -> bool:
        """Whether every scale ran on one number of CPUs and nodes."""
        return sum(row.quantity == "speed_up" for row in self.rows) == len(self.scales)


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
    found = {column.name: workload.at(column.name) for column in PRICES}
    rates = found["env_steps_per_s"]
    scales = sorted(rates)
    while len(scales) > MOST_ROWS and (more := [n for n in scales if rates[n].basis != "measured"]):
        scales.remove(more[-2] if len(more) > 1 else more[-1])
    values: dict[str, list[Any]] = {
        name: [rows[n].estimate if n in rows else None for n in scales] for name, rows in found.items()
    }
    batch = f", batch {workload.train_batch_size:,}" if workload.train_batch_size else ""
    placed = "" if workload.placed_once else "; of several placements the one with the fewest CPUs and nodes"
    layout = Layout(
        key="prices",
        title=f"What each number of runners costs (engine {workload.engine or 'unknown'}{batch}{placed})",
        columns=(
            columns.count("num_env_runners", "runners", "Environment runners."),
            columns.count("num_cpus", "CPUs", "CPUs reserved: one per process."),
            *PRICES[:3],
            *_cost("cost per million", price_per_cpu_hour),
            PRICES[3],
            columns.text("basis", "known by", "How the row is known."),
        ),
        first=("num_cpus", *found),
    )
    return layout.table(
        scales,
        "Prices of a million environment steps.",
        n=sum(rates[n].estimate.n for n in scales if rates[n].basis == "measured"),
        values=values
        | {
            "num_env_runners": scales,
            "num_cpus": [rates[n].cell.num_cpus for n in scales],
            "cost": _costs(values["cpu_hours_per_million_steps"], price_per_cpu_hour),
            "basis": ["measured" if rates[n].basis == "measured" else "predicted" for n in scales],
        },
    )


def _cost(label: str, price_per_cpu_hour: float | None) -> Iterator[TableColumn]:
    if price_per_cpu_hour:
        yield columns.estimate("cost", "1", label, f"CPU-hours at {price_per_cpu_hour:g} each.")


def _costs(cpu_hours: Sequence[Estimate | None], price_per_cpu_hour: float | None) -> list[Estimate | None]:
    return [scaled(each, price_per_cpu_hour) if each and price_per_cpu_hour else None for each in cpu_hours]


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

    def soonest(setting: tuple[object, dict[str, Row]]) -> tuple[bool, float]:
        time = setting[1]["time_to_target_s"]
        return time.n_censored > 0, time.estimate.value

    known = sorted(((key, some) for key, some in found.items() if "time_to_target_s" in some), key=soonest)[:MOST_ROWS]
    if not known:
        return None
    never = [some["time_to_target_s"].n_censored for _, some in known]
    last = "; last those of which runs never got there: at least this much" if any(never) else ""
    hours = [scaled(some["time_to_target_s"].estimate, 1 / 3600) for _, some in known]
    costs = [some["cpu_hours_to_target"].estimate if len(some) > 1 else None for _, some in known]
    layout = Layout(
        key="prices",
        title=f"What reaching the target costs, the soonest first{last}",
        columns=(
            columns.count("num_env_runners", "runners", "Environment runners."),
            columns.count("train_batch_size", "batch", "Env steps per iteration."),
            columns.text("setting", "", "What tells this setting from the others."),
            columns.count("n_censored", "never", "Runs that did not reach the target."),
            columns.estimate("hours", "1", "hours to the target", "Training."),
            columns.estimate("cpu_hours", "1", "CPU-hours to the target", "Reserved."),
            *_cost("", price_per_cpu_hour),
        ),
        first=("train_batch_size", "setting", "n_censored", "hours", "cpu_hours"),
    )
    names = ("num_env_runners", "train_batch_size", "setting")
    return layout.table(
        known,
        "Prices of reaching the target, measured.",
        n=sum(each.n for each in hours),
        values={name: [key[place] for key, _ in known] for place, name in enumerate(names)}
        | {
            "n_censored": never if any(never) else [None] * len(never),
            "hours": hours,
            "cpu_hours": costs,
            "cost": _costs(costs, price_per_cpu_hour),
        },
    )
