"""What makes a table of a study's results, with its engine named. Imports no engine."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Protocol

from analysis.estimates.results import Results
from analysis.load import StudyData

if TYPE_CHECKING:
    from analysis.tables.table import Table

FAILED = "failed"
"""Key of the failed runs among the reasons for which runs are left out; tables count them apart."""


class Maker(Protocol):
    """Makes a table of a study; of its results too, where somebody has them already."""

    def __call__(self, data: StudyData, results: Results | None = None) -> "Table":
        """Return the table."""


def of_engine(make: "Callable[[StudyData, Results], Table]") -> Maker:
    """Return the maker of a table with its results made where nobody has them, and its engine named."""

    @wraps(make)
    def made(data: StudyData, results: Results | None = None) -> "Table":
        results = results or Results(data)
        return make(data, results).of_engine(results.engine)

    return made


def left_out(excluded: Mapping[str, int]) -> dict[str, int]:
    """Return the reasons without that of the failed runs, which each table counts apart."""
    return {reason: count for reason, count in excluded.items() if reason != FAILED}
