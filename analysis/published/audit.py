"""What can and what cannot be concluded from a published table of runners and rates. Imports pandas; no engine.

Every published cell is one run, so nothing here has an interval: the audit asks whether two cells may be compared at
all, and what a constant serial part would have to be.
"""

from importlib import resources
from math import isfinite, nan

import pandas as pd

from analysis.scaling.efficiency import serial_fraction
from analysis.tables.cells import TableColumn
from analysis.tables.table import Table, make_frame
from study.errors import AnalysisError

UNKNOWN_BATCH = "batch not published: cannot be compared"
SAME_WORK = 0.06
"""Batches that differ by less count as equal: whole fragments of each runner round them (4032 to 4224 for 4000)."""
COLUMNS = (
    "claim",
    "source",
    "num_env_runners",
    "num_nodes",
    "hardware",
    "train_batch_size",
    "iterations",
    "env_steps_per_s",
    "sampling_time_s",
    "learning_time_s",
    "total_time_s",
    "final_return",
)


def claims() -> pd.DataFrame:
    """Return the published cells, one row each, in published order; NA where nothing was published.

    `source` names where it stands. Times are seconds, rates env steps per second; `total_time_s` is the time of the
    whole run, `sampling_time_s` and `learning_time_s` those of one iteration.
    """
    with resources.files("analysis.published").joinpath("claims.csv").open() as file:
        return pd.read_csv(file).astype({"num_env_runners": "Int64", "num_nodes": "Int64", "iterations": "Int64"})


def audit(cells: pd.DataFrame, claim: str) -> Table:
    """Return a claim's cells beside its first one: work per iteration, speed-ups, Karp-Flatt, and a verdict on each.

    The batch that a cell really sampled is rate x sampling time where both were published. A speed-up is printed as
    published; where batch or hardware differ from the first cell's, the verdict refuses it, and where a batch was not
    published it says so: what an iteration's work was is then not known.

    Raises:
        AnalysisError: There is no such claim.
    """
    rows = cells[(cells["claim"] == claim) & cells["num_env_runners"].notna()]
    if rows.empty:
        known = ", ".join(dict.fromkeys(cells.loc[cells["num_env_runners"].notna(), "claim"]))
        raise AnalysisError(
            where="claim",
            rule=f"must be one of {known}",
            got=f"{claim!r}",
            fix="Name one of these.",
            code="unknown-claim",
        )
    batch = [_batch(row) for _, row in rows.iterrows()]
    table = {
        "num_env_runners": [int(each) for each in rows["num_env_runners"]],
        "hardware": rows["hardware"].tolist(),
        "batch": batch,
        "env_steps_per_s": rows["env_steps_per_s"].tolist(),
        "total_time_s": rows["total_time_s"].tolist(),
        "speed_up_rate": _ratios(rows["env_steps_per_s"].tolist()),
        "speed_up_time": [1 / each for each in _ratios(rows["total_time_s"].tolist())],
    }
    ratios = [runners / table["num_env_runners"][0] for runners in table["num_env_runners"]]
    used = [_reached(rate, time) for rate, time in zip(table["speed_up_rate"], table["speed_up_time"], strict=True)]
    table["karp_flatt"] = [
        serial_fraction(speed_up, ratio) if ratio > 1 and isfinite(speed_up) and isfinite(steps / batch[0]) else nan
        for speed_up, ratio, steps in zip(used, ratios, batch, strict=True)
    ]
    table["verdict"] = [_verdict(table, ratios, index) for index in range(len(rows))]
    shown = {name: [None if _is_missing(value) else value for value in values] for name, values in table.items()}
    refused, unknown = (
        sum(verdict.startswith(start) for verdict in table["verdict"]) for start in ("refused", UNKNOWN_BATCH)
    )
    return Table(
        key="P",
        title=f"{claim}: {rows['source'].iloc[0]}",
        frame=make_frame(shown),
        columns=_TABLE_COLUMNS,
        definitions=_DEFINITIONS,
        n=len(rows),
        n_failed=0,
        conclusion=_conclusion(len(rows), refused, unknown),
        notes=("Every cell is one run: no interval can be given.",),
    )


