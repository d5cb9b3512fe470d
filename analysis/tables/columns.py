"""Columns that several tables have, and the commands that tables recommend. Pure."""

from analysis.tables.cells import TableColumn

FIRST_COMMAND = (
    "python run_study.py --space throughput.yaml (on fewer than 47 CPUs: python run_study.py --space waiting.yaml)"
)
"""What measures a study that has no measured rows of equal workload."""


def count(name: str, label: str, meaning: str) -> TableColumn:
    """Return a column of whole numbers, or of numbers without a unit."""
    return TableColumn(name=name, unit="1", label=label, meaning=meaning)


def estimate(name: str, unit: str, label: str, meaning: str) -> TableColumn:
    """Return a column of estimates with their intervals."""
    return TableColumn(name=name, unit=unit, label=label, meaning=meaning, estimate=True)


def text(name: str, label: str, meaning: str) -> TableColumn:
    """Return a column of words."""
    return TableColumn(name=name, unit="", label=label, meaning=meaning)
