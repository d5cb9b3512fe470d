"""Records -> one DataFrame per grain by the ledger, for small studies: plain names and types. Imports no engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pandas as pd

from study.errors import AnalysisError, RecordError
from study.metrics import METRICS
from study.records.folder import StudyFolder
from study.records.ledger import Ledger
from study.records.records import Evaluation, Iteration, read_lines
from study.records.state import ledger_of
from study.records.table import table_row
from study.space.parameters import PARAMETERS

TEXT = (
    "status",
    "execution",
    "timing",
    "engine",
    "anchor",
    "stage",
    "variant",
    "digest",
    "checkpoint",
    "timing_reason",
    "reason",
)
COUNTS = ("trial", "seed", "max_iterations", "attempt", "num_cpus", "env_steps", "stands_for_runners")


def trials(study: str | Path) -> pd.DataFrame:
    """Return one row per trial, the columns of `trials.csv`: setting, status, timing label and `metrics.OF_TRIALS`.

    Units are those of `study.metrics.METRICS`. A quantity that does not exist is NA, never 0.

    Args:
        study: Folder of the study.

    Raises:
        AnalysisError: There is no study, or it has no trial yet.
        RecordError: The records cannot be trusted.
    """
    ledger = _ledger(study)
    if not ledger.rows:
        raise AnalysisError(
            where=str(study),
            rule="a table needs a trial",
            got="none yet",
            fix="Wait for the first one.",
            code="study-without-trials",
        )
    frame = pd.DataFrame([table_row(ledger.rows[number]) for number in sorted(ledger.rows)])
    try:
        return frame.astype({name: _dtype(str(name)) for name in frame})
    except (TypeError, ValueError) as error:
        raise RecordError(
            where=str(study),
            rule="every column must hold values of one type",
            got=f"others ({error})",
            fix="Restore the records from a backup.",
            code="mixed-types-in-column",
        ) from error


def curves(study: str | Path) -> pd.DataFrame:
    """Return one row per training iteration of the latest attempts: trial, iteration, env_steps, wall_time_s, metrics.

    Raises:
        AnalysisError: There is no study.
        RecordError: The records cannot be trusted.
    """
    rows = [
        {
            **record.metrics,
            "trial": record.trial,
            "iteration": record.iteration,
            "env_steps": record.env_steps,
            "wall_time_s": record.wall_time_s,
        }
        for record in _latest(study, Iteration)
    ]
    names = [name for name, metric in METRICS.items() if metric.grain == "iteration"]
    columns = ["trial", "iteration", "env_steps", "wall_time_s", *names]
    integers = {"trial": "int64", "iteration": "int64", "env_steps": "int64"}
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[3:], "float64") | integers)


def evaluations(study: str | Path) -> pd.DataFrame:
    """Return one row per greedy evaluation of the latest attempts; `eval_return` is the mean of its episodes.

    Raises:
        AnalysisError: There is no study.
        RecordError: The records cannot be trusted.
    """
    rows = [
        {
            "trial": record.trial,
            "env_steps": record.env_steps,
            "wall_time_s": record.wall_time_s,
            "progress": record.progress,
            "eval_return": sum(record.returns) / len(record.returns),
            "num_episodes": len(record.returns),
            "num_cut": record.num_cut,
            "eval_time_s": record.eval_time_s,
        }
        for record in _latest(study, Evaluation)
    ]
    names = ("trial", "env_steps", "wall_time_s", "progress", "eval_return", "num_episodes", "num_cut", "eval_time_s")
    return pd.DataFrame(rows, columns=list(names))


Row = TypeVar("Row", Iteration, Evaluation)


def _latest(study: str | Path, kind: type[Row]) -> Iterator[Row]:
    """Yield the records of one kind that belong to the latest attempt of their trial."""
    latest = {number: row.attempt for number, row in _ledger(study).rows.items()}
    for line in read_lines(StudyFolder(Path(study)).records):
        if isinstance(line.record, kind) and latest[line.record.trial] == line.record.attempt:
            yield line.record


def _ledger(study: str | Path) -> Ledger:
    folder = StudyFolder(Path(study))
    if not folder.exists():
        raise AnalysisError(
            where=str(study),
            rule="must be the folder of a study",
            got="none",
            fix="Give for instance studies/quickstart.",
            code="not-a-study-folder-of-tables",
        )
    return ledger_of(folder.records)


def _dtype(name: str) -> str:
    if name in TEXT:
        return "string"
    if name in METRICS and METRICS[name].grain != "trial":
        return "Int64" if METRICS[name].whole else "Float64"
    if name in COUNTS or (name in PARAMETERS and PARAMETERS[name].kind is int):
        return "Int64"
    return "Float64"
