"""Tables T1 to T11 of a study, as values and as text. Views: no arithmetic; imports no engine.

for table in all_tables(open_study("studies/quickstart")):
    print(table.to_markdown())
"""

from analysis.estimates.results import Results
from analysis.tables.catalogue import TABLES, all_tables
from analysis.tables.grid import TableColumn
from analysis.tables.learning import hold_up, steps_to_target
from analysis.tables.models import model_comparison, recommendation
from analysis.tables.scaling import decomposition, not_measured, strong_scaling, trials_against_runners, weak_scaling
from analysis.tables.sheet import every_trial, study_sheet
from analysis.tables.table import Layout, Table, estimate_columns, make_frame
from analysis.tables.times import phases, pop_tree

__all__ = [
    "TABLES",
    "Layout",
    "Results",
    "Table",
    "TableColumn",
    "all_tables",
    "decomposition",
    "estimate_columns",
    "every_trial",
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
]
