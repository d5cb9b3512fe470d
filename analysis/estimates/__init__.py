"""Every estimate of a study as one tidy frame; tables, figures and sentences select from it. Imports no engine."""

import pandas as pd

from analysis.estimates.certificate import certificate_rows
from analysis.estimates.frame import DTYPES, QUANTITIES, Basis, Cell, Quantity, Row, frame_of, select
from analysis.estimates.learning import learning_rows, target_rows
from analysis.estimates.predictions import prediction_rows, rows_at
from analysis.estimates.prices import price_rows, prices_of
from analysis.estimates.results import Results
from analysis.estimates.throughput import Names, throughput_rows

__all__ = [
    "DTYPES",
    "QUANTITIES",
    "Basis",
    "Cell",
    "Quantity",
    "Results",
    "Row",
    "frame_of",
    "prediction_of",
    "rows_of_study",
    "select",
]


def rows_of_study(results: Results) -> list[Row]:
    """Return every estimate of a study."""
    names = Names(results.measured)
    rows = [*throughput_rows(results, names), *prediction_rows(results, names)]
    rows += [*price_rows(results, rows, names), *target_rows(results), *learning_rows(results)]
    return [*rows, *certificate_rows(results.data, results.certificate)]


def prediction_of(results: Results, num_env_runners: int) -> pd.DataFrame:
    """Return throughput and prices of a number of runners, as estimates; predicted where nobody ran it.

    Raises:
        AnalysisError: The runs allow no prediction there.
    """
    rows = rows_at(results, Names(results.measured), num_env_runners)
    return frame_of([*rows, *prices_of(rows)], kind=results.data.kind, engine=results.engine)
