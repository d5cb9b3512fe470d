"""A study as frames, from its folder or from MLflow: declared columns, units, and what is missing. Imports no engine.

data = open_study("studies/quickstart")
data.runs, data.iterations(), data.evaluations(), data.sheet, data.problems
"""

from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS, RUN_COLUMNS, Column
from analysis.load.folder import from_folder, open_study
from analysis.load.study_data import Kind, StudyData

__all__ = [
    "EVALUATION_COLUMNS",
    "ITERATION_COLUMNS",
    "RUN_COLUMNS",
    "Column",
    "Kind",
    "StudyData",
    "from_folder",
    "open_study",
]
