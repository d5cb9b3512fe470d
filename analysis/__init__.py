"""A study in Python: `analysis.open(source)` gives its frames, estimates, answer, tables, figures and report.

study = analysis.open("studies/throughput")
study.answer(); study.estimates("efficiency_per_runner"); study.table("strong_scaling"); study.plot("efficiency")
analysis.compare(["studies/throughput", "studies/stock"], "env_steps_per_s")

Importing this is quick: pandas and what reads a study load with the first study. No engine is imported.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from analysis.opened import Study

__all__ = ["compare", "open"]


def open(source: str | Path, name: str | None = None) -> "Study":
    """Open a study, finished or running; in MLflow, as far as its records have been sent there.

    Args:
        source: A folder, packed or not, or an MLflow tracking URI such as `sqlite:///mlflow.db`.
        name: Name of the study, where `source` holds several.

    Raises:
        AnalysisError: There is no such study, or nothing in it to show.
        RecordError: The records cannot be trusted.
        ClusterError: The tracking URI does not answer.
    """
    from analysis.load import open_study
    from analysis.opened import Study

    return Study(open_study(source, study=name))


def compare(sources: Iterable[str | Path], quantity: str | None = None) -> "pd.DataFrame":
    """Return the estimates of several studies in one frame, with the column `study` (the source) before the others.

    Only rows of one `fingerprint` are of equal work: a ratio of others compares more than the number of runners.

    Raises:
        StudyError: As `open`; or there is no such quantity.
    """
    import pandas as pd

    frames = {str(each): open(each).estimates(quantity) for each in sources}
    return pd.concat(frames, names=["study"]).reset_index("study").reset_index(drop=True)
