"""Fitted curves for the throughput figure: thin calls into `analysis.models`. What cannot be fitted is left out."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from analysis.figures.throughput import Line
from analysis.models import AmdahlFit, USLFit, fit_amdahl, fit_usl
from analysis.scaling.selection import select
from analysis.tables.numbers import in_words
from study.errors import AnalysisError

if TYPE_CHECKING:
    from analysis.scaling.results import Scaling, ScalingGroup

POINTS = 60
"""Of a drawn curve."""


def fits(scaling: "Scaling", runs: pd.DataFrame) -> tuple[Line, ...]:
    """Return Amdahl's law and the USL fitted to the runs of the first workload; none where no workload has two scales.

    Args:
        scaling: Strong scaling.
        runs: One row per trial.
    """
    return tuple(_lines(scaling.groups[0], runs)) if scaling.groups else ()


def _lines(group: "ScalingGroup", runs: pd.DataFrame) -> Iterator[Line]:
    measured = select(runs).runs
    here = measured[measured["fingerprint"].astype(object) == group.fingerprint]
    scales, rates = here["num_env_runners"].to_numpy(float), np.exp(here["log_rate"].to_numpy(float))
    blocks = np.unique(here["block"].astype(str), return_inverse=True)[1]
    if scales.size == 0:
        return
    at = np.geomspace(scales.min(), scales.max(), POINTS)
    try:
        amdahl = fit_amdahl(scales, rates, blocks=blocks)
        yield Line(label="Amdahl fit", num_env_runners=at, env_steps_per_s=amdahl.throughput(at), note=_amdahl(amdahl))
        usl = fit_usl(scales, rates, blocks=blocks)
        yield Line(label="USL fit", num_env_runners=at, env_steps_per_s=usl.throughput(at), note=_usl(usl))
    except AnalysisError:  # too few scales for the law: T9 says so
        return


def _amdahl(fit: AmdahlFit) -> str:
    return f"serial fraction {in_words(fit.serial_fraction)}"


def _usl(fit: USLFit) -> str:
    words = f"contention {in_words(fit.contention)}, coherency {in_words(fit.coherency, digits=2)}"
    if fit.peak is None:
        return f"{words}; peak unidentified: {fit.unidentified}"
    return f"{words}; peak at {in_words(fit.peak)} runners"
