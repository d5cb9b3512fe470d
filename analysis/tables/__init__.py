"""Every table of a study by name. One that cannot be made says why."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.quantity import unknown
from analysis.tables.learning import certificate, every_trial, steps_to_target
from analysis.tables.scaling import phases, strong_scaling, weak_scaling
from analysis.tables.table import Table, without_rows
from study.errors import StudyError

if TYPE_CHECKING:
    from analysis.opened import Study

TABLES: "Mapping[str, tuple[str, str, Callable[[Study], Table]]]" = {
    "strong_scaling": ("T2", "Strong scaling: speed-up, efficiency", strong_scaling),
    "weak_scaling": ("T3", "Weak scaling", weak_scaling),
    "phases": ("T5", "Phases of an iteration", phases),
    "steps_to_target": ("T8", "Steps to the target", steps_to_target),
    "certificate": ("T11", "Hold-up certificate", certificate),
    "trials": ("trials", "Every trial", every_trial),
}
"""Name -> key in the report, title of a table that could not be made, and what makes it."""


def table_of(name: str, study: "Study") -> Table:
    """Return one table by its name, such as `strong_scaling`, or by its key, such as `T2`.

    Raises:
        AnalysisError: There is no such table.
    """
    found = next((each for each in TABLES if name in (each, TABLES[each][0])), None)
    if found is None:
        raise unknown("table", name, {each: title for each, (_, title, _) in TABLES.items()})
    key, title, make = TABLES[found]
    try:
        return replace(make(study), engine=study.engine)
    except StudyError as error:
        return without_rows(key, title, f"It could not be made. {error}", n_failed=study.num_failed)
