"""The five figures of a study: views of its frames whose titles are its findings. They compute no statistics."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from analysis.figures.drawings import efficiency, phases, return_steps, score, steps_to_target
from analysis.figures.figure import Figure, absent
from analysis.quantity import unknown
from study.errors import AnalysisError

if TYPE_CHECKING:
    from analysis.opened import Study

__all__ = ["FIGURES", "Figure", "absent", "figure_of"]

FIGURES: "Mapping[str, tuple[Callable[[Study, str], Figure], str, tuple[str, ...]]]" = MappingProxyType(
    {
        "efficiency": (efficiency, "Efficiency: the speed-up against the number of runners", ("speed_up",)),
        "phases": (phases, "Where the time of one iteration goes", ("share_sample",)),
        "score": (score, "Score of the settings", ("final_return",)),
        "return_steps": (return_steps, "Return against environment steps", ()),
        "steps_to_target": (steps_to_target, "Environment steps to the target", ()),
    }
)
"""Key -> what makes it, its subject, and the quantities of which it shows a finding; in the order of a report."""
OF_TIMES = ("efficiency", "phases")
"""The figures of a throughput study, which claims no learning."""


def figure_of(study: "Study", key: str) -> Figure:
    """Return one figure by its key; where the data do not allow it, one that says why it is missing.

    Raises:
        AnalysisError: There is no such figure.
    """
    if key not in FIGURES:
        raise unknown("figure", key, {each: subject for each, (_, subject, _) in FIGURES.items()})
    make, subject, quantities = FIGURES[key]
    facts = {fact.quantity: fact.text for fact in reversed(study.findings) if fact.role != "unknown"}
    said = (facts[each] for each in quantities if each in facts)
    try:
        figure = make(study, next(said, subject))
    except AnalysisError as error:
        return absent(key, subject, str(error))
    return figure if figure.drawn else absent(key, subject, figure.missing, figure.command)
