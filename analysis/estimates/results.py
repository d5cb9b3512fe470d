"""The parts of a study's long frame, each computed once when it is first needed."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.estimates.certificate import certificate_of, certificate_rows
from analysis.estimates.frame import frame_of
from analysis.estimates.settings import Setting, setting_rows, settings_of, small_scale
from analysis.estimates.targets import targets_of, watched
from analysis.load import StudyData
from analysis.models.study import Models, model_rows, rows_at
from analysis.quantity import Part
from analysis.scaling.clock import Names, cells, phases, prices_of, scaling
from analysis.scaling.selection import select
from study.engine import engines_in_words


class Results:
    """The results of one study, each computed when it is first asked for."""

    def __init__(self, data: StudyData) -> None:
        """Take the study; nothing is computed yet."""
        self.data = data

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The runs whose times may be used (`analysis.scaling.selection`)."""
        return select(self.data.runs).runs

    @cached_property
    def names(self) -> Names:
        """What workloads are called."""
        return Names(self.measured)

    @cached_property
    def strong(self) -> Part:
        """Strong scaling, batch fixed."""
        return scaling(self.data.runs, "strong", self.names, space=self.data.space_file)

    @cached_property
    def weak(self) -> Part:
        """Weak scaling, steps per runner fixed."""
        return scaling(self.data.runs, "weak", self.names, space=self.data.space_file)

    @cached_property
    def phases(self) -> Part:
        """Phases of an iteration."""
        return phases(self.data.runs, self.names)

    @cached_property
    def targets(self) -> Part:
        """Steps, time and cost to target, as well as the evaluations know them."""
        budget = self.data.spec.budget.env_steps if self.data.spec else None
        part = targets_of(self.settings, self.measured, num_trials=len(self.data.runs), budget=budget)
        return replace(part, n_failed=self.num_failed)

    @cached_property
    def settings(self) -> list[Setting]:
        """The settings that runs are judged by (`analysis.estimates.settings`)."""
        runs, spec = self.data.runs, self.data.spec
        if runs["env_steps_to_target"].notna().any():
            runs = watched(runs, self.data.evaluations(), target=spec.environment.target if spec else None)
        return settings_of(runs, small=small_scale(self.data))

    @cached_property
    def models(self) -> Models:
        """What the models say; its properties raise where the runs do not allow them."""
        return Models(self.data.runs)

    @cached_property
    def certificate(self) -> dict[str, Any] | str:
        """The certificate of a hold-up study as JSON values."""
        return certificate_of(self.data)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The long frame: every estimate of the study."""
        rates = [*cells(self.measured, self.names), *model_rows(self.models, self.measured, self.names)]
        parts = (self.strong, self.weak, self.phases, self.targets)
        rows = [*rates, *prices_of(rates), *(row for part in parts for row in part.rows)]
        rows += [row for refusal in self.strong.refusals for row in refusal.rows()]
        rows += [*setting_rows(self.data, self.settings), *certificate_rows(self.data, self.certificate)]
        return frame_of(rows, kind=self.data.kind, engine=self.engine)

    def predict(self, num_env_runners: int) -> pd.DataFrame:
        """Return throughput and prices of a number of runners, as estimates; predicted where nobody ran it.

        Raises:
            AnalysisError: The runs allow no prediction there.
        """
        rows = rows_at(self.models, self.measured, self.names, num_env_runners)
        return frame_of(rows, kind=self.data.kind, engine=self.engine)

    @property
    def engine(self) -> str:
        """The engine of the runs, or several of them."""
        return engines_in_words(self.data.runs["engine"].dropna())

    @property
    def num_failed(self) -> int:
        """Failed trials of the study."""
        return int((self.data.runs["status"] == "failed").sum())
