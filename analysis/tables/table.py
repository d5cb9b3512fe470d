"""The one value that every table is: numbers with intervals, and what must be said with them.

A table never computes: it takes results, checks that they can be printed honestly, and hands itself to the writers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pandas as pd

from analysis.scaling.blocks import in_frame
from analysis.tables import writers
from analysis.tables.cells import SUFFIXES, Body, TableColumn, cell
from study.statistics import Estimate

MOST_ROWS = 300
"""Maximum rows rendered; the CSV has all."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Table:
    """A table with everything that must be read with it.

    Every column of the frame is declared; both ends of an interval are there or neither; a table without rows says why
    in its conclusion.
    """

    key: str
    """Such as `T2`."""
    title: str
    frame: pd.DataFrame
    columns: tuple[TableColumn, ...]
    definitions: tuple[str, ...] = ()
    n: int = 0
    """Runs that the rows rest on."""
    n_failed: int = 0
    excluded: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Reason -> runs that were left out for it, the failed ones apart."""
    conclusion: str
    """One plain sentence with its interval, or why there is none."""
    command: str = ""
    """What to run for a table with rows; empty where it has some, or where no command of this project helps."""
    notes: tuple[str, ...] = ()
    engine: str = ""
    """Of the runs, see `study.engine`; empty where the rows are of no run."""
    first: tuple[str, ...] = ()
    """Columns that people see first, after the one that names the row; the CSV keeps the order of the frame."""
    most_rows: int = MOST_ROWS
    """Rows that people are shown."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show but the reason."""
        return self.frame.empty

    @property
    def heading(self) -> str:
        """The title as it stands above the table, after its number if the key is one: `T2` is, and not `prices`."""
        return f"{self.key}. {self.title}" if self.key[0].isupper() else self.title

    @property
    def said(self) -> str:
        """The conclusion as it stands where nothing else names the engine and the command."""
        if self.empty:
            return with_command(self.conclusion, self.command)
        return f"Engine {self.engine}: {self.conclusion}" if self.engine else self.conclusion

    @property
    def counts(self) -> str:
        """What the table rests on and what it leaves out, in one sentence."""
        runs = "1 run" if self.n == 1 else f"{self.n:,} runs"
        left_out = ", ".join(f"{count:,} ({reason})" for reason, count in self.excluded.items() if count)
        return f"n = {runs}, {self.n_failed:,} failed; left out: {left_out or 'none'}."

    @property
    def more_rows(self) -> str:
        """A sentence on the rows that people are not shown; empty where they see all."""
        more = len(self.frame) - self.most_rows
        return f"… and {more:,} more rows; the CSV has all of them." if more > 0 else ""

    def body(self) -> Body:
        """Return what people see: the columns that differ between rows, those that answer first, and the rest apart."""
        name, *others = self.columns
        order = [name, *sorted(others, key=lambda column: self._place(column.name))]
        records = self.frame.head(self.most_rows).to_dict("records")
        cells = [[cell(column, row) for column in order] for row in records]
        same = [len(cells) > 1 and len({row[at].text for row in cells}) == 1 for at in range(len(order))]
        same = [each and column.name != name.name and column.name not in self.first
                for each, column in zip(same, order, strict=True)]  # fmt: skip
        kept = [at for at, each in enumerate(same) if not each]
        return Body(
            columns=tuple(order[at] for at in kept),
            rows=[[row[at] for at in kept] for row in cells],
            constant=tuple((order[at], cells[0][at]) for at, each in enumerate(same) if each),
        )

    def _place(self, name: str) -> int:
        return self.first.index(name) if name in self.first else len(self.first)

    def select(self, names: Collection[str]) -> "Table":
        """Return the table with some of its columns, those that exist, and without notes and definitions."""
        columns = tuple(column for column in self.columns if column.name in names)
        kept = [name for column in columns for name in column.names if name in self.frame]
        return replace(self, columns=columns, frame=self.frame[kept], notes=(), definitions=(), first=())

    def to_csv(self) -> str:
        """Return all numbers at full precision under `#` lines that say the rest: `pd.read_csv(file, comment="#")`."""
        return writers.to_csv(self)

    def to_markdown(self) -> str:
        """Return the table for people, with conclusion, counts and definitions."""
        return writers.to_markdown(self)

    def to_latex(self) -> str:
        """Return a `table` environment for booktabs and graphicx."""
        return writers.to_latex(self)

    def to_html(self) -> str:
        """Return a `section` with an accessible table: caption, scopes, a region that scrolls by itself."""
        return writers.to_html(self)

    def to_text(self, width: int = 100) -> str:
        """Return the table for a terminal: title, aligned columns, conclusion, every line at most `width` letters."""
        return writers.to_text(self, width)

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        """Show the table in a notebook."""
        return self.to_html()


