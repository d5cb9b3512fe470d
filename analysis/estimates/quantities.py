"""Every quantity of the frame of estimates, `quantities.csv`. Pure; every output uses these names."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType


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


with Path(__file__).with_suffix(".csv").open(newline="") as _file:
    _ALL = [Quantity(**row) for row in csv.DictReader(_file)]
QUANTITIES: Mapping[str, Quantity] = MappingProxyType({each.name: each for each in _ALL})
"""Name -> quantity, in the order of a report."""
