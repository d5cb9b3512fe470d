"""The per-seed results of a study in the JSON that the field's tools for statistics read: rliable and MARL-eval.

A setting at a number of runners is an algorithm there, and the environment is the task. A failed run is one of the
runs: with a score of 0, or with the return of the environment's floor.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from analysis.estimates.settings import Setting
from study.errors import AnalysisError
from study.text import count

Format = Literal["rliable", "marl-eval"]
SUITE = "gymnasium"
"""Suite of an environment whose id names none: `Acrobot-v1` has none, `ALE/Pong-v5` has ALE."""


def exported(
    settings: Iterable[Setting], evaluations: pd.DataFrame, form: Format, *, environment: str
) -> dict[str, Any]:
    """Return the runs of some settings as JSON values.

    Args:
        settings: With their runs.
        evaluations: One row per greedy evaluation: trial, env_steps, eval_return.
        form: `rliable`: algorithm -> array (runs, 1 task) of scores, or of final returns where nothing is scored.
            `marl-eval`: suite -> task -> algorithm -> `seed_1`, … -> `step_0`, … with `step_count` and the mean return
            of the evaluation, and `absolute_metrics` with the final return and the score. Of a failed run there are the
            steps that it lived to see.
        environment: Its id.

    Raises:
        AnalysisError: The format is unknown, no run has ended with its whole budget, or a failed run has no number.
    """
    if form not in get_args(Format):
        known = " or ".join(get_args(Format))
        raise AnalysisError(where="format", rule=f"must be {known}", got=f"{form!r}", fix="Name one of them.")
    algorithms = {f"{each.name}, {count(each.num_env_runners, 'runner')}": _ended(each) for each in settings}
    if not algorithms:
        rule, fix = "a run must have ended with its whole budget", "Export a search or a hold-up study that has ended."
        raise AnalysisError(where="export", rule=rule, got="none", fix=fix)
    if form == "rliable":
        return {called: runs[runs.columns[-1:]].to_numpy(dtype=float).tolist() for called, runs in algorithms.items()}
    suite, task = re.fullmatch(r"(?:(.+)[/:])?([^/:]*)", environment).groups()  # type: ignore[union-attr]
    seen = evaluations.dropna(subset=["eval_return"]).sort_values("env_steps", kind="stable").groupby("trial")
    return {
        suite or SUITE: {
            task: {
                called: {f"seed_{run['seed']}": _run(run, seen) for run in runs.to_dict("records")}
                for called, runs in algorithms.items()
            }
        }
    }


def _ended(setting: Setting) -> pd.DataFrame:
    """Return one row per run: trial, seed (a run without one: its trial), return, and score where runs are scored."""
    numbers = {"return": setting.finals} | ({"score": setting.scores} if setting.scored else {})
    if not np.isfinite([*numbers.values()][-1]).all():
        rule, got = "every run must have a number", f"{setting.name} has a run without one"
        fix = "Give `environment.floor`, the return of a run that failed, in the space."
        raise AnalysisError(where="export", rule=rule, got=got, fix=fix)
    seeds = setting.runs["seed"].fillna(setting.runs["trial"]).to_numpy(dtype=int)
    trials = setting.runs["trial"].to_numpy(dtype=int)
    return pd.DataFrame({"trial": trials, "seed": seeds, **numbers}).sort_values("seed")


def _run(run: Mapping[Any, Any], seen: Any) -> dict[str, Any]:
    rows = seen.get_group(run["trial"]) if run["trial"] in seen.groups else pd.DataFrame({"env_steps": []})
    steps = {
        f"step_{place}": {"step_count": int(row["env_steps"]), "return": [float(row["eval_return"])]}
        for place, (_, row) in enumerate(rows.iterrows())
    }
    found = {name: run[name] for name in ("return", "score") if name in run}
    return steps | {"absolute_metrics": {name: [value] for name, value in found.items() if np.isfinite(value)}}


def write(content: dict[str, Any], path: Path) -> Path:
    """Write JSON values and return the path.

    Raises:
        AnalysisError: It cannot be written.
    """
    try:
        path.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
    except OSError as error:
        got, fix = error.strerror or error, "Choose another path."
        raise AnalysisError(where=str(path), rule="must be writable", got=got, fix=fix) from error
    return path