def one_number(speed_up: float, p: float, *, what: str = "nodes") -> str:
    """Return what a published speed-up on p times the resources says, without its runs.

    Args:
        speed_up: S, > 0.
        p: How many times the resources, > 1.
        what: The resource, in the plural.

    Raises:
        AnalysisError: `speed_up` or `p` is out of range.
    """
    fraction = serial_fraction(speed_up, p)
    start = f"{speed_up:g}x on {p:g}x the {what}, n=1, no interval: Karp-Flatt fraction {fraction:.3f}."
    if fraction < 0:  # a lower bound: it grants the resources a perfect speed-up
        rest = f"at least {speed_up / p:.2f}x is not the {what}"
        return f"{start} It is negative: the {what} can give {p:g}x at most, so {rest}."
    if fraction == 0:
        return f"{start} Ideal; one pair of runs cannot tell it from a little less or more."
    return f"{start} If it stayed constant, no number of {what} would give more than {1 / fraction:.1f}x."


def learner_ceiling(cells: pd.DataFrame, claim: str) -> float:
    """Return the most that any number of runners can speed a claim's first cell up: iteration over learning time.

    Raises:
        AnalysisError: The claim does not exist, or its times of sampling and learning were not published.
    """
    rows = cells[cells["claim"] == claim]
    if rows.empty or rows[["sampling_time_s", "learning_time_s"]].iloc[0].isna().any():
        rule = "must have published times of sampling and learning"
        raise AnalysisError(
            where=f"claim {claim!r}", rule=rule, got="none", fix="Name another claim.", code="claim-without-phases"
        )
    first = rows.iloc[0]
    return float((first["sampling_time_s"] + first["learning_time_s"]) / first["learning_time_s"])


_TABLE_COLUMNS = (
    TableColumn(name="num_env_runners", unit="1", meaning="Runners of the cell."),
    TableColumn(name="hardware", unit="", meaning="Where it ran, as far as published."),
    TableColumn(name="batch", unit="env steps", meaning="Steps of an iteration: published, or rate x sampling time."),
    TableColumn(name="env_steps_per_s", unit="env steps/s", meaning="As published.", digits=4),
    TableColumn(name="total_time_s", unit="s", meaning="Time of the whole run, as published.", digits=4),
    TableColumn(name="speed_up_rate", unit="1", meaning="Rate over that of the first cell."),
    TableColumn(name="speed_up_time", unit="1", meaning="Total time of the first cell over this one's."),
    TableColumn(name="karp_flatt", unit="1", meaning="Serial share that would explain the speed-up."),
    TableColumn(name="verdict", unit="", meaning="Whether the cell may be compared with the first one."),
)
_DEFINITIONS = (
    "Karp-Flatt e = (1/S - 1/p) / (1 - 1/p), p = runners over those of the first cell, S by rate where published, else "
    "by time; negative says that the comparison is invalid, above 1 that the cell is slower than the first one.",
)


def _batch(row: "pd.Series[float]") -> float:
    if not _is_missing(row["train_batch_size"]):
        return float(row["train_batch_size"])
    return float(row["env_steps_per_s"] * row["sampling_time_s"])


def _ratios(values: list[float]) -> list[float]:
    return [value / values[0] for value in values]


def _reached(rate: float, time: float) -> float:
    return rate if isfinite(rate) else time


def _verdict(table: dict[str, list[float]], ratios: list[float], index: int) -> str:
    if index == 0:
        return "reference"
    batch, first = table["batch"][index], table["batch"][0]
    if abs(batch / first - 1) > SAME_WORK:
        return f"refused: {batch:,.0f} steps an iteration against {first:,.0f}"
    if table["hardware"][index] != table["hardware"][0]:
        return f"refused: {table['hardware'][index]} against {table['hardware'][0]}"
    if not isfinite(batch / first):
        return UNKNOWN_BATCH
    rate, time = table["speed_up_rate"][index], table["speed_up_time"][index]
    verdict = f"{_reached(rate, time):.2f}x for {ratios[index]:g}x the runners"
    if isfinite(rate) and isfinite(time):
        verdict += f" in sampling, {time:.2f}x in the whole run"
    return verdict


def _conclusion(num_cells: int, refused: int, unknown: int) -> str:
    def counted(count: int) -> str:
        return "The comparison" if num_cells == 2 else f"{count} of {num_cells - 1} comparisons"

    told = [f"{counted(refused)} {'is' if refused == 1 else 'are'} refused: more than the runners changed."]
    told += [f"{counted(unknown)} cannot be made: the batch was not published."]
    said = [sentence for sentence, count in zip(told, (refused, unknown), strict=True) if count]
    return " ".join(said) or "Batch and hardware are equal as far as published; what is left is one run a cell."


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and not isfinite(value))
