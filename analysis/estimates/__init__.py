"""Every estimate of a study as one long frame; tables, figures and sentences select from it."""

from analysis.quantity import QUANTITIES, frame_of, select

__all__ = ["QUANTITIES", "frame_of", "select"]
