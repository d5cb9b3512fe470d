"""Every estimate of a study as one tidy frame; tables, figures and sentences select from it. Imports no engine."""

import pandas as pd

from analysis.estimates.certificate import certificate_rows
from analysis.estimates.frame import DTYPES, Basis, Cell, Row, frame_of, select
from analysis.estimates.learning import learning_rows, target_rows
from analysis.estimates.quantities import QUANTITIES, Quantity
from analysis.estimates.results import Results
from analysis.estimates.throughput import throughput_rows

__all__ = [
    "DTYPES",
    "QUANTITIES",
    "Basis",
    "Cell",
    "Quantity",
    "Results",
    "Row",
    "estimates_of",
    "frame_of",
    "select",
]


def estimates_of(results: Results) -> pd.DataFrame:
    """Return every estimate of a study, one row each, with the columns of `DTYPES`."""
    rows = [*throughput_rows(results), *target_rows(results), *learning_rows(results.data)]
    rows += certificate_rows(results.data, results.certificate)
    return frame_of(rows, kind=results.data.kind, engine=results.engine)
