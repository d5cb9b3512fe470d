"""What env steps cost: hours and CPU-hours for a million of them, and what an hour saved costs. Pure.

CPUs are those reserved, one per process. Where environments wait, processes may share cores: CPU-hours are then what
a cluster would charge, not what was used.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from analysis.estimates.frame import Cell, Row
from analysis.estimates.results import Results
from analysis.estimates.throughput import Names, engine_in
from analysis.scaling.blocks import scaled
from analysis.scaling.results import Scaling
from study.statistics import Estimate

MILLION_STEPS_IN_HOURS = 1_000_000 / 3600


def price_rows(results: Results, rows: Iterable[Row], names: Names) -> Iterator[Row]:
    """Yield the prices of every throughput, measured or predicted, and of every hour that more runners save."""
    yield from prices_of(rows)
    yield from _saved(results.strong, names)


def prices_of(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield hours and CPU-hours for a million steps of every throughput among some rows."""
    for row in rows:
        if row.quantity == "env_steps_per_s":
            hours = hours_of(row.estimate)
            yield replace(row, quantity="hours_per_million_steps", estimate=hours)
            if row.cell.num_cpus is not None:
                yield replace(row, quantity="cpu_hours_per_million_steps", estimate=scaled(hours, row.cell.num_cpus))


def hours_of(rate: Estimate) -> Estimate:
    """Return the hours for a million env steps at a rate in env steps per second; the ends change places."""
    low = MILLION_STEPS_IN_HOURS / rate.high if rate.high > 0 and math.isfinite(rate.high) else -math.inf
    high = MILLION_STEPS_IN_HOURS / rate.low if rate.low > 0 and math.isfinite(rate.low) else math.inf
    return replace(rate, value=MILLION_STEPS_IN_HOURS / rate.value, low=low, high=high)


def _saved(found: Scaling | str, names: Names) -> Iterator[Row]:
    """Yield what an hour saved costs; of several placements of a scale that of the first, or none, as in an answer."""
    for group in found.groups if isinstance(found, Scaling) else ():
        for number, row in enumerate(group.rows):
            if number and group.rows[number - 1].num_env_runners == row.num_env_runners:
                continue
            cpus = None if row.before is None else group.rows[row.before].num_cpus
            if row.gain is None or cpus is None or row.num_cpus is None:
                continue
            if (saved := cpu_hours_per_hour_saved(row.gain, cpus, row.num_cpus)) is not None:
                cell = Cell.of(row, names[group.fingerprint])
                engine = engine_in(group.fingerprint)
                yield Row(cell=cell, quantity="cpu_hours_per_hour_saved", estimate=saved, engine=engine)


def cpu_hours_per_hour_saved(gain: Estimate, cpus_before: int, cpus: int) -> Estimate | None:
    """Return (P2 - P1 r) / (r - 1), r the gain in throughput from P1 to P2 CPUs.

    None where no hour is saved, or with fewer CPUs.

    The same steps take t1 = r t2 hours on P1 and t2 on P2: the CPU-hours P2 t2 - P1 t1 more over the hours t1 - t2
    less. It falls with r, so that the interval is that of r; below 0 both fall. Where r may be 1, its upper end is
    open.
    """
    if gain.value <= 1 or cpus < cpus_before:
        return None

    def price(ratio: float) -> float:
        return (cpus - cpus_before * ratio) / (ratio - 1)

    low = price(gain.high) if math.isfinite(gain.high) and gain.high > 1 else -math.inf
    high = price(gain.low) if gain.low > 1 else math.inf
    return replace(gain, value=price(gain.value), low=low, high=high)
