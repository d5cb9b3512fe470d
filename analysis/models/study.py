"""What the iteration-time model says of one study: throughput at other numbers of runners, the limit.

Models are fitted to the workload with most runs. Where a question needs one setting (batch, minibatch, epochs, envs per
runner), it is the one that ran at most scales. Nothing is predicted beyond `MOST_EXTRAPOLATED` times the largest
measured scale, nor by a model that does not describe its own runs.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.models.iteration_time import IterationTimeFit, at_scales, fit_iteration_time
from analysis.models.runs import CELL, SETTING, column, from_runs
from analysis.quantity import Basis, Row, quantity, row
from analysis.scaling.blocks import LEVEL
from analysis.scaling.clock import Names, engine_in
from study.errors import AnalysisError
from study.statistics import Estimate, FloatArray, without_interval

MOST_OFF = 0.1
"""Median relative error on its own runs above which a model does not describe them."""
MOST_EXTRAPOLATED = 2
"""Times the largest measured scale up to which a number of runners has a prediction."""
ASKED = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of runners that are predicted where they lie between measured ones, or a little beyond."""


class Models:
    """The models of one study, each fitted when it is first asked for.

    Every property raises `AnalysisError` where the runs do not allow it.
    """

    def __init__(self, runs: pd.DataFrame) -> None:
        """Take one row per trial; nothing is computed yet."""
        self._all = runs

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs of the workload with most runs that models may be fitted to."""
        if not (groups := from_runs(self._all)):
            rule = "need finished runs with a measured clock and timed phases"
            raise AnalysisError(where="models", rule=rule, got="none", fix="Run a throughput study.")
        return groups[0]

    @cached_property
    def setting(self) -> pd.DataFrame:
        """Of these, the runs of the setting that ran at most scales; on a tie that with most runs."""
        grouped = self.runs.groupby(list(SETTING), sort=True)["num_env_runners"]
        weights = pd.DataFrame({"scales": grouped.nunique(), "runs": grouped.size()})
        most = weights.sort_values(["scales", "runs"], ascending=False, kind="stable").index[0]
        mine: pd.DataFrame = self.runs[(self.runs[list(SETTING)] == list(most)).all(axis=1)]
        return mine

    @property
    def cell(self) -> pd.DataFrame:
        """That setting at its largest scale, one row of the columns `CELL`."""
        first = int(column(self.setting, "num_env_runners").argmax())
        return self.setting.iloc[[first]][list(CELL)].reset_index(drop=True)

    @property
    def scales(self) -> tuple[int, ...]:
        """Scales at which that setting ran."""
        return tuple(int(each) for each in np.unique(column(self.setting, "num_env_runners")))

    @cached_property
    def fit(self) -> IterationTimeFit:
        """The iteration-time model."""
        return fit_iteration_time(self.runs)

    @property
    def described(self) -> IterationTimeFit:
        """The iteration-time model where it describes its own runs."""
        if self.fit.closure > MOST_OFF:
            raise AnalysisError(
                where="models",
                rule=f"the iteration-time model must describe its own runs to within {MOST_OFF:.0%} at their median",
                got=f"{self.fit.closure:.0%}, so that nothing is predicted from it",
                fix="Read what was measured.",
            )
        return self.fit


# --- rows of the long frame ---------------------------------------------------------------------------------------


@quantity("limit", "runners", "limit")
def limit_num_env_runners(found: Models) -> Estimate | None:
    """Runners beyond which a CPU more gives less than half its share."""
    return found.described.runner_limit(found.cell)


@quantity("limit", "1", "error of the model")
def prediction_error(found: Models) -> Estimate | None:
    """Median |predicted - measured| / measured iteration time where each number of runners in turn is held out.

    By the iteration-time model, of the setting that ran at most scales; None below three scales.
    """
    runs, mine, errors = found.runs, found.setting, list[FloatArray]()
    if len(found.scales) < 3:
        return None
    for scale in found.scales:
        held = mine[mine["num_env_runners"] == scale]
        # What is handed over is where, not what: an episode's length is measured there, and is taken away too.
        where = held[list(CELL)].assign(episode_len=np.nan)
        predicted = fit_iteration_time(runs[runs["num_env_runners"] != scale]).times(where)[0]
        errors.append(np.abs(predicted / column(held, "iteration_time_s") - 1))
    value, n = float(np.median(np.concatenate(errors))), mine["block"].nunique()
    return without_interval(value, n=n, level=LEVEL, method="each number of runners held out")


class _Place:
    """The workload of the models, and the CPUs of its numbers of runners."""

    def __init__(self, found: Models, measured: pd.DataFrame, names: Names) -> None:
        mine = found.setting["fingerprint"]
        text = mine.mode().iloc[0]
        self.scales = found.scales
        self._place = {
            "workload": names[text],
            "engine": engine_in(text),
            "train_batch_size": int(found.cell["train_batch_size"].iloc[0]),
        }
        here = measured[measured["fingerprint"].isin(mine)].dropna(subset=["num_cpus"])
        self._cpus = here.groupby("num_env_runners")["num_cpus"].min()

    def at(self, num_env_runners: int, basis: Basis) -> Row:
        """Return the columns of a number of runners, at the batch of the models; CPUs grow in a line with runners."""
        known, cpus = self._cpus, None
        if num_env_runners in known.index:
            cpus = int(known[num_env_runners])
        elif len(known):
            least, most = int(known.index[0]), int(known.index[-1])
            each = (known[most] - known[least]) / (most - least) if most > least else 1.0
            cpus = round(known[least] + each * (num_env_runners - least))
        return {**self._place, "num_env_runners": num_env_runners, "num_cpus": cpus, "basis": basis}

    def basis(self, num_env_runners: float) -> Basis:
        """Return whether a prediction lies between measured scales."""
        return "predicted" if min(self.scales) <= num_env_runners <= max(self.scales) else "extrapolated"


def model_rows(found: Models, measured: pd.DataFrame, names: Names) -> Iterator[Row]:
    """Yield what the models say of the workload that ran at most scales, where the runs allow it.

    Args:
        found: The models.
        measured: Runs whose times may be used (`scaling.selection`).
        names: What workloads are called.
    """
    with suppress(AnalysisError):
        place = _Place(found, measured, names)
        most = MOST_EXTRAPOLATED * max(place.scales)
        asked = sorted({n for n in (*ASKED, most) if min(place.scales) < n <= most} - set(place.scales))
        yield from _predicted(found, place, asked)
        if (error := prediction_error(found)) is not None:
            yield row("prediction_error", error, place.at(max(place.scales), "predicted"))
        limit = limit_num_env_runners(found)
        if limit is not None and limit.value <= most:
            yield row("limit_num_env_runners", limit, place.at(max(place.scales), place.basis(limit.value)))


def _predicted(found: Models, place: _Place, scales: Iterable[int]) -> Iterator[Row]:
    """Yield the throughput at each number of runners by the iteration-time model, in the models' setting."""
    model = found.described
    if numbers := list(scales):
        for n, rate in zip(numbers, model.predict(at_scales(found.cell, numbers)), strict=True):
            yield row("env_steps_per_s", rate, place.at(n, place.basis(n)))
