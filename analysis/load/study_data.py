"""What analysis gets of a study, wherever it was read: one value. Imports pandas, no engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from study.records.files import at_work
from study.records.folder import StudyFolder
from study.records.ledger import Ledger
from study.space.spec import StudySpec

Kind = Literal["search", "holdup", "throughput"]
"""What a study is: an ordinary search, in stages, or short trials for the clock."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyData:
    """A study as analysis sees it.

    Attributes:
        name: Of the study.
        source: Folder or tracking URI, without a password.
        kind: What it is.
        runs: One row per trial, the columns of `RUN_COLUMNS`.
        sheet: What is the same for all trials, or known per session: environment, algorithm, network, versions,
            hardware, scheduler job, commit, dates. JSON values.
        problems: Plain sentences: what is missing or unfinished, and what can still be shown.
        spec: The space; None where it is not known or not of this version.
        ledger: State of the trials by the records, but for sums over iterations; None where there are no records.
        folder: Where its files are: the study's folder, or a copy of what MLflow holds of it.
    """

    name: str
    source: str
    kind: Kind
    runs: pd.DataFrame = field(repr=False)
    sheet: Mapping[str, Any] = field(repr=False)
    problems: tuple[str, ...] = ()
    spec: StudySpec | None = field(default=None, repr=False)
    ledger: Ledger | None = field(default=None, repr=False)
    folder: StudyFolder | None = field(default=None, repr=False)
    iterations: Callable[[], pd.DataFrame] = field(repr=False)
    """Reads one row per training iteration, the columns of `ITERATION_COLUMNS`; `StudyError` if that cannot be read."""
    evaluations: Callable[[], pd.DataFrame] = field(repr=False)
    """Reads one row per evaluation, the columns of `EVALUATION_COLUMNS`."""

    @property
    def space_file(self) -> str | None:
        """The space file for a command that runs more of this: the study's own copy, as it ran.

        Without a folder, the file that the study was started with;
        None where that is not known.
        """
        if "://" not in self.source and (copy := StudyFolder(Path(self.source)).space_file).exists():
            return str(copy)
        return self.sheet.get("space") or None

    @property
    def is_running(self) -> bool:
        """Whether a driver works on the study's folder now; False for a study in MLflow, where that is not known."""
        return "://" not in self.source and bool(at_work(Path(self.source)))
