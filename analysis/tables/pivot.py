"""A table of the long frame: `pivot(frame, "speed_up efficiency_per_runner")` is one row per place, one column each."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from analysis.quantity import QUANTITIES, Part, estimate_of, select
from analysis.tables.table import SUFFIXES, Table, TableColumn, in_words
from study.statistics import Estimate

PLACE = ("workload", "arm", "num_env_runners", "num_cpus", "num_nodes", "train_batch_size")
"""What a row is about."""
COUNTS = ("n", "n_failed", "n_censored")
KEY = ["fingerprint", *PLACE[2:]]
"""What makes two estimates of measured runs those of one place; workloads are called otherwise in weak scaling."""
ABOUT: Mapping[str, TableColumn] = {
    each.name: each
    for each in (
        TableColumn("workload", "", "workload", "What tells this group of equal work from the others."),
        TableColumn("arm", "", "setting", "The setting in words."),
        TableColumn("num_env_runners", "1", "runners", "Environment runners, n."),
        TableColumn("num_cpus", "1", "CPUs", "CPUs allocated, P: main + n x CPUs per runner + learners."),
        TableColumn("num_nodes", "1", "nodes", "Nodes that held processes of the trial."),
        TableColumn("train_batch_size", "1", "batch", "Env steps per iteration, as asked."),
        TableColumn("n", "1", "runs", "Runs behind the row."),
        TableColumn("n_failed", "1", "failed", "Failed runs of this row."),
        TableColumn("n_censored", "1", "never", "Runs that did not reach the target: its mean is then a lower bound."),
        TableColumn("timing", "", "clocks", "Labels of the runs' clocks."),
        TableColumn("basis", "", "known by", "How the row is known."),
    )
}


def pivot(
    frame: pd.DataFrame, quantities: str, *, key: Sequence[str] = (*KEY, "workload", "arm"), runs: str = ""
) -> pd.DataFrame:
    """Return one row for each place that has the first of some quantities, in the order of the frame.

    The columns are `PLACE`, `COUNTS`, `basis`, `fingerprint`, and for each quantity its name with the value, `_low`,
    `_high` and `_n`. `key` has the columns that make two estimates those of one place; `n` of the quantity `runs`
    counts the runs of a row, else that of the first one.

    Raises:
        AnalysisError: There is no such quantity.
    """
    first, *others = quantities.split()
    found = {name: select(frame, name) for name in dict.fromkeys((first, *others, *([runs] if runs else [])))}
    keys = {name: _keys(rows, key) for name, rows in found.items()}
    columns = ["value", "low", "high", "n"]
    wide = found[first][[*PLACE, *COUNTS, "basis", "fingerprint"]].reset_index(drop=True)
    for name, rows in found.items():
        at = ~keys[name].duplicated()
        own = rows.loc[at, columns].set_axis(keys[name][at]).reindex(keys[first])
        for column, suffix in zip(columns, ("", *SUFFIXES), strict=True):
            wide[f"{name}{suffix}"] = own[column].to_numpy() if own.empty else own[column].array
    if runs:
        wide["n"] = wide[f"{runs}_n"].array
    return wide


def _keys(rows: pd.DataFrame, key: Sequence[str]) -> "pd.Series[Any]":
    return pd.Series(list(zip(*(rows[name].astype(object).fillna("") for name in key), strict=True)), dtype=object)


def table_of_pivot(
    wide: pd.DataFrame,
    key: str,
    title: str,
    columns: str,
    conclusion: str,
    part: Part,
    *,
    labels: Mapping[str, str] = MappingProxyType({}),
    notes: Sequence[str] = (),
    definitions: Sequence[str] = (),
) -> Table:
    """Return a table of a pivot; a column without any value, or with one that says nothing, is left out.

    `columns` are names of `ABOUT` and of quantities, separated by spaces; `labels` says what people call one here.
    """
    shown = []
    for name in columns.split():
        if _silent(wide[name], name):
            continue
        if name in ABOUT:
            unit, label, meaning = ABOUT[name].unit, ABOUT[name].label, ABOUT[name].meaning
        else:
            unit, label, meaning = QUANTITIES[name].unit, QUANTITIES[name].label, QUANTITIES[name].definition
        shown.append(TableColumn(name, unit, labels.get(name, label), meaning, estimate=name not in ABOUT))
    return Table(
        key=key,
        title=title,
        frame=wide[[name for column in shown for name in column.names if name in wide]],
        columns=tuple(shown),
        conclusion=conclusion,
        definitions=tuple(definitions),
        notes=tuple(notes),
        n=part.n,
        n_failed=part.n_failed,
        excluded=part.excluded,
    )


def _silent(values: "pd.Series[Any]", name: str) -> bool:
    known = values.dropna().unique().tolist()
    nothing = {"workload": known[:1], "arm": [""], "num_nodes": [1], "n_censored": [0]}
    return not known or known == nothing.get(name)


def estimate_in(row: Any, name: str) -> Estimate:
    """Return an estimate of a row of a pivot."""
    found = {"value": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"], "n": row[f"{name}_n"]}
    return estimate_of(found | {"level": 0.95, "method": ""})


def told(row: Any, name: str) -> str:
    """Return an estimate of a row of a pivot in words, such as `1.93 [1.90, 1.96]`."""
    return in_words(estimate_in(row, name))
