"""MLflow: one experiment for the name of a study, one run for the study, one below it for each attempt of a trial.

What a kill leaves between MLflow and the state of its mirror is sent again, and leaves the same: MLflow stores a point
of equal key, time, step and value once, and runs are known by their tags. The records go along as an artifact of the
study's run, by which `analysis` reads the study. A trial's run that somebody deletes is made again only if it goes on.
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
import zlib
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

from msgspec import structs

from study.engine import UNKNOWN, engine_of_space
from study.mirrors.mirror import Mirror, Point, milliseconds
from study.mirrors.tracking_uri import ask_mlflow, mlflow_client, sqlite_path
from study.records.folder import StudyFolder, StudyIdentity
from study.records.ledger import Ledger, TrialRow
from study.records.records import Evaluation, Iteration, Line, OfTrial, StudyOpened, read_lines
from study.space.parameters import RULES, SCALE
from study.space.spec import StudySpec
from study.text import count, markdown, mask_arguments, mask_credentials, printable

_log = logging.getLogger(__name__)

UPLOAD_S = 60.0
"""Seconds at least between two uploads of the records while a study runs."""
_MOST_POINTS, _MOST_RUNS = 800, 50_000
"""Of a batch, of which MLflow takes 1000; of a study: MLflow's limit of one answer."""
STUDY_ID, ROLE, TRIAL, ATTEMPT = "study.id", "study.role", "study.trial", "study.attempt"
"""Tags by which a run is found again."""
Key = tuple[int, int]
"""Trial and attempt; `STUDY` is that of the study's own run."""
STUDY: Key = (-1, 0)
NUM_RECORDS = "study.records"
"""Tag of the study's run: how many records its artifact `records.jsonl.xz` holds."""
NOTE = "mlflow.note.content"
"""Tag with the text above a run's page: the answer, above that of the study's run. MLflow shows it as Markdown."""
_STATUS = {
    **{"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED"},
    **{"complete": "FINISHED", "until": "FINISHED", "error": "FAILED"},
}
"""MLflow's status of a trial with this status, or of a study that was closed for this reason; KILLED for any other."""


