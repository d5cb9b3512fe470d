"""A study of ours as MLflow holds it -> `StudyData`: what the mirror sent, and in plain words what it did not.

The records say more, and are to be preferred where they are at hand.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, get_args

import msgspec
import pandas as pd

from analysis.load.mlflow_client import HISTORIES_UP_TO, Experiment, Store, StoredRun
from analysis.load.mlflow_rows import (
    attempt_of,
    effective_of,
    iterations_of,
    our_evaluations,
    our_iterations,
    our_runs,
    whole,
)
from analysis.load.problems import label_problems, outcome_problems, session_problems
from analysis.load.sheet import Session, kind_of, spec_of, study_sheet
from analysis.load.study_data import StudyData
from study.errors import AnalysisError
from study.mirrors.mlflow_content import DUPLICATE, ROLE, STUDY_ID, STUDY_STATUS, SUPERSEDED, TRIAL
from study.records.folder import FORMAT, StudyIdentity
from study.records.records import StudyClosed, StudyOpened
from study.space.space_file import unfit
from study.text import count

_PREFIX = "provenance."
_TEXTS = ("time", "hostname", "platform", "cpu_model")
"""Entries of the provenance that are text; the others are JSON."""
_MOST_SESSIONS = 1_000
"""Sessions that are looked for, the last ones."""
UNKNOWN = (
    "The study's artifact study.json cannot be read (artifacts live apart from the runs): the space is known by what "
    "its runs say, CPUs reserved are NA."
)
"""What is said where the space is not at hand."""


def our_study(store: Store, experiment: Experiment, parent: StoredRun, *, histories: bool | None) -> StudyData:
    """Read a study by its parent run and its trials' runs.

    Args:
        store: Where it is.
        experiment: Of its name.
        parent: Its run.
        histories: Whether to read what the means of the phases need; None does so for few runs.

    Raises:
        AnalysisError: It has no trial yet.
        RecordError: A parameter is not of its type.
        TrackingError: MLflow does not answer.
    """
    where = f"{store.shown}: experiment {experiment.name!r}"
    found = list(store.runs(experiment, f"tags.`{STUDY_ID}` = '{parent.tags[STUDY_ID]}' and tags.`{ROLE}` = 'trial'"))
    runs, left_out = _latest(found)
    if not runs:
        raise AnalysisError(where=where, rule="a table needs a trial", got="none yet", fix="Wait for the first one.")
    content = store.json_artifact(parent.id, "study.json")
    recorded = None if content is None else _recorded_identity(content)
    identity = recorded or _identity_by_tags(parent, experiment.name)
    spec, unread = (None, [UNKNOWN]) if recorded is None else spec_of(identity)
    sessions = _sessions_of(parent, store)
    read = histories if histories is not None else len(runs) <= HISTORIES_UP_TO
    frame = our_runs(identity, spec, runs, sessions, partial(iterations_of, store) if read else None, where=where)
    counts = Counter(frame["status"])
    planned = max(whole(parent, "num_trials") or 0, len(runs))
    return StudyData(
        name=identity.name,
        source=store.shown,
        kind=kind_of(identity, set(frame["stage"].dropna())),
        runs=frame,
        sheet=study_sheet(identity, sessions, counts=counts, num_trials=planned),
        problems=(
            *unread,
            *left_out,
            *_state(parent, frame, planned),
            *outcome_problems(frame),
            *label_problems(frame),
            *session_problems(sessions),
            *_missing(frame, runs, read=read),
        ),
        spec=spec,
        iterations=partial(our_iterations, store, runs, where=where),
        read_evaluations=partial(our_evaluations, store, runs, where=where),
    )


def _latest(found: Sequence[StoredRun]) -> tuple[list[StoredRun], list[str]]:
    """Return one run per trial, its latest attempt, and what was left out."""
    latest: dict[int, StoredRun] = {}
    gone = 0
    for run in found:
        trial = whole(run, TRIAL)
        if {SUPERSEDED, DUPLICATE} & run.tags.keys() or trial is None:
            gone += 1
            continue
        other = latest.get(trial)
        gone += other is not None
        if other is None or attempt_of(run) >= attempt_of(other):
            latest[trial] = run
    said = [f"{count(gone, 'run')} of earlier attempts or created twice: left out."] if gone else []
    return [latest[trial] for trial in sorted(latest)], said


def _state(parent: StoredRun, frame: pd.DataFrame, planned: int) -> Iterator[str]:
    status = parent.tags.get("status", "running")
    ended = int(frame["status"].isin(["finished", "failed"]).sum())
    if status == "running":
        yield (
            f"The study is still running, or its mirror has not caught up: {len(frame)} of {planned} trials have "
            "started. All figures are as of what MLflow has got."
        )
    elif status != "complete":
        yield (
            f"The study is not complete: its last session ended with {status!r}, {ended} of {planned} trials have "
            "ended."
        )


def _missing(frame: pd.DataFrame, runs: Sequence[StoredRun], *, read: bool) -> Iterator[str]:
    """Yield what MLflow does not hold, or was not asked for."""
    yield (
        "MLflow does not hold the mean time of the runners, lengths of episodes and CPU time per iteration: these are "
        "NA here. The study's folder has all of it."
    )
    if unread := sum("timing" in run.tags and effective_of(run) is None for run in runs):
        yield (
            f"MLflow does not hold what was read back from the built algorithms of {count(unread, 'trial')} (threads, "
            "classes): versions before 0.6.0 did not send it, or it was too long, or has been changed. Where another "
            "trial of their kind has it their fingerprints are made with that, else they have no entries for it."
        )
    if not read:
        implied = int(frame["timed_s"].notna().sum())
        yield (
            f"The histories of {len(frame):,} runs were not read: phases and CPU pressure are NA. The time per "
            f"iteration of {implied:,} runs follows from their latest values, since all their "
            "batches had one size. `analysis.open(…, histories=True)` reads the histories."
        )


def _recorded_identity(content: Mapping[str, Any]) -> StudyIdentity | None:
    """Return the study's identity from its artifact; None where somebody has changed it into something else."""
    try:
        known = {name: content[name] for name in StudyIdentity.__struct_fields__ if name in content}
        identity = msgspec.convert(known, StudyIdentity)
    except ValueError:
        return None
    return None if [*unfit(identity.spec)] else identity


