"""Every trial of a study in one table, the best first; what is equal in all of them stands above it. A view."""

from collections.abc import Mapping

import pandas as pd

from analysis.estimates.results import Results
from analysis.load import RUN_COLUMNS, StudyData
from analysis.scaling.selection import at_their_scale
from analysis.tables.grid import TableColumn
from analysis.tables.table import Table, without_rows
from study.space.parameters import PARAMETERS, SCALE

MOST_SHOWN = 60
"""Trials that a page shows; the CSV has all."""
LABELS: Mapping[str, str] = {
    SCALE: "runners",
    "train_batch_size": "batch",
    "minibatch_size": "minibatch",
    "num_epochs": "epochs",
    "num_envs_per_env_runner": "environments per runner",
    "final_return": "return",
    "env_steps_to_target": "steps to target",
    "env_steps_per_s": "steps/s",
    "wall_time_s": "training time",
    "timing": "clock",
}
OUTCOME = ("final_return", "score", "env_steps_to_target", "env_steps_per_s", "wall_time_s")
SETTING = (SCALE, *(name for name in PARAMETERS if name != SCALE))
COLUMNS = ("trial", *SETTING, "seed", "stage", *OUTCOME, "status", "timing", "reason")


def every_trial(data: StudyData, results: Results | None = None) -> Table:
    """The trials: setting, seed, what came out, and what its clock is worth."""
    results = results or Results(data)
    runs = at_their_scale(data.runs)
    if runs.empty:
        return without_rows("trials", "Every trial", "No trial has started.")
    by = [SCALE, "trial"] if data.kind == "throughput" else ["final_return", "trial"]
    runs = runs.sort_values(by, ascending=[data.kind == "throughput", True], na_position="last")
    names = [name for name in COLUMNS if name in runs and runs[name].notna().any()]
    names = [name for name in names if name == SCALE or name not in PARAMETERS or runs[name].nunique() > 1]
    frame: pd.DataFrame = runs[names].reset_index(drop=True)
    counts = ", ".join(f"{count:,} {status}" for status, count in runs["status"].value_counts().items())
    return Table(
        key="trials",
        title="Every trial",
        frame=frame.astype({name: "string" for name in names if str(frame[name].dtype) == "category"}),
        columns=tuple(
            TableColumn(
                name=name,
                unit=unit if (unit := RUN_COLUMNS[name].unit) in ("s",) else ("1" if unit else ""),
                label=LABELS.get(name, ""),
                meaning=RUN_COLUMNS[name].meaning,
            )
            for name in names
        ),
        n=len(runs),
        n_failed=results.num_failed,
        conclusion=f"{counts}; " + ("by runners." if data.kind == "throughput" else "the best return first."),
        first=(SCALE, *OUTCOME[:2]),
        most_rows=MOST_SHOWN,
    )
