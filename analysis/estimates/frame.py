"""The frame of estimates: one row per estimate of a study, its quantities and columns, how to select. Imports pandas.

An estimate is computed once, here; tables pivot this frame, figures draw it and sentences read it.
"""

import csv
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pandas as pd

from analysis.scaling.blocks import in_frame
from analysis.scaling.results import PhaseRow, ScalingRow, TargetRow
from study.errors import AnalysisError
from study.statistics import Estimate
from study.withdrawn import NAMES

Basis = Literal["measured", "predicted", "extrapolated", "emulated"]
"""From runs of these runners; by a model, between measured scales; by a model, beyond them; from emulated runners."""
DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "kind": "string",
        "engine": "string",
        "workload": "string",
        "arm": "string",
        "num_env_runners": "Int64",
        "num_cpus": "Int64",
        "train_batch_size": "Int64",
        "quantity": "string",
        "value": "Float64",
        "low": "Float64",
        "high": "Float64",
        "level": "Float64",
        "n": "Int64",
        "method": "string",
        "basis": "string",
        "num_nodes": "Int64",
        "n_failed": "Int64",
        "n_censored": "Int64",
        "base": "string",
        "fingerprint": "string",
    }
)
"""Columns and types, in order.

`workload`: what tells the comparable runs from others; equal workloads have equal texts. `arm`: the setting in plain
words, where the quantity is of one. `low`, `high`: ends of the interval; both NA where there is none, and infinite
where one end is open. `n`: runs (or blocks, where ratios are paired) behind it; NA for what holds by definition.
`n_failed`: failed runs of the cell, NA where they are not counted by cell. `n_censored`: runs that never reached the
target; above 0 a mean to it is a lower bound. `base`: what a ratio is relative to; empty where it is relative to
nothing. `fingerprint`: workload of the runs, by which studies are compared; empty where they are of several.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What an estimate is about."""

    workload: str = ""
    arm: str = ""
    num_env_runners: int | None = None
    num_cpus: int | None = None
    train_batch_size: int | None = None
    num_nodes: int | None = None

    @classmethod
    def of(cls, row: PhaseRow | ScalingRow | TargetRow, workload: str, arm: str = "") -> "Cell":
        """Return the cell that a result is about."""
        return cls(
            workload=workload,
            arm=arm,
            num_env_runners=row.num_env_runners,
            num_cpus=row.num_cpus,
            train_batch_size=row.train_batch_size,
            num_nodes=getattr(row, "num_nodes", None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One estimate."""

    cell: Cell
    quantity: str
    estimate: Estimate
    basis: Basis = "measured"
    engine: str = ""
    """Of its runs; empty: that of the study."""
    fingerprint: str = ""
    """Workload of its runs (`analysis.load`), by which studies are compared; empty where they are of several."""
    base: str = ""
    """What a ratio is relative to in words, such as `1 runner on 1 node`; empty where it is relative to nothing."""
    n_failed: int | None = None
    """Failed runs of its cell; None where they are not counted by cell."""
    n_censored: int = 0
    """Runs that never reached the target. Above 0 a mean to it is a lower bound: such runs count as at the horizon."""

    def values(self, kind: str, engine: str) -> tuple[Any, ...]:
        """Return the row in the order of `DTYPES`."""
        value, low, high, n = in_frame(self.estimate)
        numbers = (value, low, high, self.estimate.level, n, self.estimate.method, self.basis)
        *place, num_nodes = astuple(self.cell)
        more = num_nodes, self.n_failed, self.n_censored, self.base, self.fingerprint
        return kind, self.engine or engine, *place, self.quantity, *numbers, *more


def rows_of(
    cell: Cell,
    estimates: Mapping[str, Estimate | None],
    *,
    bases: Mapping[str, str] = MappingProxyType({}),
    **more: Any,
) -> Iterator[Row]:
    """Yield a row for each estimate of a cell that exists; `bases`: quantity -> what it is relative to."""
    for quantity, estimate in estimates.items():
        if estimate is not None:
            yield Row(cell=cell, quantity=quantity, estimate=estimate, base=bases.get(quantity, ""), **more)


def frame_of(rows: Iterable[Row], *, kind: str, engine: str) -> pd.DataFrame:
    """Return the frame of all estimates: quantities in the order of `QUANTITIES`, each in the order of its rows."""
    place = {name: number for number, name in enumerate(QUANTITIES)}
    ordered = sorted(rows, key=lambda row: place[row.quantity])
    frame = pd.DataFrame([row.values(kind, engine) for row in ordered], columns=list(DTYPES), dtype=object)
    return with_units(frame.astype(dict(DTYPES)))


def with_units(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with the unit of each of its quantities in `attrs["units"]`."""
    frame.attrs["units"] = {name: QUANTITIES[name].unit for name in frame["quantity"].unique()}
    return frame


def select(frame: pd.DataFrame, quantity: str | Iterable[str] | None = None, **selection: Any) -> pd.DataFrame:
    """Return some rows of a frame of estimates.

    Args:
        frame: As `frame_of` returns it.
        quantity: One quantity or several; None: all.
        selection: Column -> value, or values, such as `num_env_runners=46` or `basis=["measured", "predicted"]`.

    Raises:
        AnalysisError: There is no such quantity or column.
    """
    names = [quantity] if isinstance(quantity, str) else [*(quantity or ())]
    for name in names:
        if name not in QUANTITIES:
            raise unknown("quantity", name, QUANTITIES)
    kept = frame if quantity is None else frame[frame["quantity"].isin(names)]
    for column, wanted in selection.items():
        if column not in DTYPES:
            raise unknown("column", column, DTYPES)
        several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
        kept = kept[kept[column].isin([*wanted] if several else [wanted])]
    return with_units(kept.reset_index(drop=True))


def unknown(what: str, name: object, known: Iterable[str]) -> AnalysisError:
    """Return the error for a name that does not exist, with what was probably meant."""
    if (instead := NAMES.get(f"{what} {name}")) is not None:
        return AnalysisError(where=what, rule="was withdrawn in version 0.13.0", got=f"{name!r}", fix=instead)
    choices = list(known)
    near = [each for each in choices if str(name) and each.startswith(str(name))]
    near += difflib.get_close_matches(str(name), choices, n=1)
    fix = f"Did you mean '{near[0]}'?" if near else f"Choose one of {', '.join(choices)}."
    return AnalysisError(where=what, rule="must be one that exists", got=f"{name!r}", fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What a row of the frame of estimates is an estimate of.

    Attributes:
        name: As in the column `quantity`.
        unit: SI-like unit; `1` for pure numbers.
        label: How people call it.
        definition: One sentence.
    """

    name: str
    unit: str
    label: str
    definition: str


with Path(__file__).with_name("quantities.csv").open(newline="") as _file:
    _ALL = [Quantity(**row) for row in csv.DictReader(_file)]
QUANTITIES: Mapping[str, Quantity] = MappingProxyType({each.name: each for each in _ALL})
"""Name -> quantity, in the order of a report."""
