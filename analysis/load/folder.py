"""A study folder -> `StudyData`: its frames, its sheet, and what a reader must know first. No engine is imported."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.frames import Session, Trials, iterations_frame
from analysis.load.study_data import Kind, StudyData
from study.errors import AnalysisError, SpaceError
from study.records.folder import StudyFolder, StudyIdentity, meant_by
from study.text import count

_SPEC = (
    *("description", "environment", "algorithm", "parameters", "model", "runner", "learner"),
    *("execution", "budget", "search", "holdup", "throughput", "evaluation", "resources", "rllib"),
)
"""Sections of a space that the sheet has."""
_HARDWARE = ("hostname", "platform", "cpu_model", "physical_cpus", "logical_cpus", "usable_cpus", "memory_mb")
_OF_SESSION = ("versions", "hardware", "scheduler", "commit", "dirty", "cluster")


def from_folder(path: str | Path) -> StudyData:
    """Read a study folder, packed or not, finished or not.

    Raises:
        AnalysisError: There is no study, or it has not begun.
        RecordError: The records cannot be trusted.
    """
    folder = StudyFolder(Path(path))
    if not folder.exists():
        mlflow = "a tracking URI such as sqlite:///mlflow.db and the study's name"
        raise AnalysisError(
            where=str(path),
            rule="must be the folder of a study",
            got="none (study.json is missing)",
            fix=f"{meant_by(folder.path).rstrip('.')}, or {mlflow}.",
        )
    identity, problems = folder.identity(), list[str]()
    try:
        spec = identity.parse()
    except SpaceError as error:
        spec = None
        problems.append(
            f"The space is not one of this version ({len(error.faults)} faults, the first: {error.faults[0]}): it is "
            "shown as it was written, and what needs it is left out."
        )
    if not folder.records.exists():
        raise AnalysisError(
            where=str(path),
            rule="a study must have records",
            got="none (records.jsonl is missing)",
            fix="Wait for its first trial, or restore the file.",
        )
    trials = Trials(identity, folder.records)
    if not trials.sessions:
        raise AnalysisError(
            where=str(path),
            rule="a study needs a session",
            got=f"none yet ({trials.num_lines} other records)",
            fix="Wait until it has begun, or restore records.jsonl from a backup.",
        )
    runs = trials.runs_frame()
    problems += _problems(runs, trials, folder.records.name)
    return StudyData(
        name=identity.name,
        source=str(path),
        kind=_kind(identity, {row.stage for row in trials.rows}),
        runs=runs,
        sheet=_sheet(identity, trials),
        problems=tuple(problems),
        spec=spec,
        iterations=partial(iterations_frame, folder.records),
        evaluations=trials.evaluations_frame,
        ledger=trials.ledger,
        folder=folder,
    )


def _kind(identity: StudyIdentity, stages: set[str | None]) -> Kind:
    """Return the kind of a study by its space, and by the stages of its trials where a space says less."""
    spec = identity.spec
    if spec.get("kind") == "throughput" or spec.get("throughput") or "throughput" in stages:
        return "throughput"
    return "holdup" if spec.get("holdup") or any(stages) else "search"


# --- the sheet ----------------------------------------------------------------------------------------------------


def _sheet(identity: StudyIdentity, trials: Trials) -> dict[str, Any]:
    """Return what is the same for all trials, or known per session, as JSON values."""
    sessions = [_session(each) for each in trials.sessions]
    return {
        "name": identity.name,
        "study_id": identity.study_id,
        "digest": identity.digest,
        "created": date(identity.created),
        "space": identity.space,
        **{name: identity.spec.get(name) for name in _SPEC},
        **{name: sessions[-1][name] for name in _OF_SESSION},
        "first_record": sessions[0]["started"],
        "last_record": sessions[-1]["ended"],
        "num_trials": max(trials.ledger.num_trials, len(trials.rows)),
        "counts": dict(trials.ledger.counts()),
        "sessions": sessions,
    }


def _session(session: Session) -> dict[str, Any]:
    provenance, git = session.opened.provenance, session.opened.provenance.get("git") or {}
    hardware: dict[str, Any] = {name: provenance.get(name) for name in _HARDWARE}
    physical, logical = hardware["physical_cpus"], hardware["logical_cpus"]
    return {
        "session": session.opened.session,
        "started": date(session.started),
        "ended": date(session.last),
        "end": session.closed.reason if session.closed else None,
        "detail": session.closed.detail if session.closed else "",
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        "versions": provenance.get("versions") or {},
        # `smt`: whether a core runs more than one hardware thread.
        "hardware": {**hardware, "smt": logical > physical if physical and logical else None},
        "scheduler": provenance.get("scheduler"),
        "cluster": session.opened.cluster,
        "command": provenance.get("command") or [],
    }


def date(time_s: float) -> str:
    """Return seconds since the epoch as a date of UTC."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


# --- what a reader must know ----------------------------------------------------------------------------------------


def _problems(runs: pd.DataFrame, trials: Trials, results: str) -> Iterator[str]:
    """Yield what is missing, unfinished or odd in a study folder, and what can still be shown."""
    ledger, counts = trials.ledger, trials.ledger.counts()
    begun, planned = len(runs), max(ledger.num_trials, len(runs))
    if ledger.closed is None:
        yield (
            f"The study is still running, or its driver was killed: {begun} of {planned} trials have started, "
            f"{counts['running']} of them have no end. All figures are as of the last record."
        )
    elif ledger.closed.reason != "complete":
        detail = f" ({ledger.closed.detail})" if ledger.closed.detail else ""
        yield (
            f"The study is not complete: its last session ended with {ledger.closed.reason!r}{detail}, "
            f"{counts['finished'] + counts['failed']} of {planned} trials have ended. `--resume` finishes it."
        )
    if ledger.closed is not None and counts["running"]:
        yield f"{count(counts['running'], 'trial')} without an end, though no driver is at work: shown as running."
    if counts["interrupted"]:
        yield f"{count(counts['interrupted'], 'interrupted trial')}: shown as such, without a score, in no mean."
    finished = runs["status"] == "finished"
    if runs["iterations"].isna().all() and finished.any():
        yield (
            f"{results} holds no training iterations: rates and totals are those of the trials' summaries, phases of "
            "an iteration cannot be shown."
        )
