"""MLflow: one experiment for the name of a study, one run for the study, one below it for each attempt of a trial.

What a kill leaves between MLflow and the state of its mirror is sent again, and leaves the same: MLflow stores a point
of equal key, time, step and value once, and runs are known by their tags. The records themselves go along as an
artifact of the study's run, by which `analysis` reads the study from MLflow.

A trial's run that somebody deletes stays deleted. Without the study's own run, or its experiment, MLflow gets nothing
until it is restored there.
"""

import contextlib
import json
import logging
import lzma
import os
import re
import shlex
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from study.engine import UNKNOWN, engine_of_space
from study.errors import TrackingError
from study.harmless import markdown, mask_arguments, mask_credentials, printable
from study.mirrors.mirror import Mirror, Point, milliseconds, shown
from study.mirrors.tracking_uri import mlflow_client, reached, sqlite_path
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, TrialRow
from study.records.records import Evaluation, Iteration, Line, OfTrial, StudyOpened, TrialStarted, read_lines
from study.space.spec import StudySpec

_log = logging.getLogger(__name__)

UPLOAD_S = 60.0
"""Seconds at least between two uploads of the records while a study runs."""
_MOST_POINTS = 800
"""Of a batch: MLflow takes 1000."""
_MOST_RUNS = 50_000
"""Of a study: MLflow's limit of one answer."""

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


