"""Values -> columns of their declared types. Imports pandas, no engine; every frame of `analysis.load` is made here."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from analysis.load.columns import Column
from study.errors import RecordError

_ALLOWED = {
    "Int64": frozenset((int, type(None))),
    "Float64": frozenset((int, float, type(None))),
    "string": frozenset((str, type(None))),
    "category": frozenset((str, type(None))),
}
_WANTED = {"Int64": "a whole number", "Float64": "a number", "string": "a text", "category": "a text"}
Values = Sequence[Any] | np.ndarray[Any, Any]
"""A list with None where there is nothing; or an array of reals with NaN there, or of whole numbers with -1 there."""


def frame_of(values: Mapping[str, Values], columns: Mapping[str, Column], *, where: str) -> pd.DataFrame:
    """Return the declared columns, in their order and types.

    Args:
        values: By column; those of `trial` name the rows in messages.
        columns: The declaration.
        where: File or store that the values are from, for messages.

    Raises:
        RecordError: A value is of another type than its column; names place, trial and column.
    """
    rows = values["trial"]
    frame = pd.DataFrame(
        {name: _array(column, values[name], rows, where) for name, column in columns.items()}, copy=False
    )
    assert frame[[name for name, column in columns.items() if column.required]].notna().all(axis=None)
    return frame


def frame_of_lines(lines: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], *, where: str) -> pd.DataFrame:
    """Return the declared columns of one mapping per row; what a row lacks is NA. Arguments and errors: `frame_of`."""
    return frame_of({name: [line.get(name) for line in lines] for name in columns}, columns, where=where)


def _array(column: Column, values: Values, rows: Values, where: str) -> ExtensionArray | pd.Categorical:
    if isinstance(values, np.ndarray):
        return _of_numbers(column, values)
    if not set(map(type, values)) <= _ALLOWED[column.dtype]:
        place = next(at for at, value in enumerate(values) if type(value) not in _ALLOWED[column.dtype])
        raise RecordError(
            where=f"{where}: trial {rows[place]}",
            rule=f"{column.name} must be {_WANTED[column.dtype]}",
            got=f"{values[place]!r}",
            fix="Restore the source from a backup.",
        )
    return pd.Categorical(values) if column.dtype == "category" else pd.array(values, dtype=column.dtype)


def _of_numbers(column: Column, values: np.ndarray[Any, Any]) -> ExtensionArray:
    missing = np.isnan(values) if values.dtype.kind == "f" else values < 0
    filled = np.where(missing, 0, values)
    if column.dtype == "Int64":
        return pd.arrays.IntegerArray(filled.astype(np.int64), missing)
    return pd.arrays.FloatingArray(filled.astype(np.float64), missing)
