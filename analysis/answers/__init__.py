"""What a study says: one sentence, the setting to copy, the price list, and what is not known. Imports no engine."""

from typing import TYPE_CHECKING

from analysis.answers.answer import Answer, Number, Unknown
from analysis.answers.holdup import holdup_answer
from analysis.answers.search import search_answer
from analysis.answers.throughput import throughput_answer

if TYPE_CHECKING:
    from analysis.opened import Study

__all__ = ["Answer", "Number", "Unknown", "answer_of"]


def answer_of(study: "Study", price_per_cpu_hour: float | None = None) -> Answer:
    """Return what a study says, whatever its kind, and whether it is finished, running or empty.

    Args:
        study: As `analysis.open` returns it.
        price_per_cpu_hour: What a CPU-hour costs, in any currency; without it costs are CPU-hours.
    """
    kind = study.data.kind
    make = {"throughput": throughput_answer, "holdup": holdup_answer}.get(kind, search_answer)
    return make(study.results, study.rows, price_per_cpu_hour)