class MlflowMirror(Mirror):
    """Sends one study to one MLflow."""

    key, name = "mlflow", "MLflow"

    def __init__(self, folder: StudyFolder) -> None:
        super().__init__(folder)
        self._runs: dict[Key, str] = {}
        """The run of each attempt, and of the study."""
        self._uploaded, self._next_upload = 0, 0.0
        """Bytes of the records that this mirror has uploaded; when the next upload is due (`time.monotonic`)."""

    @property
    def address(self) -> str:
        """The tracking URI that the study was started with."""
        return self.identity.tracking_uri

    def open(self) -> None:
        """Find or create the study, and go on where the last mirror stopped."""
        ask_mlflow(self.address)
        self._client = mlflow_client(self.address)
        if (database := sqlite_path(self.address)) is not None:
            create_database(database)
        self._experiment = self._find_or_create_experiment()
        self._client.set_experiment_tag(self._experiment, *saved_view(self.identity, self.spec))
        self._find_runs()
        if STUDY not in self._runs:
            self._create(STUDY)
        self._client.update_run(self._runs[STUDY], status="RUNNING")
        state = self.state
        if (state.experiment_id, state.parent_run_id) == (self._experiment, self._runs[STUDY]):
            there = takewhile(lambda line: line.end <= state.offset, read_lines(self.folder.records))
            for _ in self.shown(there):
                pass
        if self.cursor != (state.offset, state.seq):  # a power cut has taken what MLflow has
            self.ledger, self.last = Ledger(), None
        self.note(experiment_id=self._experiment, parent_run_id=self._runs[STUDY])

    def send(self, lines: list[Line]) -> None:
        """Send records, and upload the file of them, if it is time.

        A session's beginning is uploaded at once, so that who reads a study that goes on does not take it for ended.
        """
        points, changed = defaultdict[Key, list[Point]](list), set[Key]()
        for line, added in self.shown(lines):
            record = line.record
            key = (record.trial, record.attempt) if isinstance(record, OfTrial) else STUDY
            points[key] += added
            if not isinstance(record, (Iteration, Evaluation)):
                changed.add(key)
        self._deliver(points, changed)
        if time.monotonic() >= self._next_upload or any(isinstance(line.record, StudyOpened) for line in lines):
            self._upload_records()

    def end(self) -> None:
        """Show the study as ended, with the answer, tables, report and films; one that is not closed was killed."""
        running = {(row.trial, row.attempt) for row in self.ledger.rows.values() if row.status == "running"}
        self._deliver({}, {STUDY, *running}, ended=True)
        self._find_runs()
        if self.answer:
            self._client.set_tag(self._runs[STUDY], NOTE, self.answer)
            first_line = self.answer.partition("\n")[0].strip("*")  # the list shows no bold type
            self._client.set_experiment_tag(self._experiment, NOTE, first_line[:5000])  # MLflow's limit
        self._upload_records()
        folder = self.folder
        for part in (folder.table, folder.certificate, folder.certificate_page, folder.report, folder.clips):
            if part.exists():  # MLflow takes a folder too
                self._store(self._client.log_artifact, local_path=str(part))

    # --- runs ----------------------------------------------------------------------------------------------------

    def _find_or_create_experiment(self) -> str:
        """Return the experiment of the study's name; studies of one name share it and differ by their tags."""
        if (experiment := self._client.get_experiment_by_name(self.identity.name)) is not None:
            return str(experiment.experiment_id)
        # A folder beside an SQLite database, absolute for `mlflow ui`; a server chooses itself.
        database, folder = sqlite_path(self.address), re.sub(r"[^\w.-]", "_", self.identity.name)
        location = None if database is None else str(database.parent / "mlruns" / folder)
        # Without the tag MLflow 3 opens the experiment as one of language models.
        tags = {"mlflow.experimentKind": "custom_model_development"}
        return str(self._client.create_experiment(self.identity.name, artifact_location=location, tags=tags))

    def _find_runs(self) -> None:
        """Learn which runs the study has, and leave one for itself and one for the latest attempt of each trial.

        A creation that timed out for us and still succeeded leaves a second run, which has no params; it may come late.
        """
        text = f"tags.`{STUDY_ID}` = '{self.identity.study_id}'"
        runs = [*self._client.search_runs([self._experiment], text, max_results=_MOST_RUNS)]
        runs.sort(key=lambda run: (not run.data.params, run.info.run_id))
        self._runs = {}
        for run in runs:
            key = int(run.data.tags.get(TRIAL, STUDY[0])), int(run.data.tags.get(ATTEMPT, STUDY[1]))
            if self._runs.setdefault(key, run.info.run_id) != run.info.run_id:
                self._client.delete_run(run.info.run_id)
        self._drop_replaced()

    def _create(self, key: Key) -> None:
        tags = {STUDY_ID: self.identity.study_id, ROLE: "study" if key == STUDY else "trial"}
        if key == STUDY:
            name, began = self.identity.name, self.identity.created
            answer = "The answer comes here at the end of the study, or with `python -m study sync STUDY`."
            tags[NOTE] = f"{markdown(printable(self.spec.description))}\n\n{answer}"
        else:
            row = self.ledger.rows[key[0]]
            stage, began = f" · {row.stage}" if row.stage else "", row.started
            name = f"trial {row.trial}{stage} · {count(row.num_env_runners, 'runner')}"
            tags |= {TRIAL: str(key[0]), ATTEMPT: str(key[1]), "mlflow.parentRunId": self._runs[STUDY]}
        made = self._client.create_run(self._experiment, start_time=milliseconds(began), tags=tags, run_name=name)
        self._runs[key] = str(made.info.run_id)

    def _deliver(self, points: dict[Key, list[Point]], changed: Iterable[Key], *, ended: bool = False) -> None:
        """Send points, and of changed runs all that describes them."""
        from mlflow.entities import Metric, Param, RunTag

        for key in sorted({*changed, *points}):
            if key != STUDY and key[1] < self.ledger.rows[key[0]].attempt:
                continue
            if key not in self._runs:
                self._create(key)
            run_id = self._runs[key]
            metrics = [Metric(each.key, each.value, each.time_ms, each.step) for each in points.get(key, ())]
            for start in range(0, len(metrics), _MOST_POINTS):
                self._client.log_batch(run_id, metrics=metrics[start : start + _MOST_POINTS])
            if key not in changed:
                continue
            status, end = "", self.last.time if self.last else self.identity.created
            if key == STUDY:
                params, tags = study_params(self.spec), study_tags(self.spec, self.ledger, ended=ended)
                status = self.ledger.closed.reason if self.ledger.closed else "running"
            else:
                row = self.ledger.rows[key[0]]
                params, tags = trial_params(row, self.spec), trial_tags(row, ended=ended)
                status, end = row.status, row.ended_at or end
            self._client.log_batch(
                run_id,
                params=[Param(name, str(value)) for name, value in params.items()],
                tags=[RunTag(name, value) for name, value in tags.items() if value],
            )
            if ended or status != "running":
                shown = "KILLED" if status == "running" else _STATUS.get(status, "KILLED")
                self._client.set_terminated(run_id, status=shown, end_time=milliseconds(end))
            elif key == STUDY:  # MLflow keeps an earlier end until the next one
                self._client.update_run(run_id, status="RUNNING")
        self._drop_replaced()

    def _drop_replaced(self) -> None:
        """Delete the runs of all attempts but the last of each trial."""
        latest = dict(sorted(self._runs))
        for trial, attempt in [*self._runs]:
            if attempt < latest[trial]:
                self._client.delete_run(self._runs.pop((trial, attempt)))

    # --- artifacts -----------------------------------------------------------------------------------------------

    def _store(self, call: Callable[..., object], **arguments: Any) -> bool:
        """Store an artifact; return whether that went well. A store that fails while MLflow works holds up nothing."""
        try:
            call(self._runs[STUDY], **arguments)
        except Exception as error:  # noqa: BLE001 (every kind of artifact store raises its own)
            self._client.get_run(self._runs[STUDY])  # raises when MLflow is away: sent again later
            _log.warning("an artifact could not be stored: %s", error)
            return False
        return True

    def _upload_records(self) -> None:
        """Upload the study's identity and the records that were sent, where some of them are new."""
        begun, (end, seq) = time.monotonic(), self.cursor
        if end == self._uploaded:
            return
        text, file_name = identity_text(self.identity), self.folder.identity_file.name
        self._store(self._client.log_text, text=text, artifact_file=file_name)
        with self.folder.records.open("rb") as file, tempfile.TemporaryDirectory() as place:
            packed = Path(place) / self.folder.packed_records.name
            packed.write_bytes(lzma.compress(file.read(end), preset=0))  # 2 s for 66 MB; 6 takes 50 s
            if self._store(self._client.log_artifact, local_path=str(packed)):
                self._uploaded = end
                self._client.set_tag(self._runs[STUDY], key=NUM_RECORDS, value=str(seq))
        now = time.monotonic()
        self._next_upload = now + max(UPLOAD_S, 20 * (now - begun))  # a twentieth of the time at most


