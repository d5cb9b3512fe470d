"""What the iteration-time model says of one study: throughput at other numbers of runners.

The model is fitted to the workload with most runs. Where a question needs one setting (batch, minibatch, epochs, envs
per runner), it is the one that ran at most scales. Nothing is predicted beyond `MOST_EXTRAPOLATED` times the largest
measured scale, nor by a model that does not describe its own runs.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from analysis.models.iteration_time import at_scales, column, fit_iteration_time
from analysis.quantity import Basis, Row, quantity, row
from analysis.scaling.blocks import LEVEL
from analysis.scaling.clock import engine_in
from analysis.scaling.selection import Selection
from study.errors import AnalysisError
from study.space.parameters import PARAMETERS
from study.statistics import Estimate, FloatArray, without_interval

TIMES = (
    *("iteration_time_s", "sampling_time_s", "learning_time_s", "sync_time_s", "rest_time_s"),
    *("slowest_runner_time_s", "mean_runner_time_s"),
)
SETTING = ("num_envs_per_env_runner", "train_batch_size", "minibatch_size", "num_epochs", "num_learners", "step_wait_s")
"""k, B (over all learners), m (per learner), E, L, and the known wait of one step of one environment in seconds."""
CELL = ("num_env_runners", *SETTING, "learner_threads", "episode_len")
"""n, the setting, h, and the mean length of episodes in env steps; NaN where none ended."""
CLOCK_FREE = frozenset(
    (
        *("train_batch_size", "minibatch_times_learners", "num_epochs", "num_envs_per_env_runner", "num_learners"),
        *(name for name, each in PARAMETERS.items() if each.kind is float),
        *("orthogonal_init", "evaluation"),
    )
)
"""Keys of a fingerprint that the model takes as numbers, or that leave the clock alone."""
MOST_OFF = 0.1
"""Median relative error on its own runs above which a model does not describe them."""
MOST_EXTRAPOLATED = 2
"""Times the largest measured scale up to which a number of runners has a prediction."""
ASKED = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of runners that are predicted where they lie between measured ones, or a little beyond."""


