"""Study folders with invented records, for tests of everything behind the records."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from study.mirrors.mlflow_mirror import MlflowMirror
from study.mirrors.process import sync
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, TrialRow
from study.records.records import (
    Evaluation,
    Iteration,
    Record,
    RecordLog,
    StudyClosed,
    StudyOpened,
    TrialBuilt,
    TrialEnded,
    TrialStarted,
)
from study.space.spec import StudySpec
from tests import reported
from tests.spaces import spec
from tests.values import replace

PROVENANCE = {
    "git": {"commit": "abc", "dirty": False},
    "versions": {"ray": "2.60.0"},
    "hostname": "here",
    "command": ["/opt/study/__main__.py", "run", "spaces/demo.yaml"],
}
CLUSTER = {"num_cpus": 8, "nodes": [{"address": "n0", "num_cpus": 8}]}


def make_folder(
    path: Path,
    tracking_uri: str = "sqlite:////nowhere.db",
    of: StudySpec | None = None,
    *,
    text: str = "environment: {}\n",
    **identity: Any,
) -> StudyFolder:
    """Create a study without records: its MLflow, its space, what its file says, and fields of its identity."""
    of, folder, name = of or spec(), StudyFolder(path), identity.get("name", "demo")
    usual = {"format": 1, "study_id": f"id-{name}", "name": name, "created": time.time(), "space": "test.yaml"}
    made = {**usual, "tracking_uri": tracking_uri, "spec": of.to_json(), "digest": of.digest(), **identity}
    folder.prepare()
    folder.write(StudyIdentity(**made), text)
    folder.table.write_text("trial,status\n")
    return folder


def sync_mlflow(folder: StudyFolder) -> int:
    """Send to MLflow what it has not got; return the number of records."""
    return sync(MlflowMirror(folder))


def append(folder: StudyFolder, *records: Record) -> None:
    """Write records as drivers do: each session's with a log of its own."""
    sessions: list[list[Record]] = [[]]
    for record in records:
        if isinstance(record, StudyOpened):
            sessions.append([])
        sessions[-1].append(record)
    for session in sessions:
        with RecordLog(folder.records) as log:
            for record in session:
                log.append(record)


def fold(records: Iterable[tuple[Record, float]]) -> Ledger:
    """Return the state that records, with their times, lead to."""
    ledger = Ledger()
    for record, moment in records:
        ledger.apply(record, moment)
    return ledger


def opened(session: int = 1) -> StudyOpened:
    return StudyOpened(session=session, num_trials=3, cluster=CLUSTER, provenance=PROVENANCE)


def closed(reason: Any = "complete", session: int = 1) -> StudyClosed:
    return StudyClosed(session=session, reason=reason)


def started(trial: int, attempt: int = 1, *, runners: int = 2, execution: Any = "real") -> TrialStarted:
    return TrialStarted(
        trial=trial,
        attempt=attempt,
        seed=5,
        setting={"num_env_runners": runners, "train_batch_size": 400, "lr": 0.00025},
        proposed={"train_batch_size": 401, "lr": 0.00025},
        iterations=None,
        anchor=None,
        optuna_number=trial,
        num_cpus=runners + 1,
        execution=execution,
    )


def row(trial: int, **changes: Any) -> TrialRow:
    """Return a trial that runs as the ledger knows it."""
    ledger = Ledger()
    ledger.apply(started(trial), 0.0)
    return replace(ledger.rows[trial], **changes)


def built(trial: int, attempt: int = 1) -> TrialBuilt:
    return TrialBuilt(
        trial=trial,
        attempt=attempt,
        startup_time_s=3.5,
        effective={"lr": 0.00025, "num_learners": 0, "torch_threads_learner": 2, "learner_class": "LeanPPOLearner"},
        processes_per_node={"n1": 1, "n0": 2},
        timing="oversubscribed",
        timing_reason="3 processes on 2 cores",
    )


def iteration(trial: int, number: int, attempt: int = 1, **metrics: float | None) -> Iteration:
    values: dict[str, float | None] = {"train_batch_size_actual": 400.0, "entropy": None}
    values |= {"env_steps_per_s": 800.0, "rest_time_s": 0.01, "kl": 0.01 * number}  # the rest is not mirrored
    values |= {"episode_return_sum": 30.0 * number, "num_episodes": float(number - 1)}  # none in the first iteration
    values["training_return"] = 30.0 * number / (number - 1) if number > 1 else None
    return reported.iteration(number, trial=trial, attempt=attempt, steps=400, seconds=0.5, **values | metrics)


def evaluation(trial: int, number: int, attempt: int = 1) -> Evaluation:
    return reported.evaluation(iteration(trial, number, attempt), 10.0, 20.0, 60.0, progress=0.5)


def ended(trial: int, status: Any = "finished", attempt: int = 1) -> TrialEnded:
    finished = status == "finished"
    return TrialEnded(
        trial=trial,
        attempt=attempt,
        status=status,
        reason="" if finished else f"because of {status}",
        summary={
            "env_steps_per_s": 777.0,
            "final_return": 30.0 if finished else None,
            "score": 0.5 if finished else 0.0,
            "wall_time_s": 1.5,
        },
        checkpoint="checkpoints/trial_00000" if finished else None,
        timing="oversubscribed",
        timing_reason="3 processes on 2 cores",
    )


def whole_trial(trial: int, status: Any = "finished", attempt: int = 1, *, length: int = 3) -> Iterator[Record]:
    """Yield all records of one attempt."""
    yield started(trial, attempt)
    yield built(trial, attempt)
    for number in range(1, length + 1):
        yield iteration(trial, number, attempt)
    yield evaluation(trial, length, attempt)
    yield ended(trial, status, attempt)
