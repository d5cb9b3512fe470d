"""The results that estimates, tables and figures share, each computed once when it is first needed. No engine.

A result that the data do not allow is the sentence that says so.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from analysis.estimates.certificate import certificate_of
from analysis.estimates.fits import ModelResults
from analysis.estimates.settings import Setting, settings_of, small_scale
from analysis.load import StudyData
from analysis.scaling.allocation import allocation
from analysis.scaling.phases import phases
from analysis.scaling.results import AllocationRow, Phases, Scaling, ToTarget
from analysis.scaling.selection import select
from analysis.scaling.speed_up import strong_scaling, weak_scaling
from analysis.scaling.targets import steps_to_target, watched
from study.engine import engines_in_words
from study.errors import AnalysisError

T = TypeVar("T")


def attempt(compute: Callable[[], T]) -> T | str:
    """Return what `compute` returns, or the sentence of the `AnalysisError` that it raises."""
    try:
        return compute()
    except AnalysisError as error:
        return str(error)


class Results:
    """The results behind the tables of one study, each computed when a table first asks for it."""

    def __init__(self, data: StudyData) -> None:
        """Take the study; nothing is computed yet."""
        self.data = data

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The runs whose times may be used (`analysis.scaling.selection`)."""
        return select(self.data.runs).runs

    @cached_property
    def strong(self) -> Scaling | str:
        """Strong scaling, batch fixed."""
        return attempt(lambda: strong_scaling(self.data.runs, space=self.data.space_file))

    @cached_property
    def weak(self) -> Scaling | str:
        """Weak scaling, steps per runner fixed."""
        return attempt(lambda: weak_scaling(self.data.runs, space=self.data.space_file))

    @cached_property
    def phases(self) -> Phases | str:
        """Phases of an iteration."""
        return attempt(lambda: phases(self.data.runs))

    @cached_property
    def allocation(self) -> tuple[AllocationRow, ...] | str:
        """Trials against runners."""
        return attempt(lambda: allocation(self.data.runs))

    @cached_property
    def to_target(self) -> ToTarget | str:
        """Steps, time and cost to target, as well as the evaluations know them."""
        spec = self.data.spec
        return attempt(lambda: steps_to_target(self.watched, budget=spec.budget.env_steps if spec else None))

    @cached_property
    def watched(self) -> pd.DataFrame:
        """The runs, and since when each is known to be at the target; as they are where none got there."""
        runs, spec = self.data.runs, self.data.spec
        if runs["env_steps_to_target"].isna().all():
            return runs
        return watched(runs, self.data.evaluations(), target=spec.environment.target if spec else None)

    @cached_property
    def settings(self) -> list[Setting]:
        """The settings that runs are judged by (`analysis.estimates.settings`)."""
        return settings_of(self.data.runs, small=small_scale(self.data))

    @cached_property
    def models(self) -> ModelResults:
        """What the models say; its properties raise where the runs do not allow them."""
        return ModelResults(self.data.runs)

    @cached_property
    def certificate(self) -> dict[str, Any] | str:
        """The certificate of a hold-up study as JSON values."""
        return certificate_of(self.data)

    @property
    def engine(self) -> str:
        """The engine of the runs, or several of them."""
        return engines_in_words(self.data.runs["engine"].dropna())

    @property
    def num_failed(self) -> int:
        """Failed trials of the study."""
        return int((self.data.runs["status"] == "failed").sum())
