"""Every estimate of a study as one long frame; tables, figures and sentences select from it. Imports no engine."""

from analysis.estimates.frame import DTYPES, frame_of, select
from analysis.estimates.results import Results
from analysis.quantity import QUANTITIES, Quantity

__all__ = ["DTYPES", "QUANTITIES", "Quantity", "Results", "frame_of", "select"]
