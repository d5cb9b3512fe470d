"""A study in Python: `analysis.open(source)` gives its frames, estimates, answer, tables, figures and report.

study = analysis.open("studies/throughput")
study.answer(); study.estimates("efficiency_per_runner"); study.table("strong_scaling"); study.plot("efficiency")

Importing this is quick: pandas and what reads a study load with the first study. No engine is imported.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.opened import Study

__all__ = ["open"]


def open(source: str | Path, name: str | None = None) -> "Study":
    """Open a study, finished or running; in MLflow, as far as its records have been sent there.

    Args:
        source: A folder, packed or not, or an MLflow tracking URI such as `sqlite:///mlflow.db`.
        name: Name of the study, where `source` holds several.

    Raises:
        AnalysisError: There is no such study, or nothing in it to show.
        RecordError: The records cannot be trusted.
        TrackingError: The tracking URI does not answer.
    """
    from analysis.load import open_study
    from analysis.opened import Study

    return Study(open_study(source, study=name))
