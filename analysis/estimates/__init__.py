"""Every estimate of a study as one long frame; tables, figures and sentences select from it."""

from analysis.estimates.frame import DTYPES, frame_of, select
from analysis.quantity import QUANTITIES, Quantity

__all__ = ["DTYPES", "QUANTITIES", "Quantity", "frame_of", "select"]
