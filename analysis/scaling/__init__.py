"""Scaling from the frame `runs`: speed-up, efficiency, phases, goodput, and what is refused. Imports no engine.

Only finished runs with a `measured` clock enter a table of times; every other run is counted by reason. A ratio is
paired by block (runs with the same seed) and has an interval, or says that it has none.
"""

from analysis.scaling.allocation import allocation
from analysis.scaling.drift import anchors
from analysis.scaling.efficiency import serial_fraction
from analysis.scaling.goodput import goodput
from analysis.scaling.phases import PHASES, phases, stragglers
from analysis.scaling.results import (
    AllocationRow,
    Cell,
    Decomposition,
    Drift,
    Goodput,
    GoodputGroup,
    GoodputRow,
    PhaseRow,
    Phases,
    Refusal,
    Scaling,
    ScalingGroup,
    ScalingRow,
    Straggler,
)
from analysis.scaling.speed_up import strong_scaling, weak_scaling

__all__ = [
    "PHASES",
    "AllocationRow",
    "Cell",
    "Decomposition",
    "Drift",
    "Goodput",
    "GoodputGroup",
    "GoodputRow",
    "PhaseRow",
    "Phases",
    "Refusal",
    "Scaling",
    "ScalingGroup",
    "ScalingRow",
    "Straggler",
    "allocation",
    "anchors",
    "goodput",
    "phases",
    "serial_fraction",
    "stragglers",
    "strong_scaling",
    "weak_scaling",
]
