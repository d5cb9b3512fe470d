"""What a study says: facts in one order, the setting to copy, the price list, and what is not known. No engine.

Nothing else in `analysis` decides what is best or phrases a finding: who shows one prints a `Fact`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.answers.answer import Answer
from analysis.answers.facts import Fact
from analysis.answers.holdup import holdup_answer
from analysis.answers.limits import limits
from analysis.answers.search import search_answer
from analysis.answers.throughput import throughput_answer

if TYPE_CHECKING:
    from analysis.opened import Study

__all__ = ["Answer", "Fact", "answer_of"]


def answer_of(study: "Study", price_per_cpu_hour: float | None = None) -> Answer:
    """Return what a study says, whatever its kind, and whether it is finished, running or empty.

    Args:
        study: As `analysis.open` returns it.
        price_per_cpu_hour: What a CPU-hour costs, in any currency; without it costs are CPU-hours.
    """
    make = {"throughput": throughput_answer, "holdup": holdup_answer}.get(study.data.kind, search_answer)
    answer = make(study, price_per_cpu_hour)
    return replace(answer, findings=(*answer.findings, *limits(study)))
