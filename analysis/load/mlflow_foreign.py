"""An MLflow experiment that other people's RLlib scripts wrote -> `StudyData`, with what is not known left NA.

Ray's `MLflowLoggerCallback`, `setup_mlflow` or plain `mlflow.log_metrics` of results; old and new API stack.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from analysis.load import rllib_names as names
from analysis.load.arrays import frame_of_lines
from analysis.load.columns import EVALUATION_COLUMNS, ITERATION_COLUMNS, RUN_COLUMNS
from analysis.load.foreign_history import Iterations, iterations_of
from analysis.load.foreign_settings import Settings, keys_of, settings_of
from analysis.load.mlflow_client import HISTORIES_UP_TO, Experiment, Store, StoredRun
from analysis.load.problems import outcome_problems
from analysis.load.sheet import date
from analysis.load.study_data import StudyData
from study.errors import AnalysisError
from study.space.parameters import SCALE
from study.text import count

UNKNOWN = "unknown: not recorded by this project"
_STATUS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "interrupted"}
_PHASES = ("sampling_time_s", "learning_time_s", "sync_time_s", "rest_time_s")


def foreign_study(store: Store, experiment: Experiment, *, histories: bool | None) -> StudyData:
    """Read an experiment as runs of RLlib.

    Args:
        store: Where it is.
        experiment: Its name.
        histories: Whether to read the history of every run; None does so for few runs.

    Raises:
        AnalysisError: It has no run, or none of RLlib.
        TrackingError: MLflow does not answer.
    """
    where = f"{store.shown}: experiment {experiment.name!r}"
    found = list(store.runs(experiment))
    if not found:
        raise AnalysisError(
            where=where,
            rule="a table needs a run",
            got="none",
            fix="Name another experiment.",
            code="experiment-without-runs",
        )
    runs = [run for run in found if _is_rllib(run)]
    if not any(_has_signs(run) for run in runs):
        some = sorted({key for run in found for key in run.metrics})
        shown = ", ".join(some[:8]) + (f" and {len(some) - 8} more" if len(some) > 8 else "")
        raise AnalysisError(
            where=where,
            rule="must hold a study of this project or runs of RLlib",
            got=f"{count(len(found), 'run')} with {f'the metrics {shown}' if some else 'no metric'}",
            fix="Name another experiment.",
            code="no-runs-of-rllib",
        )
    read = histories if histories is not None else len(runs) <= HISTORIES_UP_TO
    details = {run.id: _iterations(store, run) for run in runs} if read else {}
    lines = [_line(number, run, experiment.name, details.get(run.id)) for number, run in enumerate(runs)]
    frame = frame_of_lines(lines, RUN_COLUMNS, where=where)
    return StudyData(
        name=experiment.name,
        source=store.shown,
        kind="foreign",
        runs=frame,
        sheet=_sheet(experiment, runs, frame),
        problems=tuple(_problems(found, runs, frame, details, read=read)),
        iterations=partial(_all_iterations, store, runs, where=where),
        read_evaluations=partial(_all_evaluations, store, runs, where=where),
    )


def _has_signs(run: StoredRun) -> bool:
    found = keys_of(frozenset(run.metrics))
    timers = (key for each in names.TIMERS.values() for timer in each for key in timer.keys)
    return any(found.first(names.METRICS[name]) for name in names.SIGNS) or found.first(timers) is not None


def _is_rllib(run: StoredRun) -> bool:
    """Return whether it is a run of RLlib; one that failed before its first result is known by its parameters."""
    return _has_signs(run) or (not run.metrics and Settings(run.params, {}).number(names.PARAMS[SCALE]) is not None)


def _iterations(store: Store, run: StoredRun) -> Iterations:
    return iterations_of(run.metrics, partial(store.history, run.id))


def _line(number: int, run: StoredRun, name: str, iterations: Iterations | None) -> dict[str, Any]:
    found = keys_of(frozenset(run.metrics))

    def latest(metric: str) -> float | None:
        key = found.first(names.METRICS[metric])
        value = run.metrics[key] if key is not None else np.nan
        return float(value) if abs(value) < names.HUGE else None

    iteration, steps = latest(names.ITERATION), latest("env_steps")
    return {
        "study": name,
        "trial": number,
        "status": _STATUS.get(run.status, "running"),
        "execution": "real",
        "timing_reason": UNKNOWN,
        "iterations": int(iteration) if iteration is not None else None,
        "env_steps": int(steps) if steps is not None else None,
        "wall_time_s": latest("wall_time_s"),
        **settings_of(Settings(run.params, run.metrics)),
        **(_timed(iterations) if iterations is not None else {}),
        "started": run.start_time_s,
        "ended": run.end_time_s,
    }


def _timed(iterations: Iterations) -> dict[str, Any]:
    """Return what the iterations after the first known one add up to: differences of totals, so gaps do no harm."""
    numbers, values = iterations.iteration, iterations.values
    if len(numbers) < 2:
        return {}
    span = int(numbers[-1] - numbers[0])
    line: dict[str, Any] = {"timed_iterations": span}
    seconds, steps = _span(values.get("wall_time_s")), _span(values.get("env_steps"))
    if seconds is not None and seconds > 0:
        line |= {"timed_s": seconds, "iteration_time_s": seconds / span}
    if steps is not None:
        line |= {"timed_env_steps": int(steps)}
    if "timed_s" in line and "timed_env_steps" in line:
        line["env_steps_per_s"] = line["timed_env_steps"] / line["timed_s"]
    for name in _PHASES:
        timed = values.get(name, np.full(len(numbers), np.nan))[1:]
        if len(timed) == span and not np.isnan(timed).any():
            line[name] = float(np.mean(timed))
    return line


def _span(total: np.ndarray[Any, Any] | None) -> float | None:
    """Return by how much a cumulative series grew; None where an end is missing or it fell."""
    if total is None or np.isnan(total[[0, -1]]).any():
        return None
    known = total[~np.isnan(total)]
    return float(total[-1] - total[0]) if (np.diff(known) >= 0).all() else None


def _all_iterations(store: Store, runs: Sequence[StoredRun], *, where: str) -> pd.DataFrame:
    lines = [line for number, run in enumerate(runs) for line in _iterations(store, run).rows(number)]
    return frame_of_lines(lines, ITERATION_COLUMNS, where=where)


def _all_evaluations(store: Store, runs: Sequence[StoredRun], *, where: str) -> pd.DataFrame:
    lines: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        found = keys_of(frozenset(run.metrics))
        key, steps_key = found.first(names.METRICS[names.EVAL_RETURN]), found.first(names.METRICS["env_steps"])
        if key is None:
            continue
        steps = dict(store.history(run.id, steps_key)) if steps_key else {}
        for step, value in store.history(run.id, key):
            if abs(value) < names.HUGE:
                at = steps.get(step)
                lines.append({"trial": number, "env_steps": None if at is None else int(at), "eval_return": value})
    return frame_of_lines(lines, EVALUATION_COLUMNS, where=where)


def _sheet(experiment: Experiment, runs: Sequence[StoredRun], frame: pd.DataFrame) -> dict[str, Any]:
    environments = {Settings(run.params, {}).text(names.ENVIRONMENT) for run in runs}
    started = [run.start_time_s for run in runs if run.start_time_s is not None]
    ended = [run.end_time_s for run in runs if run.end_time_s is not None]
    return {
        "name": experiment.name,
        "environment": {"id": environments.pop() if len(environments) == 1 else None},
        "algorithm": None,
        "versions": {},
        "hardware": {},
        "scheduler": None,
        "commit": None,
        "first_record": date(min(started)) if started else None,
        "last_record": date(max(ended)) if ended else None,
        "num_trials": len(runs),
        "counts": dict(Counter(frame["status"])),
        "sessions": [],
        "runs": [{"trial": number, "run_id": run.id, "name": run.name} for number, run in enumerate(runs)],
    }


def _confounds(frame: pd.DataFrame) -> Iterator[str]:
    """Yield the settings that no two numbers of runners have in common: they changed with the runners."""
    for name in ("train_batch_size", "minibatch_size", "num_epochs", "num_envs_per_env_runner", "num_learners"):
        known = frame.dropna(subset=[SCALE, name])
        scales = known[SCALE].astype(int)
        values = {scale: sorted(set(known[name][scales == scale].astype(float))) for scale in sorted(set(scales))}
        every = [each for of_scale in values.values() for each in of_scale]
        if len(values) > 1 and len(set(every)) == len(every):
            told = "; ".join(
                f"{scale} runners: {', '.join(f'{each:,.0f}' for each in some)}" for scale, some in values.items()
            )
            yield f"{name} changed with the runners ({told}): a ratio of these rates is no speed-up by runners."


def _problems(
    found: Sequence[StoredRun],
    runs: Sequence[StoredRun],
    frame: pd.DataFrame,
    details: Mapping[str, Iterations],
    *,
    read: bool,
) -> Iterator[str]:
    """Yield what other people's runs do not tell."""
    yield (
        "This experiment was not written by this project: whether processes shared cores is unknown, so no time here "
        "is `measured`. Engine, versions and hardware are unknown too: equal fingerprints do not prove equal workloads."
    )
    if other := len(found) - len(runs):
        yield f"{count(other, 'run')} of {len(found)} without RLlib's metrics: left out."
    if open_runs := int((frame["status"] == "running").sum()):
        yield f"{count(open_runs, 'run')} without an end in MLflow: Ray's callback leaves runs so when time ran out."
    for name in (SCALE, "train_batch_size", "minibatch_size", "num_epochs", "num_learners", "seed", "num_cpus"):
        if unknown := int(frame[name].isna().sum()):
            yield f"{name} is not known of {unknown} of {len(frame)} runs: neither parameters nor configuration say it."
    yield from _confounds(frame)
    yield from outcome_problems(frame)
    yield "final_return is NA: RLlib's returns are those of exploring episodes, see training_return in the iterations."
    if any(keys_of(frozenset(run.metrics)).first(names.METRICS[names.EVAL_RETURN]) for run in runs):
        yield "The runs evaluate: time_this_iter_s holds the evaluation, so rates are those of training and evaluation."
    if not read:
        yield (
            f"The histories of {len(runs):,} runs were not read: rates, times per iteration and phases are NA. "
            "`analysis.open(…, histories=True)` reads them."
        )
        return
    notes = Counter(note for each in details.values() for note in each.notes)
    for note, number in notes.most_common():
        yield f"{count(number, 'run')}: {note}."
