"""From a study to its report: tables, figures and refusals computed once, from the same results. No engine."""

from collections.abc import Iterator

from analysis.estimates.results import Results
from analysis.figures.catalogue import Importance, all_figures
from analysis.load.study_data import StudyData
from analysis.report.clip import Clip
from analysis.report.content import Report, build
from analysis.scaling.results import Scaling
from analysis.tables import all_tables


def make_report(data: StudyData, *, importance: "Importance | str" = "", clip: Clip | None = None) -> Report:
    """Return the report of a study.

    Args:
        data: The study.
        importance: Which parameters mattered, from whoever may import Optuna; or why that is not known.
        clip: The film of the study's best policy, if somebody made one.
    """
    results = Results(data)
    tables = all_tables(data, results)
    figures = all_figures(data, results, importance=importance)
    return build(data, tables, figures, refusals=tuple(_refusals(results)), clip=clip)


def _refusals(results: Results) -> Iterator[str]:
    """Yield every refused comparison between two cells, with what helps: the parts of the ratio, or the command."""
    found = results.strong
    for refusal in found.refusals if isinstance(found, Scaling) else ():
        if refusal.second is None:
            continue  # nothing to compare is no refusal of a comparison
        if refusal.decomposition is not None and refusal.decomposition.sentence:
            yield f"{refusal.reason} {refusal.decomposition.sentence}"
        else:
            yield f"{refusal.reason} Run: {refusal.command}" if refusal.command else refusal.reason
