"""A table as its writers see it: headings, the cells that people see, and the sentences beside them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pandas as pd

from analysis.tables.numbers import estimate, is_missing, is_number, plain
from study.errors import AnalysisError

MISSING = "-"
"""What stands where a quantity does not exist."""
MOST_ROWS = 300
"""Maximum rows rendered; the CSV has all."""
SUFFIXES = ("_low", "_high", "_n")
"""Of the columns that go with an estimate: the ends of its interval, and the runs behind it where rows differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column, declared.

    An estimate has three columns in the frame, `name`, `name_low` and `name_high` (both ends NA: no interval), and may
    have a fourth, `name_n`, the runs behind it; without it the row's `n` counts.
    """

    name: str
    unit: str
    """`1` for a pure number, empty for text."""
    meaning: str
    digits: int = 3
    """Significant digits that people see; the CSV has all."""
    estimate: bool = False
    label: str = ""
    """What people see in the head; by default the name with spaces."""

    @property
    def heading(self) -> str:
        """The head of the column: label and unit."""
        label = self.label or self.name.replace("_", " ")
        return label if self.unit in ("", "1") else f"{label} ({self.unit})"

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the frame that belong to it."""
        return (self.name, *(f"{self.name}{suffix}" for suffix in SUFFIXES)) if self.estimate else (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a reader sees in one place: the value, and in brackets how well it is known."""

    value: str
    interval: str = ""
    """`[1.90, 1.96]`, `(n=1, no interval)`, or empty for a column that is no estimate."""
    number: bool = False
    """Whether it is aligned as a number."""

    @property
    def text(self) -> str:
        """Value and interval."""
        return f"{self.value} {self.interval}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table with everything that must be read with it.

    Rules: every column of the frame is declared, every declared one is there (an empty frame needs none), both ends of
    an interval are there or neither, and a table without rows says why in its conclusion.
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
    notes: tuple[str, ...] = ()
    engine: str = ""
    """Of the runs, see `study.engine`; empty where the rows are of no run."""
    first: tuple[str, ...] = ()
    """Columns that people see first, after the one that names the row; the CSV keeps the order of the frame."""
    most_rows: int = MOST_ROWS
    """Rows that people are shown."""

    def __post_init__(self) -> None:
        if faults := [*self._faults()]:
            raise AnalysisError(
                where=f"table {self.key}",
                rule="; ".join(faults),
                fix="Declare the columns that the frame has.",
                code="table-inconsistent",
            )

    def _faults(self) -> Iterable[str]:
        if not self.conclusion.strip():
            yield "a conclusion must be there, got none"
        if not len(self.frame.columns):
            return
        declared = {name for column in self.columns for name in column.names}
        if foreign := [str(name) for name in self.frame.columns if name not in declared]:
            yield f"every column must be declared, got {', '.join(foreign)}"
        for column in self.columns:
            needed = column.names[:3]  # `_n` may be missing
            if missing := [name for name in needed if name not in self.frame]:
                yield f"declared columns must be in the frame, got none of {', '.join(missing)}"
            elif column.estimate and bool((self.frame[needed[1]].isna() != self.frame[needed[2]].isna()).any()):
                yield f"{column.name} must have both ends of its interval or none, got one"

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show but the reason."""
        return self.frame.empty

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

    def body(self) -> "Body":
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The cells of a table as people see them."""

    columns: tuple[TableColumn, ...]
    rows: list[list[Cell]]
    """One cell for each of `columns`."""
    constant: tuple[tuple[TableColumn, Cell], ...]
    """Columns that have one value in all rows: they stand above the table."""

    @property
    def numeric(self) -> list[bool]:
        """Whether each column is aligned as numbers: any of its cells is one."""
        return [any(row[at].number for row in self.rows) for at in range(len(self.columns))]

    @property
    def above(self) -> str:
        """The constant columns in a sentence; empty where there are none."""
        said = [f"{column.heading} {each.text}" for column, each in self.constant if each.value != MISSING]
        return f"The same in every row: {'; '.join(said)}." if said else ""


def cell(column: TableColumn, row: Mapping[Any, Any]) -> Cell:
    """Return one cell; estimates are merged with their interval."""
    value: Any = row.get(column.name)
    if is_missing(value):
        return Cell(value=MISSING, number=column.unit != "")
    if not column.estimate:
        return Cell(value=plain(value, column.digits), number=is_number(value))
    low, high = row.get(f"{column.name}_low"), row.get(f"{column.name}_high")
    shown, interval = estimate(float(value), low, high, digits=column.digits)
    if not interval:
        own = f"{column.name}_n"
        runs: Any = row.get(own, row.get("n"))
        unknown = "(by definition)" if own in row else "(no interval)"
        interval = unknown if is_missing(runs) else f"(n={int(runs)}, no interval)"
    return Cell(value=shown, interval=interval, number=True)
