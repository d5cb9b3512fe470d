"""Tables T1 to T11 of a study, as values and as text. Views: no arithmetic; imports no engine.

for table in all_tables(open_study("studies/quickstart")):
    print(table.to_markdown())
"""

from analysis.estimates.results import Results
from analysis.tables.advice import recommendation
from analysis.tables.apart import not_measured
from analysis.tables.catalogue import TABLES, all_tables
from analysis.tables.confound import decomposition
from analysis.tables.grid import TableColumn
from analysis.tables.holdup import hold_up
from analysis.tables.learning import steps_to_target, trials_against_runners
from analysis.tables.model_tables import model_comparison
from analysis.tables.scaling_tables import strong_scaling, weak_scaling
from analysis.tables.sheet import study_sheet
from analysis.tables.table import Table, estimate_columns, make_frame, without_rows
from analysis.tables.time_tables import phases, pop_tree

__all__ = [
    "TABLES",
    "Results",
    "Table",
    "TableColumn",
    "all_tables",
    "decomposition",
    "estimate_columns",
    "hold_up",
    "make_frame",
    "model_comparison",
    "not_measured",
    "phases",
    "pop_tree",
    "recommendation",
    "steps_to_target",
    "strong_scaling",
    "study_sheet",
    "trials_against_runners",
    "weak_scaling",
    "without_rows",
]