def _identity_by_tags(parent: StoredRun, name: str) -> StudyIdentity:
    """Return the study's identity as far as the tags of its run tell."""
    return StudyIdentity(
        format=FORMAT,
        study_id=parent.tags[STUDY_ID],
        name=name,
        created=parent.start_time_s or 0.0,
        tracking_uri="",
        space=parent.tags.get("space", ""),
        spec={
            "environment": {"id": parent.params.get("environment")},
            "algorithm": parent.params.get("algorithm"),
            "description": parent.tags.get("description", ""),
        },
        digest=parent.tags.get("study.digest", ""),
    )


def _sessions_of(parent: StoredRun, store: Store) -> list[Session]:
    """Return the drivers that worked on the study; at least the last one."""
    last, planned = whole(parent, "session") or 1, whole(parent, "num_trials") or 0
    found: list[Session] = []
    for number in range(max(last - _MOST_SESSIONS, 0) + 1, last + 1):
        content = store.json_artifact(parent.id, f"provenance_session_{number}.json")
        opened = None if content is None else _opened(number, planned, content)
        if opened is None:
            if number < last:
                continue
            by_tags = _opened(number, planned, {"provenance": _provenance(parent.tags)})
            opened = by_tags or StudyOpened(session=number, num_trials=planned, cluster={}, provenance={})
        found.append(Session(opened=opened, started=_begun(opened, parent), last=None))
    found[-1].last = parent.end_time_s
    found[-1].closed = _closed(parent, last)
    return found


def _opened(session: int, num_trials: int, content: Mapping[str, Any]) -> StudyOpened | None:
    """Return the beginning of a session; None where somebody has changed its content into something else."""
    known = {name: content.get(name) or {} for name in ("cluster", "provenance")}
    try:
        return msgspec.convert({"session": session, "num_trials": num_trials, **known}, StudyOpened)
    except ValueError:
        return None


def _begun(opened: StudyOpened, parent: StoredRun) -> float:
    try:
        return datetime.fromisoformat(opened.provenance["time"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return parent.start_time_s or 0.0


def _closed(parent: StoredRun, session: int) -> StudyClosed | None:
    status, detail = parent.tags.get("status", ""), parent.tags.get("reason", "")
    if status not in STUDY_STATUS or status not in get_args(StudyClosed.__annotations__["reason"]):
        return None
    return StudyClosed(session=session, reason=status, detail="" if detail == "none" else detail)  # type: ignore[arg-type]


def _provenance(tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the nested provenance that the mirror flattened into tags."""
    result: dict[str, Any] = {}
    for key, text in sorted(tags.items()):
        if not key.startswith(_PREFIX):
            continue
        *parents, name = key.removeprefix(_PREFIX).split(".")
        node = result
        for each in parents:
            if not isinstance(node.get(each), dict):  # a tag of that name that somebody has added
                node[each] = {}
            node = node[each]
        node[name] = (
            text if name in _TEXTS or parents[:1] in (["versions"], ["environment"], ["scheduler"]) else _value(text)
        )
    return result


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