class MlflowMirror(Mirror):
    """Sends one study to one MLflow."""

    key, name, place = "mlflow", "MLflow", "tracking URI"

    def __init__(self, folder: StudyFolder) -> None:
        super().__init__(folder)
        self._identity = folder.identity()
        self._runs: dict[Key, str | None] = {}
        """The run of each attempt, and of the study; None where it was deleted, and its records are passed over."""
        self._uploaded, self._next_upload = 0, 0.0
        """Bytes of the records that this mirror has uploaded; when the next upload is due (`time.monotonic`)."""

    @classmethod
    def address_of(cls, folder: StudyFolder) -> str:
        """Return the tracking URI that the study was started with."""
        return folder.identity().tracking_uri

    def open(self) -> tuple[int, int]:
        """Find or create the study, and go on where the last mirror stopped.

        Raises:
            TrackingError: The study was deleted in MLflow.
        """
        self._client = mlflow_client(reached(self.address))
        if (database := sqlite_path(self.address)) is not None:
            create_database(database)
        self._spec, self._ledger, self._time = self._identity.parse(), Ledger(), self._identity.created
        self._experiment = self._find_or_create_experiment()
        self._find_runs()
        if STUDY not in self._runs:
            self._create(STUDY)
        if self._runs[STUDY] is None:
            raise self._deleted("the study's run")
        state, end, seq = self.state, 0, 0
        if (state.experiment_id, state.parent_run_id) == (self._experiment, self._runs[STUDY]):
            for line in read_lines(self.folder.records):
                if line.end > state.offset:
                    break
                self._time, end, seq = line.time, line.end, line.seq + 1
                for _ in shown([line], self._ledger, self.folder.records):
                    pass  # its points are there
        if (end, seq) != (state.offset, state.seq):  # a power cut has taken what MLflow has
            self._ledger, end, seq = Ledger(), 0, 0
        self.note(experiment_id=self._experiment, parent_run_id=self._runs[STUDY], offset=end, seq=seq)
        return end, seq

    def send(self, lines: list[Line]) -> None:
        """Send records, and upload the file of them, if it is time.

        A session's beginning is uploaded at once, so that who reads a study that goes on does not take it for ended.
        """
        points: dict[Key, list[Point]] = defaultdict(list)
        changed: set[Key] = set()
        for line, added in shown(lines, self._ledger, self.folder.records):
            record = line.record
            key = (record.trial, record.attempt) if isinstance(record, OfTrial) else STUDY
            if isinstance(record, TrialStarted) and (earlier := self._ledger.rows.get(record.trial)) is not None:
                self._deliver(points, changed)
                points.clear()
                changed.clear()
                self._drop((earlier.trial, earlier.attempt))
            if added:
                points[key] += added
            if not isinstance(record, (Iteration, Evaluation)):
                changed.add(key)
            self._time = line.time
        self._deliver(points, changed)
        end, seq = (lines[-1].end, lines[-1].seq + 1) if lines else (self._offset, self._seq)
        begins = any(isinstance(line.record, StudyOpened) for line in lines)
        if begins:
            text = identity_text(self._identity)
            self._store(self._client.log_text, text=text, artifact_file=self.folder.identity_file.name)
        self._upload_records(end, seq, at_once=begins)

    def show_status(self, *, ended: bool) -> None:
        """Show the study as running: its driver is alive; or as ended. One that its driver has not closed was killed.

        With the end come the answer, the tables, and what was made on request: the report, films.
        """
        if not ended:
            self._client.update_run(self._runs[STUDY], status="RUNNING")
            return
        running = {(row.trial, row.attempt) for row in self._ledger.rows.values() if row.status == "running"}
        self._deliver({}, {STUDY, *running}, ended=True)
        self._find_runs()
        if self.answer:
            self._client.set_tag(self._runs[STUDY], NOTE, cut(self.answer))
            first_line = cut(self.answer.partition("\n")[0].strip("*"))  # the list shows no bold type
            self._client.set_experiment_tag(self._experiment, NOTE, first_line)
        for _ in range(2):  # a store that fails once
            self._upload_records(self._offset, self._seq, at_once=True)
        folder = self.folder
        for file in (folder.table, folder.certificate, folder.certificate_page):
            self._upload(file)
        for part in (folder.report, folder.clips):
            if part.is_dir():
                self._store(self._client.log_artifacts, local_dir=str(part), artifact_path=part.name)

    # --- runs ----------------------------------------------------------------------------------------------------

    def _find_or_create_experiment(self) -> str:
        """Return the experiment of the study's name; studies of one name share it and differ by their tags."""
        name, client = self._identity.name, self._client
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            # A folder beside an SQLite database, absolute for `mlflow ui`; a server chooses itself.
            database, location = sqlite_path(self.address), None
            if database is not None:
                location = str(database.parent / "mlruns" / re.sub(r"[^\w.-]", "_", name))
            # Without the tag MLflow 3 opens the experiment as one of language models.
            tags = {"mlflow.experimentKind": "custom_model_development"}
            return str(client.create_experiment(name, artifact_location=location, tags=tags))
        if experiment.lifecycle_stage != "active":
            raise self._deleted(f"experiment {name!r}")
        return str(experiment.experiment_id)

    def _deleted(self, what: str) -> TrackingError:
        rule, got = f"{what} must not be deleted", "a deleted one: the study goes on without MLflow"
        fix = "Restore it with `mlflow experiments restore` or `mlflow runs restore`, then run `python -m study sync`."
        return TrackingError(where=f"tracking URI {mask_credentials(self.address)}", rule=rule, got=got, fix=fix)

    def _find_runs(self) -> None:
        """Learn which runs the study has, and leave one for itself and one for the latest attempt of each trial.

        A creation that timed out for us and still succeeded leaves a second run, which has no params; it may come late.
        """
        from mlflow.entities import ViewType

        text = f"tags.`{STUDY_ID}` = '{self._identity.study_id}'"
        runs = [*self._client.search_runs([self._experiment], text, ViewType.ALL, max_results=_MOST_RUNS)]
        runs.sort(key=lambda run: (not run.data.params, run.info.run_id))
        self._runs = {}
        for run in runs:
            if (key := key_of(run.data.tags)) is None:
                continue
            if run.info.lifecycle_stage != "active":
                self._runs.setdefault(key, None)
            elif self._runs.get(key):
                self._delete(run.info.run_id, DUPLICATE)
            else:
                self._runs[key] = run.info.run_id
        latest = dict(sorted(self._runs))  # trial -> its last attempt
        for trial, attempt in list(self._runs):
            if attempt < latest[trial]:
                self._drop((trial, attempt))

    def _create(self, key: Key) -> None:
        tags = key_tags(self._identity.study_id, key)
        if key == STUDY:
            name, began = self._identity.name, self._identity.created
            answer = "The answer comes here at the end of the study, or with `python -m study sync STUDY`."
            tags[NOTE] = cut(f"{markdown(printable(self._spec.description))}\n\n{answer}")
        else:
            row = self._ledger.rows[key[0]]
            name, began = trial_name(row), row.started
            tags["mlflow.parentRunId"] = self._runs[STUDY] or ""
        made = self._client.create_run(self._experiment, start_time=milliseconds(began), tags=tags, run_name=name)
        self._runs[key] = str(made.info.run_id)

    def _deliver(self, points: dict[Key, list[Point]], changed: Iterable[Key], *, ended: bool = False) -> None:
        """Send points, and of changed runs all that describes them; nothing to a run that was deleted."""
        from mlflow.entities import Metric, Param, RunTag

        for key in dict.fromkeys((*changed, *points)):
            if key not in self._runs:
                self._create(key)
            if (run_id := self._runs[key]) is None:
                continue
            metrics = [Metric(each.key, each.value, each.time_ms, each.step) for each in points.get(key, ())]
            for start in range(0, len(metrics), _MOST_POINTS):
                self._client.log_batch(run_id, metrics=metrics[start : start + _MOST_POINTS])
            if key not in changed:
                continue
            if key == STUDY:
                params, tags = (
                    study_params(self._spec),
                    study_tags(self._identity, self._spec, self._ledger, ended=ended),
                )
                closed, end = self._ledger.closed, self._time
                status = _STUDY_STATUS.get(closed.reason, "KILLED") if closed else "RUNNING"
            else:
                row = self._ledger.rows[key[0]]
                params, tags = trial_params(row, self._spec), trial_tags(row, ended=ended)
                status, end = _TRIAL_STATUS[row.status], row.ended_at or self._time
            # What its driver has not closed was killed when it ended, until a resume.
            status = "KILLED" if ended and status == "RUNNING" else status
            self._client.log_batch(
                run_id,
                params=[Param(name, str(value)) for name, value in params.items()],
                tags=[RunTag(name, value) for name, value in tags.items()],
            )
            if status != "RUNNING":
                self._client.set_terminated(run_id, status=status, end_time=milliseconds(end))
            elif key == STUDY:  # MLflow keeps an earlier end until the next one
                self._client.update_run(run_id, status="RUNNING")

    def _drop(self, key: Key) -> None:
        if (run_id := self._runs.get(key)) is not None:
            self._delete(run_id, SUPERSEDED)
        self._runs[key] = None

    def _delete(self, run_id: str, why: str) -> None:
        self._client.set_tag(run_id, key=why, value="true")
        self._client.delete_run(run_id)

    # --- artifacts -----------------------------------------------------------------------------------------------

    def _upload(self, path: Path) -> bool:
        """Put a file among the study's artifacts, if it exists."""
        return path.exists() and self._store(self._client.log_artifact, local_path=str(path))

    def _store(self, call: Callable[..., object], **arguments: Any) -> bool:
        """Store an artifact; return whether that went well. A store that fails while MLflow works holds up nothing."""
        try:
            call(self._runs[STUDY], **arguments)
        except Exception as error:  # noqa: BLE001 (every kind of artifact store raises its own)
            self._client.get_run(self._runs[STUDY])  # raises when MLflow is away: sent again later
            _log.warning("an artifact could not be stored: %s", error)
            return False
        return True

    def _upload_records(self, end: int, seq: int, *, at_once: bool) -> None:
        """Upload the records before a byte, where something is new and it is time, and the table of trials."""
        begun = time.monotonic()
        if end == self._uploaded or not (at_once or begun >= self._next_upload):
            return
        with self.folder.records.open("rb") as file, tempfile.TemporaryDirectory() as place:
            packed = Path(place) / self.folder.packed_records.name
            packed.write_bytes(lzma.compress(file.read(end), preset=0))  # 2 s for 66 MB; 6 takes 50 s
            if self._upload(packed):
                self._uploaded = end
                self._client.set_tag(self._runs[STUDY], key=NUM_RECORDS, value=str(seq))
        self._upload(self.folder.table)
        now = time.monotonic()
        self._next_upload = now + max(UPLOAD_S, 20 * (now - begun))  # a twentieth of the time at most


