"""What the models say of one study, computed once: fits, hold-out errors, and what follows. Calls analysis.models.

Models are fitted to the workload with most runs. Where a question needs one setting (batch, minibatch, epochs, envs per
runner), it is the one that ran at most scales.
"""

from collections import Counter
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.models.calibration import Verdict, verdict
from analysis.models.comparison import (
    MODELS,
    ModelError,
    Split,
    compare,
    larger_scales,
    leave_one_scale_out,
    leave_settings_out,
)
from analysis.models.iteration_time import IterationTimeFit, fit_iteration_time
from analysis.models.laws import AmdahlFit, USLFit, fit_amdahl, fit_usl
from analysis.models.observations import Cells, Observations, Selection, from_runs
from study.errors import AnalysisError

SEED = 20_251_121
"""Of the resamples: the same study gives the same digits."""
LEVEL = 0.95
"""Of the intervals of what was measured; those of predictions are of 90 %, as `definitions.MODEL_INTERVAL` says."""
MOST_RUNS = 400
"""Runs that the models are fitted to: their intervals would be narrower than what the models leave out."""
MOST_FOLDS = 12
"""Folds of a split: each is a fit of every model."""
SETTING = ("num_envs_per_env_runner", "train_batch_size", "minibatch_size", "num_epochs", "num_learners", "step_wait_s")


class ModelResults:
    """The models of one study. Every property raises `AnalysisError` where the runs do not allow it."""

    def __init__(self, runs: pd.DataFrame) -> None:
        """Take one row per trial; nothing is computed yet."""
        self._runs = runs

    @cached_property
    def selection(self) -> Selection:
        """The runs that models may be fitted to, by workload."""
        return from_runs(self._runs)

    @cached_property
    def observations(self) -> Observations:
        """Those of the workload with most runs; of more than `MOST_RUNS`, equally many of each cell."""
        if not self.selection.groups:
            raise AnalysisError(
                where="models",
                rule="need finished runs with a measured clock and timed phases",
                got="none",
                fix="Run a throughput study.",
            )
        return thinned(self.selection.groups[0], most=MOST_RUNS)

    @cached_property
    def setting(self) -> Observations:
        """Of these, the runs of the setting that ran at most scales; on a tie that with most runs."""
        seen = self.observations
        numbers = seen.cells.numbered(SETTING)
        scales = seen.cells.num_env_runners

        def weight(number: int) -> tuple[int, int, int]:
            here = numbers == number
            return int(np.unique(scales[here]).size), int(here.sum()), -number

        return seen.take(numbers == max((int(each) for each in np.unique(numbers)), key=weight))

    @property
    def cell(self) -> Cells:
        """That setting at its largest scale, one cell."""
        cells = self.setting.cells
        return cells.take(np.array([int(cells.num_env_runners.argmax())]))

    @property
    def fingerprints(self) -> Counter[str]:
        """Workload -> runs of that setting; where there are several they differ in nothing that a clock sees."""
        found = self.setting.fingerprint
        assert found is not None  # these runs are of a study
        return Counter(map(str, found))

    @property
    def scales(self) -> tuple[int, ...]:
        """Scales at which that setting ran."""
        return tuple(int(each) for each in np.unique(self.setting.cells.num_env_runners))

    @cached_property
    def fit(self) -> IterationTimeFit:
        """The iteration-time model."""
        return fit_iteration_time(self.observations, rng=np.random.default_rng(SEED))

    @cached_property
    def errors(self) -> tuple[ModelError, ...]:
        """Hold-out errors of every model on every split."""
        if np.unique(self.observations.cells.num_env_runners).size < 2:
            raise AnalysisError(
                where="models",
                rule="to hold a scale out needs measured runs at two scales or more",
                got="one",
                fix="Measure a second scale.",
            )
        seen = self.observations
        splits = (leave_one_scale_out(seen), larger_scales(seen), leave_settings_out(seen))
        folds = [merged(each, most=MOST_FOLDS) for each in splits]
        return compare(seen, folds, MODELS, rng=np.random.default_rng(SEED))

    @cached_property
    def amdahl(self) -> AmdahlFit:
        """Amdahl's law, fitted to the setting."""
        return fit_amdahl(self.setting.cells.num_env_runners, self.setting.env_steps_per_s, blocks=self.setting.block)

    @cached_property
    def usl(self) -> USLFit:
        """The universal scalability law, fitted to the setting."""
        return fit_usl(self.setting.cells.num_env_runners, self.setting.env_steps_per_s, blocks=self.setting.block)

    @cached_property
    def verdict(self) -> Verdict:
        """Whether more runners can help, from the phases at the largest scale."""
        return verdict(self.setting, level=LEVEL)


def thinned(seen: Observations, *, most: int) -> Observations:
    """Return at most about `most` runs, equally many of each cell, the first ones; all where there are no more.

    Of more cells than that, those come first that were run most often.
    """
    if len(seen) <= most:
        return seen
    numbers = seen.cells.numbered()
    cells, counts = np.unique(numbers, return_counts=True)
    kept = cells[np.argsort(-counts, kind="stable")[:most]]
    each = max(most // kept.size, 1)
    rows = np.concatenate([np.flatnonzero(numbers == cell)[:each] for cell in kept])
    return seen.take(np.sort(rows).astype(np.int64))


def merged(split: Split, *, most: int) -> Split:
    """Return the split with at most so many folds: several held-out parts become one, in turn."""
    if len(split.folds) <= most:
        return split
    folds = []
    for place in range(most):
        held = np.logical_or.reduce([held for _, held in split.folds[place::most]])
        folds.append((~held, held))
    return Split(name=f"{split.name}, {most} folds", folds=tuple(folds))
