"""The per-seed results of a study in the JSON that the field's tools for statistics read: rliable and MARL-eval.

A setting at a number of runners is an algorithm there, and the environment is the one task. A failed run is one of the
runs: with a score of 0, or with the return of the environment's floor.
"""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.estimates.settings import Setting
from study.errors import AnalysisError
from study.text import count

Format = Literal["rliable", "marl-eval"]


def exported(settings: Iterable[Setting], evaluations: pd.DataFrame, form: Format, *, environment: str) -> Any:
    """Return the runs of some settings as JSON values.

    Args:
        settings: With their runs.
        evaluations: One row per greedy evaluation: trial, env_steps, eval_return.
        form: `rliable`: algorithm -> array (runs, 1 task) of scores, or of final returns where nothing is scored.
            `marl-eval`: suite -> task -> algorithm -> `seed_1`, … -> `step_0`, … with `step_count` and the mean return
            of the evaluation, and `absolute_metrics` with the final return and the score. Of a failed run there are the
            steps that it lived to see.
        environment: Its id; `ALE/Pong-v5` is of the suite ALE, `Acrobot-v1` of gymnasium.

    Raises:
        AnalysisError: The format is unknown, no run has ended with its whole budget, or a failed run has no number.
    """
    if form not in ("rliable", "marl-eval"):
        rule = "must be rliable or marl-eval"
        raise AnalysisError(where="format", rule=rule, got=repr(form), fix="Name one of them.")
    algorithms = {f"{each.name}, {count(each.num_env_runners, 'runner')}": _runs(each) for each in settings}
    if not algorithms:
        rule, fix = "a run must have ended with its whole budget", "Export a search or a hold-up study that has ended."
        raise AnalysisError(where="export", rule=rule, got="none", fix=fix)
    if form == "rliable":
        return {name: runs.iloc[:, -1:].to_numpy(dtype=float).tolist() for name, runs in algorithms.items()}
    suite, _, task = environment.replace(":", "/").rpartition("/")
    seen = evaluations.dropna(subset=["eval_return"]).sort_values("env_steps", kind="stable")

    def seeds(runs: pd.DataFrame) -> dict[str, Any]:
        found = dict[str, Any]()
        for trial, seed, *numbers in runs.itertuples(index=False):
            own = seen.loc[seen["trial"] == trial, ["env_steps", "eval_return"]].itertuples(index=False)
            steps = {f"step_{at}": {"step_count": int(n), "return": [float(x)]} for at, (n, x) in enumerate(own)}
            final = {name: [x] for name, x in zip(runs.columns[2:], numbers, strict=True) if np.isfinite(x)}
            found[f"seed_{seed}"] = steps | {"absolute_metrics": final}
        return found

    return {suite or "gymnasium": {task: {name: seeds(runs) for name, runs in algorithms.items()}}}


def _runs(setting: Setting) -> pd.DataFrame:
    """Return one row per run: trial, seed (a run without one: its trial), return, and score where runs are scored."""
    numbers = {"return": setting.finals} | ({"score": setting.scores} if setting.scored else {})
    if not np.isfinite([*numbers.values()][-1]).all():
        rule, got = "every run must have a number", f"{setting.name} has a run without one"
        fix = "Give `environment.floor`, the return of a run that failed, in the space."
        raise AnalysisError(where="export", rule=rule, got=got, fix=fix)
    trials = setting.runs["trial"].to_numpy(dtype=int)
    seeds = setting.runs["seed"].fillna(setting.runs["trial"]).to_numpy(dtype=int)
    return pd.DataFrame({"trial": trials, "seed": seeds, **numbers}).sort_values("seed")
