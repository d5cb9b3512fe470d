"""What a study says: one sentence, the setting to copy, the price list, and what is not known. Imports no engine."""

from typing import TYPE_CHECKING

from analysis.answers.answer import Answer, Number, Unknown
from analysis.answers.holdup import holdup_answer
from analysis.answers.search import search_answer
from analysis.answers.throughput import throughput_answer
from analysis.estimates.results import Results
from analysis.load.study_data import StudyData

if TYPE_CHECKING:
    from analysis.study import Study

__all__ = ["Answer", "Number", "Unknown", "answer_from", "answer_of"]


def answer_of(study: "Study", price_per_cpu_hour: float | None = None) -> Answer:
    """Return what a study says, whatever its kind, and whether it is finished, running or empty.

    Args:
        study: As `analysis.open` returns it.
        price_per_cpu_hour: What a CPU-hour costs, in any currency; without it costs are CPU-hours.
    """
    return answer_from(study.data, study.results, price_per_cpu_hour)


def answer_from(data: StudyData, results: Results, price_per_cpu_hour: float | None = None) -> Answer:
    """Return the same from what was read and the results that its tables rest on."""
    if data.kind == "throughput":
        return throughput_answer(data, results, price_per_cpu_hour)
    if data.kind == "holdup":
        return holdup_answer(data, results, price_per_cpu_hour)
    return search_answer(data, results, price_per_cpu_hour)
