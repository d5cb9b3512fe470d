"""`ray job submit … -- python run_study.py …`, as a person types it, on a real Ray with a dashboard and a token."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from study.records.records import StudyOpened
from tests.e2e.clusters import Cluster
from tests.e2e.commands import ROOT, SPACE, assert_whole, records, run

pytest.importorskip("ray.dashboard.optional_deps", reason="ray[default] is not installed", exc_type=ImportError)

ONE = SPACE.replace("num_env_runners: [1, 2]", "num_env_runners: 1")
PROGRAMS = Path(sys.executable).parent
PYTHON_PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# As in an activated environment: a job's `python` is the first on the PATH of Ray.
ENVIRONMENT = ["env", f"PATH={PROGRAMS}{os.pathsep}{os.environ['PATH']}", f"PYTHONPATH={PYTHON_PATH}"]


class Ray(Cluster):
    """A head with a dashboard and a token, on loopback where Ray lets it."""

    def __init__(self) -> None:
        super().__init__()
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text("a-token-of-these-tests-" + "0" * 16)
        self.token = token.read_text()
        with contextlib.ExitStack() as probes:
            ports = [probes.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
        self.dashboard_port, self.agent_port = ports

    @property
    def settings(self) -> list[str]:
        return [*ENVIRONMENT, "RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN_PATH={self.folder / 'token'}"]

    def start(self) -> None:
        words = ["--head", f"--port={self.port}", f"--temp-dir={self.folder}", "--num-cpus=4"]
        words += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard_port}"]
        self._ray_start(*words, "--node-ip-address=127.0.0.1", f"--dashboard-agent-listen-port={self.agent_port}")

    def job(self, *words: object, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Run `ray job …`."""
        address = f"--address=http://127.0.0.1:{self.dashboard_port}"
        command = [*self.settings, str(PROGRAMS / "ray"), "job", words[0], address, *words[1:]]
        return run(list(map(str, command)), cwd, timeout=timeout)


@pytest.fixture(scope="module")
def ray():
    cluster = Ray()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def place(tmp_path):
    """A folder like a checkout: what `--working-dir .` takes along, and a place for results that stays."""
    (tmp_path / "job").mkdir()
    shutil.copy(ROOT / "run_study.py", tmp_path / "job")
    (tmp_path / "job" / "space.yaml").write_text(ONE)
    return tmp_path


def submit(ray, place, *words, job=()):
    uri = f"sqlite:///{place}/mlflow.db"
    study = ["--space", "space.yaml", "--out", place / "studies", "--tracking-uri", uri, *words]
    command = ["submit", *job, "--working-dir", ".", "--", "python", "run_study.py", *study]
    return ray.job(*command, cwd=place / "job"), uri


@pytest.mark.minutes
def test_a_study_runs_as_a_ray_job(ray, place):
    done, uri = submit(ray, place, "--trials", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout
    folder = place / "studies" / "space"
    assert_whole(folder, uri, 1)
    (opened,) = [record for record in records(folder) if isinstance(record, StudyOpened)]
    assert opened.cluster["num_cpus"] == 4, "it runs on the Ray that runs the job, not on one of its own"
    assert opened.cluster["nodes"][0]["address"] != "local"
    assert not [process for process in ray.processes() if ray.token in " ".join(process.info["cmdline"])]
