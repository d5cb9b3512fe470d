"""Every table of a study, in order; one that cannot be made says why. Views; imports no engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from analysis.estimates.results import Results
from analysis.tables.learning import hold_up, steps_to_target
from analysis.tables.models import model_comparison, recommendation
from analysis.tables.scaling import decomposition, not_measured, strong_scaling, trials_against_runners, weak_scaling
from analysis.tables.sheet import every_trial, study_sheet
from analysis.tables.table import Layout, Table
from analysis.tables.times import phases, pop_tree
from study.errors import StudyError

TABLES: Mapping[str, tuple[str, Callable[[Results], Table]]] = {
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


def all_tables(results: Results) -> tuple[Table, ...]:
    """Return every table, in order."""
    return tuple(table_of(key, results) for key in TABLES)


def table_of(key: str, results: Results) -> Table:
    """Return one table by its key, such as `T2`."""
    title, make = TABLES[key]
    try:
        return replace(make(results), engine=results.engine)
    except StudyError as error:
        return Layout(key=key, title=title).without(f"It could not be made. {error}", n_failed=results.num_failed)