# --- what runs say ----------------------------------------------------------------------------------------------------


def cut(value: str) -> str:
    """Return the text of a tag, no longer than MLflow takes."""
    return value if len(value) <= _LONGEST_TAG else f"{value[: _LONGEST_TAG - 2]} …"


def key_tags(study_id: str, key: Key) -> dict[str, str]:
    """Return the tags that name a run."""
    if key == STUDY:
        return {STUDY_ID: study_id, ROLE: "study"}
    return {STUDY_ID: study_id, ROLE: "trial", TRIAL: str(key[0]), ATTEMPT: str(key[1])}


def key_of(tags: Mapping[str, str]) -> Key | None:
    """Return the key of a run by its tags; None where somebody has changed them."""
    if tags.get(ROLE) == "study":
        return STUDY
    trial, attempt = tags.get(TRIAL, ""), tags.get(ATTEMPT, "")
    return (int(trial), int(attempt)) if trial.isdecimal() and attempt.isdecimal() else None


def study_params(spec: StudySpec) -> dict[str, str]:
    """Return the parameters of the study's run, which those of its trials have too."""
    chosen_by = {"sampler": spec.search.sampler} if spec.learns else {"kind": spec.kind}
    return {"environment": spec.environment.id, "algorithm": spec.algorithm, **chosen_by}


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


def create_database(path: Path) -> None:
    """Create MLflow's SQLite database at `path`, whole or not at all; one that is there stays as it is.

    MLflow makes its tables in place, for seconds; a database that a kill leaves half-made it never opens again.
    """
    if path.exists():
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "mlflow.db"
        client = mlflow_client(f"sqlite:///{made}")
        client.search_experiments(max_results=1)
        with contextlib.suppress(OSError):  # one of another process is there now; or no links: MLflow makes its own
            os.link(made, path)
