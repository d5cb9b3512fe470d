"""Every table of a study, in order; one that cannot be made says why. Views; imports no engine."""

from collections.abc import Mapping

from analysis.estimates.results import Results
from analysis.load import StudyData
from analysis.tables.learning import hold_up, steps_to_target
from analysis.tables.models import model_comparison, recommendation
from analysis.tables.scaling import decomposition, not_measured, strong_scaling, trials_against_runners, weak_scaling
from analysis.tables.sheet import every_trial, study_sheet
from analysis.tables.table import Layout, Maker, Table
from analysis.tables.times import phases, pop_tree
from study.errors import StudyError

TABLES: Mapping[str, tuple[str, Maker]] = {
    "T1": ("Study sheet", study_sheet),
    "T2": ("Strong scaling", strong_scaling),
    "T2b": ("Not measured", not_measured),
    "T3": ("Weak scaling", weak_scaling),
    "T4": ("Trials against runners", trials_against_runners),
    "T5": ("Phases", phases),
    "T6": ("POP tree", pop_tree),
    "T7": ("Runners x batch", decomposition),
    "T8": ("Steps to target", steps_to_target),
    "T9": ("Models", model_comparison),
    "T10": ("Recommendation", recommendation),
    "T11": ("Hold-up certificate", hold_up),
    "trials": ("Every trial", every_trial),
}
"""Key -> title of a table that could not be made, and what makes it."""


def all_tables(data: StudyData, results: Results | None = None) -> tuple[Table, ...]:
    """Return every table, in order."""
    results = results or Results(data)
    return tuple(_made(key, title, make, data, results) for key, (title, make) in TABLES.items())


def table_of(key: str, data: StudyData, results: Results | None = None) -> Table:
    """Return one table by its key, such as `T2`."""
    title, make = TABLES[key]
    return _made(key, title, make, data, results or Results(data))


def _made(key: str, title: str, make: Maker, data: StudyData, results: Results) -> Table:
    try:
        return make(data, results)
    except StudyError as error:
        return Layout(key=key, title=title).without(f"It could not be made. {error}", n_failed=results.num_failed)