# --- what runs say ----------------------------------------------------------------------------------------------------


def study_params(spec: StudySpec) -> dict[str, str]:
    """Return the parameters of the study's run, which those of its trials have too."""
    chosen_by = {"sampler": spec.search.sampler} if spec.learns else {"kind": spec.kind}
    return {"environment": spec.environment.id, "algorithm": spec.algorithm, **chosen_by}


def study_tags(spec: StudySpec, ledger: Ledger, *, ended: bool) -> dict[str, str]:
    """Return what describes the study and how it stands."""
    closed, found = ledger.closed, ledger.opened.provenance if ledger.opened else {}
    words = [word.rpartition("/")[2] for word in found.get("command") or []]  # MLflow would cut at the last slash
    return {
        "engine": engine_of_space(spec),
        "status": closed.reason if closed else "killed" if ended else "running",
        "reason": (closed.detail if closed else "") or "none",
        "mlflow.source.name": shlex.join(words).replace("__main__.py", "python -m study", 1),
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": (found.get("git") or {}).get("commit") or "",
    }


def page_of(experiment: str, study_id: str) -> str:
    """Return what follows the address of MLflow's pages to open the saved view of a study's trials."""
    return f"/#/experiments/{experiment}/runs?viewStateShareKey={study_id}"


def saved_view(identity: StudyIdentity, spec: StudySpec) -> tuple[str, str]:
    """Return the experiment's tag, key and value, by which MLflow's page lists the study's trials, the best first.

    The names in it are those of MLflow 3.17. Without it the page has no column of a parameter or a result, and the
    bare address of an experiment opens an overview of the traces of language models.
    """
    best = "metrics.`final_return`" if spec.learns else "metrics.`env_steps_per_s`"
    varied = dict.fromkeys([SCALE, "train_batch_size", "lr", *(name for name in spec.tuned if name not in RULES)])
    columns = [best, "metrics.`env_steps_per_s`", "metrics.`wall_time_s`", "tags.`timing`"]
    columns = [*dict.fromkeys((*(f"params.`{name}`" for name in varied), *columns))]
    state = {
        "searchFilter": f"tags.`{STUDY_ID}` = '{identity.study_id}' AND tags.`{ROLE}` = 'trial'",
        "orderByKey": best,
        "orderByAsc": False,
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": dict.fromkeys(columns, 130),
    }
    packed = b64encode(zlib.compress(json.dumps(state).encode())).decode()
    created = milliseconds(identity.created)
    view = {"name": identity.name, "createdAt": created, "updatedAt": created, "state": f"deflate;{packed}"}
    return f"mlflow.sharedViewState.{identity.study_id}", json.dumps(view)


