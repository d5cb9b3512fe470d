"""What the records of a study become in MLflow: runs with parameters, tags and points. TensorBoard gets the points.

Everything here follows from the records alone, never from the moment of sending: what is sent again is the same.
"""

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from study.engine import UNKNOWN, engine_of_space
from study.harmless import mask_arguments, mask_credentials
from study.metrics import CUSTOM, METRICS
from study.records.folder import StudyIdentity
from study.records.ledger import Ledger, TrialRow, fold_lines
from study.records.records import Evaluation, Iteration, Line, Metrics, OfTrial, TrialBuilt, TrialEnded, TrialStarted
from study.space.spec import StudySpec

STUDY_ID, ROLE, TRIAL, ATTEMPT = "study.id", "study.role", "study.trial", "study.attempt"
"""Tags by which a run is found again."""
SUPERSEDED, DUPLICATE = "superseded", "duplicate"
"""Tags on deleted runs: why they were deleted."""
Key = tuple[int, int]
"""Trial and attempt."""
STUDY: Key = (-1, 0)
"""Key of the study's own run among those of trials and attempts."""
NUM_RECORDS = "study.records"
"""Tag of the study's run: how many records its artifact `records.jsonl.xz` holds."""
NOTE = "mlflow.note.content"
"""Tag with the text above a run's page: the answer, above that of the study's run. MLflow shows it as Markdown."""
_LONGEST_TAG = 5000
"""Characters; MLflow before 2.18 refuses longer tags, newer ones take 8000."""
_TRIAL_STATUS = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_STUDY_STATUS = {"complete": "FINISHED", "until": "FINISHED", "error": "FAILED"}
"""MLflow's status of a study that was closed for this reason; KILLED for any other."""


class Point(NamedTuple):
    """One value of one metric."""

    key: str
    value: float
    time_ms: int
    """Milliseconds since the epoch, from the record."""
    step: int
    """Environment steps trained on."""


def milliseconds(time_s: float) -> int:
    """Return seconds since the epoch as MLflow's whole milliseconds."""
    return round(time_s * 1000)


def cut(value: str) -> str:
    """Return the text of a tag, no longer than MLflow takes."""
    return value if len(value) <= _LONGEST_TAG else f"{value[: _LONGEST_TAG - 2]} …"


# --- which run -------------------------------------------------------------------------------------------------------


def key_tags(study_id: str, key: Key) -> dict[str, str]:
    """Return the tags that name a run."""
    if key == STUDY:
        return {STUDY_ID: study_id, ROLE: "study"}
    return {STUDY_ID: study_id, ROLE: "trial", TRIAL: str(key[0]), ATTEMPT: str(key[1])}


def search_text(tags: Mapping[str, str]) -> str:
    """Return the search for runs that carry these tags."""
    return " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())


def key_of(tags: Mapping[str, str]) -> Key | None:
    """Return the key of a run by its tags; None where somebody has changed them."""
    if tags.get(ROLE) == "study":
        return STUDY
    trial, attempt = tags.get(TRIAL, ""), tags.get(ATTEMPT, "")
    return (int(trial), int(attempt)) if trial.isdecimal() and attempt.isdecimal() else None


# --- the study's run -------------------------------------------------------------------------------------------------


def study_params(spec: StudySpec) -> dict[str, str]:
    """Return the parameters of the study's run, which those of its trials have too."""
    chosen_by = {"sampler": spec.search.sampler} if spec.learns else {"kind": spec.kind}
    return {"environment": spec.environment.id, "algorithm": spec.algorithm, **chosen_by}


def study_status(ledger: Ledger, *, ended: bool) -> str:
    """Return MLflow's status of the study; one that has ended and that its driver has not closed was killed."""
    if ledger.closed is not None:
        return _STUDY_STATUS.get(ledger.closed.reason, "KILLED")
    return "KILLED" if ended else "RUNNING"


def study_tags(identity: StudyIdentity, spec: StudySpec, ledger: Ledger, *, ended: bool) -> dict[str, str]:
    """Return what describes the study, its latest driver and its cluster."""
    tags = {
        "description": spec.description,
        "space": identity.space,
        "study.digest": identity.digest,
        "engine": engine_of_space(spec),
        "status": "killed" if ended else "running",
        "reason": "none",
    }
    if ledger.closed is not None:
        tags |= {"status": ledger.closed.reason, "reason": ledger.closed.detail or "none"}
    if (opened := ledger.opened) is not None:
        found, command = opened.provenance, opened.provenance.get("command") or []
        words = [word.rpartition("/")[2] for word in command]  # of a text with slashes MLflow shows the end alone
        tags |= {
            "session": str(opened.session),
            "num_trials": str(opened.num_trials),
            "cluster.num_cpus": str(opened.cluster.get("num_cpus", "")),
            "cluster.num_nodes": str(len(opened.cluster.get("nodes", []))),
            "mlflow.source.name": shlex.join(words).replace("__main__.py", "python -m study", 1),
            "mlflow.source.type": "LOCAL",
            "provenance.hostname": found.get("hostname") or "",
            "provenance.git.commit": (found.get("git") or {}).get("commit") or "",
            "provenance.versions.ray": (found.get("versions") or {}).get("ray") or "",
        }
    return {key: cut(value) for key, value in tags.items() if value}


