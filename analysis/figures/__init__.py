"""Figures of a study: an info function, then a drawing function. Views; Matplotlib's objects, never pyplot."""

from analysis.figures.catalogue import Importance, all_figures
from analysis.figures.efficiency import efficiency
from analysis.figures.figure import Figure, absent
from analysis.figures.fits import fits
from analysis.figures.importance import importance
from analysis.figures.phases import phases
from analysis.figures.returns import return_curves
from analysis.figures.scores import cost_return_front, score
from analysis.figures.throughput import Line, throughput
from analysis.figures.times import to_target

__all__ = [
    "Figure",
    "Importance",
    "Line",
    "absent",
    "all_figures",
    "cost_return_front",
    "efficiency",
    "fits",
    "importance",
    "phases",
    "return_curves",
    "score",
    "throughput",
    "to_target",
]
