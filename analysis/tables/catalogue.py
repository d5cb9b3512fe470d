"""Every table of a study, in order; one that cannot be made says why. Views; imports no engine."""

from collections.abc import Mapping

from analysis.estimates.results import Results
from analysis.load import StudyData
from analysis.tables.advice import recommendation
from analysis.tables.apart import not_measured
from analysis.tables.confound import decomposition
from analysis.tables.holdup import hold_up
from analysis.tables.learning import steps_to_target, trials_against_runners
from analysis.tables.model_tables import model_comparison
from analysis.tables.results import Maker
from analysis.tables.scaling_tables import strong_scaling, weak_scaling
from analysis.tables.sheet import study_sheet
from analysis.tables.table import Table, without_rows
from analysis.tables.time_tables import phases, pop_tree
from analysis.tables.trials import every_trial
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
    """Return every table, in order.

    Args:
        data: The study.
        results: What the tables rest on, where somebody has it already.
    """
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
        return without_rows(key, title, f"It could not be made. {error}", n_failed=results.num_failed)
