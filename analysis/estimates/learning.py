"""Estimates of what was learnt: return, score and solved share of each setting. Imports pandas.

A failed run counts: as not solved, with a score of 0 and the return of the environment's floor. Where the space gives
no floor and reference there are no scores, since 0 may be a good return there.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.estimates.frame import Basis, Cell, Row, rows_of
from analysis.estimates.results import Results
from analysis.estimates.settings import Setting, arms_of_trials, small_scale
from analysis.scaling.fingerprint import fields
from analysis.scaling.results import ToTarget
from analysis.scaling.selection import as_int, as_text
from study.statistics import Estimate, FloatArray, iqm_interval, mean_interval, rate_interval


def learning_rows(results: Results) -> Iterator[Row]:
    """Yield return, score, solved share and CPU time of each setting at each number of runners."""
    data = results.data
    if data.kind == "throughput":
        return
    target = data.spec.environment.target if data.spec else None
    floor = data.spec.environment.floor if data.spec else None
    scored = data.spec.is_scored if data.spec else bool(data.runs["score"].notna().any())
    for setting in results.settings:
        yield from _rows(setting, target, floor, scored=scored)


def target_rows(results: Results) -> Iterator[Row]:
    """Yield steps to the target and what follows from them: time and CPU-hours."""
    found = results.to_target
    if not isinstance(found, ToTarget) or not found.groups:
        return
    runs = results.data.runs
    names = arms_of_trials(runs, small=small_scale(results.data))
    runs = runs.set_index("trial", drop=False)
    for group in found.groups:
        for row in group.rows:
            here = runs.loc[list(row.trials)]
            arms = {names.get(trial, "") for trial in row.trials}
            arm = arms.pop() if len(arms) == 1 else ""
            cell = Cell.of(row, environment_of(here) if arm else group.label, arm)
            estimates = {
                "steps_to_target": row.steps_to_target,
                "time_to_target_s": row.time_to_target_s,
                "cpu_hours_to_target": row.cpu_h_to_target,
            }
            basis: Basis = "emulated" if emulated(here) else "measured"
            yield from rows_of(
                cell,
                estimates,
                basis=basis,
                engine=as_text(here, "engine") or "",
                fingerprint=as_text(here, "fingerprint") or "",
                n_failed=row.n_failed,
                n_censored=row.n_censored,
            )


def emulated(runs: pd.DataFrame) -> bool:
    """Return whether the lanes of several runners were stepped in fewer processes in any of the runs."""
    return bool((runs["execution"].eq("emulated") | runs["stands_for_runners"].notna()).any())


def _rows(setting: Setting, target: float | None, floor: float | None, *, scored: bool) -> Iterator[Row]:
    runs = setting.runs
    failed = setting.failed.to_numpy(dtype=bool)
    returns = _numbers(setting, "final_return")
    finals = np.where(failed, np.nan if floor is None else floor, returns)
    finals = finals[np.isfinite(finals)]
    scores = np.where(failed, 0.0, _numbers(setting, "score"))
    spent = _numbers(setting, "cpu_s_spent")
    spent = spent[np.isfinite(spent)]
    known = bool((np.isfinite(returns) | failed).any())
    solved = None if target is None or not known else int((~failed & (returns >= target)).sum())
    estimates: dict[str, Estimate | None] = {
        "final_return": iqm_interval(finals) if finals.size else None,
        "score": mean_interval(scores) if scored and np.isfinite(scores).all() else None,
        "solved_share": None if solved is None else rate_interval(solved, len(runs)),
        "cpu_s_spent": mean_interval(spent) if spent.size else None,
    }
    cell = Cell(
        workload=environment_of(runs),
        arm=setting.name,
        num_env_runners=setting.num_env_runners,
        num_cpus=None if emulated(runs) else as_int(runs, "num_cpus"),
        train_batch_size=as_int(runs, "train_batch_size"),
    )
    basis: Basis = "emulated" if emulated(runs) else "measured"
    text = as_text(runs, "fingerprint") or ""
    engine = as_text(runs, "engine") or ""
    n_failed = int(failed.sum())
    yield from rows_of(cell, estimates, basis=basis, engine=engine, fingerprint=text, n_failed=n_failed)


def environment_of(runs: pd.DataFrame) -> str:
    """Return the environment that runs learn in; empty where it is not known, or not one."""
    found = {fields(str(each)).get("environment.id") for each in runs["fingerprint"].unique()}
    return str(found.pop()) if len(found) == 1 else ""


def _numbers(setting: Setting, name: str) -> FloatArray:
    return setting.runs[name].to_numpy(dtype=np.float64, na_value=np.nan)
