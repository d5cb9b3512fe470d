"""Every figure of a study, in the order of a report; one that cannot be drawn says why. Imports pandas, no engine."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from analysis.figures import clock, curves, learning, trials
from analysis.figures.figure import Figure, absent
from analysis.figures.trials import Importance
from analysis.figures.trials import importance as importance_figure
from study.errors import AnalysisError

if TYPE_CHECKING:
    from analysis.opened import Study

MAKERS: "Mapping[str, tuple[str, Callable[[Study], Figure]]]" = MappingProxyType(
    {
        "efficiency": (clock.EFFICIENCY, clock.efficiency),
        "weak_efficiency": (clock.WEAK, clock.weak_efficiency),
        "phases": (clock.PHASES, clock.phases),
        "score": (learning.SCORE, learning.score),
        "return_steps": (curves.CURVES["env_steps"], partial(curves.return_curves, against="env_steps")),
        "return_wall_clock": (curves.CURVES["wall_time_s"], partial(curves.return_curves, against="wall_time_s")),
        "steps_to_target": (learning.TARGET, learning.steps_to_target),
        "front": (trials.FRONT, trials.cost_return_front),
    }
)
"""Key -> subject and maker, in the order of a report. `importance`, which needs what Optuna computed, comes last."""
OF_THE_CLOCK = ("efficiency", "weak_efficiency", "phases")
"""The figures of a throughput study, which claims no learning."""


def all_figures(study: "Study", *, importance: Importance | str = "") -> tuple[Figure, ...]:
    """Return every figure of a study."""
    keys = OF_THE_CLOCK if study.kind == "throughput" else MAKERS
    figures = [figure_of(study, key) for key in keys]
    if study.kind != "throughput":
        figures.append(importance_figure(importance, engine=study.engine))
    return tuple(figures)


def figure_of(study: "Study", key: str) -> Figure:
    """Return one figure by its key; where the data do not allow it, one that says why it is missing."""
    subject, make = MAKERS[key]
    try:
        return make(study)
    except AnalysisError as error:
        return absent(key, subject, str(error))