def identity_text(identity: StudyIdentity) -> str:
    """Return the study's identity with its complete spec, for people; without passwords in URIs and in arguments."""
    content = msgspec.to_builtins(identity)
    uris = {name: mask_credentials(content[name]) for name in ("tracking_uri", "optuna_storage") if name in content}
    return json.dumps({**content, **uris, "spec": {**identity.spec, **mask_arguments(identity.spec)}}, indent=1)


# --- the run of a trial ----------------------------------------------------------------------------------------------


def trial_name(row: TrialRow) -> str:
    """Return the run's name, for people."""
    runners, stage = row.num_env_runners, f" · {row.stage}" if row.stage else ""
    return f"trial {row.trial}{stage} · {runners} runner{'s' if runners != 1 else ''}"


def trial_params(row: TrialRow, spec: StudySpec) -> dict[str, Any]:
    """Return short flat keys, the same for all trials of a study: MLflow's charts compare runs by them."""
    iterations = {} if row.iterations is None else {"iterations": row.iterations}
    staged: dict[str, Any] = {}
    if row.stage is not None:  # what a trial of a hold-up or throughput study is for
        staged = {"stage": row.stage, "variant": row.variant, "setting": row.digest}
        staged["stands_for_runners"] = row.num_env_runners
    of_row = {"seed": row.seed, "baseline": row.anchor or "none", "execution": row.execution}
    return {**row.setting, **iterations, **of_row, **staged, **study_params(spec)}


def trial_status(row: TrialRow, *, ended: bool) -> str:
    """Return MLflow's status of a trial; what still ran when the study ended was killed, until a resume."""
    return "KILLED" if ended and row.status == "running" else _TRIAL_STATUS[row.status]


def trial_tags(row: TrialRow, *, ended: bool) -> dict[str, str]:
    """Return the engine, the outcome, and how far the timings can be trusted."""
    counts = row.columns()
    tags = {
        "status": "interrupted" if ended and row.status == "running" else row.status,
        "engine": row.engine or UNKNOWN,
        "timing": row.timing or "",
        "timing_reason": row.timing_reason,
        "reason": row.reason,
        "checkpoint": row.checkpoint or "",
        "episodes_cut": f"{counts['num_cut']} of {counts['num_eval_episodes']}" if counts["num_cut"] else "",
    }
    return {key: cut(value) for key, value in tags.items() if value}


# --- points ----------------------------------------------------------------------------------------------------------


def shown(lines: Iterable[Line], ledger: Ledger, records: Path) -> Iterator[tuple[Line, list[Point]]]:
    """Yield each line with the points that it adds to its trial, and take it into the ledger thereafter.

    What an attempt said after another one had replaced it is passed over.
    """
    for line in lines:
        record, points = line.record, list[Point]()
        if isinstance(record, OfTrial) and not isinstance(record, TrialStarted) and record.trial in ledger.rows:
            row = ledger.rows[record.trial]
            if row.attempt != record.attempt:
                continue
            points = points_of(line, row)
        yield line, points
        fold_lines([line], records, ledger)


def points_of(line: Line, row: TrialRow) -> list[Point]:
    """Return what a record of a trial adds to the metrics of its run; nothing for a quantity that does not exist.

    Args:
        line: The record.
        row: The trial as it was before the record.
    """
    record, time_ms, step = line.record, milliseconds(line.time), 0
    values: Metrics = {}
    match record:
        case TrialBuilt():
            values = {"startup_time_s": record.startup_time_s}
        case Iteration():
            step, values = record.env_steps, _values_of(record)
        case Evaluation():
            step, values = record.env_steps, {"eval_return": record.mean}
        case TrialEnded():
            # The last iteration has said some of it, at the same step.
            said = _values_of(row.last_iteration) if row.last_iteration else {}
            values = {
                name: value
                for name, value in record.summary.items()
                if name in METRICS and (name not in said or said[name] != value)
            }
            step = max((each.env_steps for each in (row.last_iteration, row.last_evaluation) if each), default=0)
            # MLflow's latest value has the largest (step, time): that of the summary must be after the last one's.
            time_ms = max(time_ms, milliseconds(row.last_seen) + 1)
    return [
        Point(key, float(value), time_ms, step)
        for key, value in values.items()
        if value is not None and math.isfinite(value)
    ]


def _values_of(record: Iteration) -> Metrics:
    metrics, episodes = record.metrics, record.metrics.get("num_episodes")
    values = {
        name: value
        for name, value in metrics.items()
        if name.startswith(CUSTOM)
        or (name in METRICS and METRICS[name].grain == "iteration" and METRICS[name].mirrored)
    }
    if episodes and (total := metrics.get("episode_return_sum")) is not None:
        values["training_return"] = total / episodes
    so_far = {"wall_time_s": record.wall_time_s, "env_steps": record.env_steps}
    return values | so_far | {"env_steps_per_s": metrics.get("env_steps_per_s")}
