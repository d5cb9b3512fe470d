"""Every estimate of a study as one long frame; tables, figures and sentences select from it."""

from analysis.quantity import DTYPES, QUANTITIES, Quantity, frame_of, select

__all__ = ["DTYPES", "QUANTITIES", "Quantity", "frame_of", "select"]
