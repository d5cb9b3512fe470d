"""The long frame: one row per estimate of a study, its columns, and how to select. Tables, figures and sentences do."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from analysis.quantity import QUANTITIES, Row, unknown
from analysis.scaling.blocks import BY_DEFINITION, in_frame
from study.statistics import Estimate

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
_USUAL: Row = {
    "workload": "",
    "arm": "",
    "basis": "measured",
    "n_censored": 0,
    "base": "",
    "fingerprint": "",
}


def frame_of(rows: Iterable[Row], *, kind: str, engine: str) -> pd.DataFrame:
    """Return the frame of all estimates: quantities in the order of `QUANTITIES`, each in the order of its rows."""
    place = {name: number for number, name in enumerate(QUANTITIES)}
    ordered = sorted(rows, key=lambda row: place[row["quantity"]])
    columns: dict[str, list[Any]] = {name: [] for name in DTYPES}
    for row in ordered:
        value, low, high, n = in_frame(row["estimate"])
        numbers = {"value": value, "low": low, "high": high, "n": n, "kind": kind}
        numbers |= {"level": row["estimate"].level, "method": row["estimate"].method}
        whole = {**_USUAL, **row, **numbers, "engine": row.get("engine") or engine}
        for name, values in columns.items():
            values.append(whole.get(name))
    return with_units(pd.DataFrame(columns, dtype=object).astype(dict(DTYPES)))


def with_units(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with the unit of each of its quantities in `attrs["units"]`."""
    frame.attrs["units"] = {name: QUANTITIES[name].unit for name in frame["quantity"].unique()}
    return frame


def estimate_of(row: Any) -> Estimate:
    """Return the estimate of a row of the frame; what holds by definition has an interval of width 0 and n = 1."""
    exact = row["method"] == BY_DEFINITION
    low, high = (row["value"] if exact else end if pd.isna(row[name]) else row[name] for name, end in _OPEN)
    n = 1 if pd.isna(row["n"]) else int(row["n"])
    ends = {"low": float(low), "high": float(high)}
    return Estimate(value=float(row["value"]), **ends, n=n, level=float(row["level"]), method=str(row["method"]))


_OPEN = (("low", -np.inf), ("high", np.inf))


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
            raise unknown("quantity", name, {each.name: each.label for each in QUANTITIES.values()})
    kept = frame if quantity is None else frame[frame["quantity"].isin(names)]
    for column, wanted in selection.items():
        if column not in DTYPES:
            raise unknown("column", column, {name: "" for name in DTYPES})
        several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
        kept = kept[kept[column].isin([*wanted] if several else [wanted])]
    return with_units(kept.reset_index(drop=True))