def estimate_columns(name: str, estimates: Sequence[Estimate | None]) -> dict[str, list[Any]]:
    """Return the frame columns of a column of estimates, see `blocks.in_frame`; None becomes NA."""
    rows = [(None,) * 4 if each is None else in_frame(each) for each in estimates]
    names = (name, *(f"{name}{suffix}" for suffix in SUFFIXES))
    return {column: [row[place] for row in rows] for place, column in enumerate(names)}


def make_frame(columns: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """Return a frame with nullable dtypes: Int64, Float64, boolean or string by what the values are."""
    return pd.DataFrame({name: _series(values) for name, values in columns.items()})


def _series(values: Sequence[Any]) -> "pd.Series[Any]":
    present = [value for value in values if value is not None and value is not pd.NA]
    if all(isinstance(value, bool) for value in present) and present:
        dtype = "boolean"
    elif all(isinstance(value, int) or hasattr(value, "__index__") for value in present) and present:
        dtype = "Int64"
    elif all(isinstance(value, (int, float)) or hasattr(value, "__float__") for value in present):
        dtype = "Float64"
    else:
        dtype, values = "string", [None if value is None or value is pd.NA else str(value) for value in values]
    return pd.Series(list(values), dtype=dtype)


def table_of_values(
    key: str,
    title: str,
    columns: Sequence[TableColumn],
    values: Mapping[str, Sequence[Any]],
    conclusion: str,
    *,
    n: int = 0,
    n_failed: int = 0,
    excluded: Mapping[str, int] = MappingProxyType({}),
    notes: Iterable[str] = (),
    definitions: Sequence[str] = (),
    first: Sequence[str] = (),
) -> Table:
    """Return a table of values that are no pivot of the long frame; a column without any value is left out.

    Args:
        key: Of the table, such as `T9`.
        title: Of the table.
        columns: Its columns, in order.
        values: Column -> one value for each row, an `Estimate` or None in those of estimates.
        conclusion: One sentence.
        n: Runs that the rows rest on.
        n_failed: Failed runs.
        excluded: Reason -> runs that are left out for it.
        notes: Further sentences.
        definitions: What must be known to read it.
        first: Columns that people see first.
    """
    shown = [column for column in columns if any(each is not None for each in values[column.name])]
    frame: dict[str, Any] = {}
    for column in shown:
        own = values[column.name]
        frame |= estimate_columns(column.name, own) if column.estimate else {column.name: own}
    return Table(
        key=key,
        title=title,
        frame=make_frame(frame),
        columns=tuple(shown),
        definitions=tuple(definitions),
        n=n,
        n_failed=n_failed,
        excluded=left_out(excluded),
        conclusion=conclusion,
        notes=tuple(notes),
        first=tuple(first),
    )


def without_rows(
    key: str,
    title: str,
    why: str,
    command: str = "",
    *,
    n_failed: int = 0,
    excluded: Mapping[str, int] = MappingProxyType({}),
    notes: Iterable[str] = (),
) -> Table:
    """Return a table without rows; `why` says what is missing, and `command` is what would make it."""
    return Table(
        key=key,
        title=title,
        frame=pd.DataFrame(),
        columns=(),
        n_failed=n_failed,
        excluded=left_out(excluded),
        conclusion=why,
        command=command,
        notes=tuple(notes),
    )


def with_command(why: str, command: str) -> str:
    """Return why something is missing, and the command that would make it, if one would."""
    return f"{why} Run: {command}" if command else why


FAILED = "failed"
"""Key of the failed runs among the reasons for which runs are left out; tables count them apart."""


def left_out(excluded: Mapping[str, int]) -> dict[str, int]:
    """Return the reasons without that of the failed runs, which each table counts apart."""
    return {reason: count for reason, count in excluded.items() if reason != FAILED}
