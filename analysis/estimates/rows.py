"""The long frame as values, one a row, for sentences that pick single estimates."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.estimates.frame import estimate_of
from study.statistics import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What an estimate is about."""

    workload: str
    arm: str
    num_env_runners: int | None
    num_cpus: int | None
    train_batch_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One estimate, as in the frame."""

    cell: Cell
    quantity: str
    estimate: Estimate
    basis: str
    engine: str
    fingerprint: str
    base: str
    n_censored: int


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """Return the rows of the long frame as values."""
    return [_row(each) for each in frame.to_dict("records")]


def _row(row: Any) -> Row:
    numbers = ("num_env_runners", "num_cpus", "train_batch_size")
    known = {name: None if pd.isna(row[name]) else int(row[name]) for name in numbers}
    return Row(
        cell=Cell(workload=row["workload"], arm=row["arm"], **known),
        estimate=estimate_of(row),
        n_censored=int(row["n_censored"]),
        **{name: row[name] for name in ("quantity", "basis", "engine", "fingerprint", "base")},
    )
