"""Estimates of time and throughput: rates, speed-ups, efficiencies, phases. Imports pandas.

The statistics are those of `analysis.scaling`; this names them by cell and quantity.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd

from analysis.estimates.frame import Cell, Row, rows_of
from analysis.estimates.results import Results
from analysis.scaling.blocks import rate_of, ratio_of_totals
from analysis.scaling.fingerprint import BATCH, ENGINE, fields, labels
from analysis.scaling.phases import MOST_CELLS
from analysis.scaling.results import Phases, Scaling, ScalingRow
from analysis.scaling.selection import as_int
from study.statistics import Estimate
from study.text import count

LEVEL = 0.95
_PLACE = ("fingerprint", "num_env_runners", "num_cpus", "num_nodes")
_SHARES = {
    "share_runners": "runners",
    "share_imbalance": "imbalance",
    "share_transfer": "transfer",
    "share_learn": "learning",
    "share_sync": "sync",
    "share_rest": "rest",
}


class Names:
    """The workloads of a study and what they are called: equal workloads have equal names in every quantity."""

    def __init__(self, runs: pd.DataFrame) -> None:
        """Take one row per measured run."""
        known = sorted({str(each) for each in runs["fingerprint"].unique()})
        self._names = dict(zip(known, labels(known), strict=True)) if known else {}

    def __getitem__(self, fingerprint: str) -> str:
        """Return the name of a workload."""
        return self._names.get(fingerprint) or labels([fingerprint])[0]


@cache
def engine_in(fingerprint: str) -> str:
    """Return the engine that a fingerprint names; empty where it names none."""
    return str(fields(fingerprint).get(ENGINE) or "")


def throughput_rows(results: Results, names: Names) -> Iterator[Row]:
    """Yield every estimate that rests on a measured clock alone."""
    yield from _rates(results.measured, names)
    yield from _strong(results.strong, names)
    yield from _weak(results.weak)
    yield from _phases(results.phases, names)


def _rates(measured: pd.DataFrame, names: Names) -> Iterator[Row]:
    """Yield throughput and iteration time of cells: of workloads at most scales, and of these with most runs."""
    if measured.empty:
        return
    measured = measured.assign(fingerprint=measured["fingerprint"].astype(object))
    scales = measured.groupby("fingerprint")["num_env_runners"].nunique()
    found = measured.groupby(list(_PLACE), dropna=False, sort=True)
    cells = sorted(found, key=lambda cell: (-scales[str(cell[0][0])], -len(cell[1])))[:MOST_CELLS]
    for _, runs in sorted(cells, key=lambda cell: (names[str(cell[0][0])], *(_number(each) for each in cell[0][1:]))):
        text = str(runs["fingerprint"].iloc[0])
        cell = Cell(
            workload=names[text],
            num_env_runners=int(runs["num_env_runners"].iloc[0]),
            num_cpus=as_int(runs, "num_cpus"),
            train_batch_size=as_int(runs, BATCH),
            num_nodes=as_int(runs, "num_nodes"),
        )
        seconds, iterations = (runs[name].astype(float) for name in ("timed_s", "timed_iterations"))
        estimates: dict[str, Estimate | None] = {
            "env_steps_per_s": rate_of(runs, level=LEVEL),
            "iteration_time_s": ratio_of_totals(seconds, iterations, runs["block"].tolist(), level=LEVEL),
        }
        yield from rows_of(cell, estimates, engine=engine_in(text), fingerprint=text)


def _number(value: Any) -> float:
    """Return a number to sort by; what is not known comes last, as in `analysis.scaling`."""
    return math.inf if pd.isna(value) else float(value)


def _strong(found: Scaling | str, names: Names) -> Iterator[Row]:
    for group in found.groups if isinstance(found, Scaling) else ():
        for row in group.rows:
            cell = Cell.of(row, names[group.fingerprint])
            estimates = {
                "speed_up": row.speed_up,
                "efficiency_per_runner": row.efficiency_n,
                "efficiency_per_cpu": row.efficiency_p,
                "marginal_efficiency": row.marginal,
                "karp_flatt": row.karp_flatt,
                "gain": row.gain,
            }
            text, reference = group.fingerprint, next(each for each in group.rows if each.is_reference)
            bases = dict.fromkeys(estimates, _in_words(reference))
            if row.before is not None:
                bases |= dict.fromkeys(("marginal_efficiency", "gain"), _in_words(group.rows[row.before]))
            yield from rows_of(
                cell, estimates, bases=bases, engine=engine_in(text), fingerprint=text, n_failed=row.n_failed
            )


def _in_words(row: ScalingRow) -> str:
    """Return where a row of strong scaling ran, such as `4 runners on 2 nodes`."""
    nodes = "" if row.num_nodes is None else f" on {count(row.num_nodes, 'node')}"
    return f"{count(row.num_env_runners, 'runner')}{nodes}"


def _weak(found: Scaling | str) -> Iterator[Row]:
    for group in found.groups if isinstance(found, Scaling) else ():
        for row in group.rows:
            cell = Cell.of(row, group.label)
            estimates = {
                "weak_speed_up": row.speed_up,
                "weak_efficiency": row.efficiency_n,
                "weak_efficiency_per_cpu": row.efficiency_p,
                "weak_marginal_efficiency": row.marginal,
            }
            yield from rows_of(cell, estimates, engine=engine_in(group.fingerprint), n_failed=row.n_failed)


def _phases(found: Phases | str, names: Names) -> Iterator[Row]:
    for row in found.rows if isinstance(found, Phases) else ():
        cell = Cell.of(row, names[row.fingerprint])
        estimates: dict[str, Estimate | None] = {
            **{f"seconds_{name}": value for name, value in row.seconds.items() if name != "iteration"},
            **{quantity: row.shares[name] for quantity, name in _SHARES.items()},
            "share_sample": row.sampling,
            "load_balance": row.load_balance,
        }
        text = row.fingerprint
        yield from rows_of(cell, estimates, engine=engine_in(text), fingerprint=text, n_failed=row.n_failed)
