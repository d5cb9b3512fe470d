"""Every table of a study, in order; one that cannot be made says why. Views; imports no engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from analysis.estimates.frame import unknown
from analysis.estimates.results import Results
from analysis.tables.learning import hold_up, steps_to_target
from analysis.tables.models import model_comparison
from analysis.tables.scaling import decomposition, strong_scaling, trials_against_runners, weak_scaling
from analysis.tables.sheet import every_trial, study_sheet
from analysis.tables.table import Layout, Table
from analysis.tables.times import phases
from study.errors import StudyError

TABLES: Mapping[str, tuple[str, str, Callable[[Results], Table]]] = {
    "study_sheet": ("T1", "Study sheet", study_sheet),
    "strong_scaling": ("T2", "Strong scaling", strong_scaling),
    "weak_scaling": ("T3", "Weak scaling", weak_scaling),
    "trials_against_runners": ("T4", "Trials against runners", trials_against_runners),
    "phases": ("T5", "Phases", phases),
    "runners_and_batch": ("T7", "Runners x batch", decomposition),
    "steps_to_target": ("T8", "Steps to target", steps_to_target),
    "models": ("T9", "Models", model_comparison),
    "certificate": ("T11", "Hold-up certificate", hold_up),
    "trials": ("trials", "Every trial", every_trial),
}
"""Name -> key in the report, title of a table that could not be made, and what makes it."""


def all_tables(results: Results) -> tuple[Table, ...]:
    """Return every table, in order."""
    return tuple(table_of(name, results) for name in TABLES)


def table_of(name: str, results: Results) -> Table:
    """Return one table by its name, such as `strong_scaling`, or by its key, such as `T2`.

    Raises:
        AnalysisError: There is no such table.
    """
    found = next((each for each in TABLES if name in (each, TABLES[each][0])), None)
    if found is None:
        raise unknown("table", name, TABLES)
    key, title, make = TABLES[found]
    try:
        return replace(make(results), engine=results.engine)
    except StudyError as error:
        return Layout(key=key, title=title).without(f"It could not be made. {error}", n_failed=results.num_failed)
