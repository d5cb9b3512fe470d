"""The columns of a table as they are declared, and its cells as people see them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.tables.numbers import estimate, is_missing, is_number, plain

MISSING = "-"
"""What stands where a quantity does not exist."""
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
        said = [f"{column.heading} = {each.text}" for column, each in self.constant if each.value != MISSING]
        return f"In every row: {', '.join(said)}." if said else ""


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
