"""Figures of a study, drawn with seaborn from the frame of estimates: views, which compute no statistics."""

from analysis.figures.catalogue import all_figures, figure_of
from analysis.figures.figure import Figure, absent
from analysis.figures.trials import Importance, importance

__all__ = ["Figure", "Importance", "absent", "all_figures", "figure_of", "importance"]
