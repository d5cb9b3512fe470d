"""For tests of the mirror: a real MLflow server, what an MLflow holds, and what it should hold."""

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from mlflow import MlflowClient
from mlflow.entities import Run

from study.errors import ClusterError
from study.metrics import METRICS
from study.mirrors.tracking_uri import ask_mlflow
from study.records.folder import StudyFolder
from tests.waiting import until

Points = dict[str, set[tuple[int, int, float]]]
"""Metric -> (milliseconds, step, value)."""


Database = Path | str
"""File of an SQLite database, or URI of one on a server."""


def look(database: Database, name: str = "demo") -> list[SimpleNamespace]:
    """Return the runs of experiment `name` without the ids that differ from one to the next."""
    client = MlflowClient(database if isinstance(database, str) else f"sqlite:///{database}")
    if (experiment := client.get_experiment_by_name(name)) is None:
        return []

    def seen(run: Run) -> SimpleNamespace:
        info, data = run.info, run.data
        histories = {key: client.get_metric_history(info.run_id, key) for key in data.metrics}
        return SimpleNamespace(
            **{"name": info.run_name, "status": info.status, "start": info.start_time, "end": info.end_time},
            **{"params": data.params, "latest": data.metrics},
            tags={key: value for key, value in data.tags.items() if key != "mlflow.parentRunId"},
            key=tuple(data.tags.get(f"study.{name}", "") for name in ("id", "role", "trial", "attempt")),
            points={key: {(at.timestamp, at.step, at.value) for at in known} for key, known in histories.items()},
        )

    return [seen(run) for run in client.search_runs([experiment.experiment_id])]


def children(database: Database, name: str = "demo") -> dict[tuple[int, int], SimpleNamespace]:
    """Return the trials' runs by (trial, attempt); fails when one is there twice."""
    runs = [run for run in look(database, name) if run.tags["study.role"] == "trial"]
    found = {(int(run.tags["study.trial"]), int(run.tags["study.attempt"])): run for run in runs}
    assert len(found) == len(runs)
    return found


def parent(database: Database, name: str = "demo") -> SimpleNamespace:
    """Return the study's run; fails when there are two."""
    (run,) = [run for run in look(database, name) if run.tags["study.role"] == "study"]
    return run


def expected_points(folder: StudyFolder) -> dict[tuple[int, int], Points]:
    """Work out from the raw records what MLflow must hold: a second, naive implementation."""
    result: dict[tuple[int, int], Points] = defaultdict(lambda: defaultdict(set))
    last: dict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for raw in folder.records.read_text().splitlines():
        line = json.loads(raw)
        if "trial" not in line:
            continue
        key, now = (line["trial"], line["attempt"]), round(line["time"] * 1000)
        points = result[key]
        values: dict[str, float | None] = {}
        moment, step = now, line.get("env_steps", 0)
        match line["kind"]:
            case "trial_built":
                values = {"startup_time_s": line["startup_time_s"]}
            case "iteration":
                metrics = line["metrics"]
                values = {name: value for name, value in metrics.items() if METRICS[name].section}
                values |= {"wall_time_s": line["wall_time_s"], "env_steps": step}
            case "evaluation":
                values = {"eval_return": sum(line["returns"]) / len(line["returns"])}
            case "trial_ended":
                step = last[key][1]
                values = {
                    name: value
                    for name, value in line["summary"].items()
                    if not any(point[1:] == (step, value) for point in points.get(name, ()))
                }
                moment = max(now, last[key][0] + 1)
        last[key] = (now, step)
        for name, value in values.items():
            if value is not None:
                points[name].add((moment, step, value))
    return result


def assert_mirrored(folder: StudyFolder, database: Database, name: str = "demo") -> None:
    """Every point of the last attempt of each trial is in MLflow, and nothing else."""
    points = expected_points(folder)
    last = dict(sorted(points))  # trial -> attempt
    shown = {key: run.points for key, run in children(database, name).items()}
    assert shown == {key: points[key] for key in last.items()}


@contextmanager
def answering_server(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Answer every request so; yield the address and what was asked, with the headers."""
    seen: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            seen.append({"path": self.path, **dict(self.headers)})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 (named by the base class)

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", seen
        listening.shutdown()
        thread.join()


class Server:
    """`mlflow server` on a free port of the loopback interface, with its own SQLite database."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.database = folder / "server.db"
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--backend-store-uri", f"sqlite:///{self.database}"),
            *("--artifacts-destination", str(self._folder / "artifacts")),
        ]
        settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=os.environ | settings
            )
        until(self._answers, "the server answers")

    def _answers(self) -> bool:
        try:
            ask_mlflow(self.uri)
        except ClusterError:
            return False
        return True

    def stop(self) -> None:
        """End the server and its workers: the group that `start` made."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