def identity_text(identity: StudyIdentity) -> str:
    """Return the study's identity with its complete spec, for people; without passwords in its URI and arguments."""
    spec = {**identity.spec, **mask_arguments(identity.spec)}
    shown = structs.replace(identity, tracking_uri=mask_credentials(identity.tracking_uri), spec=spec)
    return json.dumps(structs.asdict(shown), indent=1)


def trial_params(row: TrialRow, spec: StudySpec) -> dict[str, Any]:
    """Return short flat keys, the same for all trials of a study: MLflow's charts compare runs by them."""
    params = {**row.setting, "seed": row.seed, "baseline": row.anchor or "none", "execution": row.execution}
    if row.iterations is not None:
        params["iterations"] = row.iterations
    if row.stage is not None:  # what a trial of a hold-up or throughput study is for
        params |= {"stage": row.stage, "variant": row.variant, "setting": row.digest}
        params["stands_for_runners"] = row.num_env_runners
    return {**params, **study_params(spec)}


def trial_tags(row: TrialRow, *, ended: bool) -> dict[str, str]:
    """Return the engine, the outcome, and how far the timings can be trusted; empty where it is not known."""
    return {
        "status": "interrupted" if ended and row.status == "running" else row.status,
        "engine": row.engine or UNKNOWN,
        "timing": row.timing or "",
        "timing_reason": row.timing_reason,
        "reason": row.reason,
        "checkpoint": row.checkpoint or "",
    }


def create_database(path: Path) -> None:
    """Create MLflow's SQLite database at `path`, whole or not at all; one that is there stays as it is.

    MLflow makes its tables in place, for seconds; a database that a kill leaves half-made it never opens again.
    """
    if path.exists():
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "mlflow.db"
        mlflow_client(f"sqlite:///{made}").search_experiments(max_results=1)
        with contextlib.suppress(OSError):  # one of another process is there now; or no links: MLflow makes its own
            os.link(made, path)