def from_runs(measured: pd.DataFrame) -> list[pd.DataFrame]:
    """Return runs whose phases are known, one frame per workload, the largest first.

    A workload is the fingerprint without what the model takes as numbers (runners, environments per runner, batch,
    minibatch, epochs, learners, the known wait of a step) and without what leaves the clock alone (learning rate and
    its like, evaluation).

    Args:
        measured: Runs whose times may be used (`scaling.selection`).

    Returns:
        A row per run: `CELL` (where it ran), `TIMES` (mean seconds of a timed iteration), `block` and `fingerprint`.
    """
    numbers = [name for name in (*CELL, *TIMES) if name != "step_wait_s"]
    frame = pd.DataFrame({name: measured[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in numbers})
    found = [_workload(str(text)) for text in measured["fingerprint"]]
    frame["workload"], frame["step_wait_s"] = [text for text, _ in found], [wait for _, wait in found]
    frame["fingerprint"], frame["block"] = measured["fingerprint"].astype(str).to_numpy(), measured["block"].to_numpy()
    for name in ("num_learners", "learner_threads"):
        frame[name] = np.maximum(np.nan_to_num(frame[name], nan=1.0), 1.0)
    # A setting's minibatch is what all learners take together.
    frame["minibatch_size"] = np.maximum(np.floor(frame["minibatch_size"] / frame["num_learners"]), 1.0)
    frame = frame.dropna(subset=[name for name in numbers if name != "episode_len"])
    groups = [group.drop(columns="workload").reset_index(drop=True) for _, group in frame.groupby("workload")]
    return sorted(groups, key=lambda group: -len(group))


def _workload(fingerprint: str) -> tuple[str, float]:
    """Return the part of a fingerprint that the model does not take as numbers, and the wait of a step in seconds."""
    content: dict[str, Any] = json.loads(fingerprint)
    kept = {key: value for key, value in content.items() if key not in CLOCK_FREE}
    environment = dict(kept.get("environment") or {})
    wait_ms = float(environment.pop("step_wait_ms", None) or 0.0)
    # Threads of the learner are a number of the model; the main process is the learner where it has no other.
    threads = {key: value for key, value in (kept.get("threads") or {}).items() if key.endswith("_runner")}
    return json.dumps(kept | {"environment": environment, "threads": threads}, sort_keys=True), wait_ms / 1e3


def setting_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the setting that ran at most scales; on a tie of that with most runs."""
    grouped = runs.groupby(list(SETTING), sort=True)["num_env_runners"]
    weights = pd.DataFrame({"scales": grouped.nunique(), "runs": grouped.size()})
    most = weights.sort_values(["scales", "runs"], ascending=False, kind="stable").index[0]
    mine: pd.DataFrame = runs[(runs[list(SETTING)] == list(most)).all(axis=1)]
    return mine


@quantity("model", "1", "error of the model")
def prediction_error(runs: pd.DataFrame) -> Estimate | None:
    """Median |predicted - measured| / measured iteration time where each number of runners in turn is held out.

    By the iteration-time model, of the setting that ran at most scales; None below three scales.
    """
    mine, errors = setting_of(runs), list[FloatArray]()
    if mine["num_env_runners"].nunique() < 3:
        return None
    for scale in mine["num_env_runners"].unique():
        held = mine[mine["num_env_runners"] == scale]
        # What is handed over is where, not what: an episode's length is measured there, and is taken away too.
        where = held[list(CELL)].assign(episode_len=np.nan)
        predicted = fit_iteration_time(runs[runs["num_env_runners"] != scale]).times(where)[0]
        errors.append(np.abs(predicted / column(held, "iteration_time_s") - 1))
    value, n = float(np.median(np.concatenate(errors))), mine["block"].nunique()
    return without_interval(value, n=n, level=LEVEL, method="each number of runners held out")


def model_rows(selection: Selection) -> Iterator[Row]:
    """Yield what the model says of the workload with most runs; nothing where it cannot be fitted or is far off them.

    Args:
        selection: The runs whose times may be used.
    """
    if not (groups := from_runs(selection.runs)):
        return
    with suppress(AnalysisError):
        fit, mine = fit_iteration_time(groups[0]), setting_of(groups[0])
        if fit.closure > MOST_OFF:
            return
        cell = mine.iloc[[int(column(mine, "num_env_runners").argmax())]][list(CELL)].reset_index(drop=True)
        scales = sorted({int(each) for each in mine["num_env_runners"]})
        text, least, largest = mine["fingerprint"].mode().iloc[0], scales[0], scales[-1]
        here = selection.runs[selection.runs["fingerprint"].isin(mine["fingerprint"])].dropna(subset=["num_cpus"])
        cpus = here.groupby("num_env_runners")["num_cpus"].min().astype(float)
        place: dict[str, Any] = {"workload": selection.names[text], "engine": engine_in(text)}
        place |= {"train_batch_size": int(cell["train_batch_size"].iloc[0])}

        def at(scale: int) -> Row:
            """Return the columns of a number of runners; its CPUs grow in a line with them."""
            basis: Basis = "predicted" if least <= scale <= largest else "extrapolated"
            return {**place, "num_env_runners": scale, "num_cpus": _cpus(cpus, scale), "basis": basis}

        most = MOST_EXTRAPOLATED * largest
        asked = sorted({n for n in (*ASKED, most) if least < n <= most} - set(scales))
        for n, rate in zip(asked, fit.predict(at_scales(cell, asked)) if asked else (), strict=True):
            yield row("env_steps_per_s", rate, at(n))
        if (error := prediction_error(groups[0])) is not None:
            yield row("prediction_error", error, at(largest))


def _cpus(known: "pd.Series[float]", num_env_runners: int) -> int | None:
    """Return the CPUs of a number of runners, on the line from the fewest to the most that ran; None without any."""
    if not len(known):
        return None
    least, most = int(known.index[0]), int(known.index[-1])
    each = (known[most] - known[least]) / (most - least) if most > least else 1.0
    line = known[least] + each * (num_env_runners - least)
    return round(float(known.get(num_env_runners, line)))
