"""`ray job submit … -- python run_study.py …`, as a person types it, on a real Ray with a dashboard and a token."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from study.records.records import StudyOpened
from tests.e2e.commands import ROOT, SPACE, assert_whole, records, run

pytest.importorskip("ray.dashboard.optional_deps", reason="ray[default] is not installed", exc_type=ImportError)

ONE = SPACE.replace("num_env_runners: [1, 2]", "num_env_runners: 1")
LONGER = ONE.replace("env_steps: 800", "env_steps: 3000")
PROGRAMS = Path(sys.executable).parent
RAY = str(PROGRAMS / "ray")
PYTHON_PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# As in an activated environment: a job's `python` is the first on the PATH of Ray.
ENVIRONMENT = ["env", f"PATH={PROGRAMS}{os.pathsep}{os.environ['PATH']}", f"PYTHONPATH={PYTHON_PATH}"]


class Ray:
    """A head with a dashboard, on loopback where Ray lets it, in a folder of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rj", dir="/tmp"))  # sockets have at most 107 bytes of path
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text("a-token-of-these-tests-" + "0" * 16)
        self.token = token.read_text()
        self.settings = [*ENVIRONMENT, "RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN_PATH={token}"]
        with contextlib.ExitStack() as probes:
            ports = [probes.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(3)]
        self.port, self.dashboard_port, self.agent_port = ports

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def start(self) -> None:
        words = ["--head", f"--port={self.port}", f"--temp-dir={self.folder}", "--num-cpus=4", "--disable-usage-stats"]
        words += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard_port}"]
        words += ["--node-ip-address=127.0.0.1", f"--dashboard-agent-listen-port={self.agent_port}"]
        done = run([*self.settings, RAY, "start", *words], self.folder, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def job(self, *words: object, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """Run `ray job …`."""
        command = [*self.settings, RAY, "job", words[0], f"--address={self.dashboard}", *words[1:]]
        return run(list(map(str, command)), cwd, timeout=timeout)

    def processes(self) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.folder) in word for word in process.info["cmdline"] or [])
        ]

    def stop(self) -> None:
        mine = {process for parent in self.processes() for process in (parent, *parent.children(recursive=True))}
        for process in mine:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(mine, timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)


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


@pytest.mark.heavy
def test_a_mistake_fails_the_job_and_says_so(ray, place):
    done, _ = submit(ray, place, "--set", "budget.env_stepz=1")
    assert done.returncode == 1
    assert "budget.env_stepz" in done.stdout
    assert "Fix:" in done.stdout or "Did you mean" in done.stdout
    assert not (place / "studies").exists()


@pytest.mark.heavy
def test_a_stopped_job_is_resumed_by_another(ray, place):
    (place / "job" / "space.yaml").write_text(LONGER)
    again = ("--trials", 2, "--resume-or-start")
    done, uri = submit(ray, place, *again, job=["--no-wait", "--submission-id", "first"])
    assert done.returncode == 0, done.stdout + done.stderr
    folder = place / "studies" / "space"
    end = time.monotonic() + 120
    while not (folder / "records.jsonl").exists() or "iteration" not in {each.kind for each in records(folder)}:
        assert time.monotonic() < end, ray.job("logs", "first", cwd=place).stdout
        time.sleep(0.2)
    done = ray.job("stop", "first", cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    status = ray.job("status", "first", cwd=place).stdout
    assert "was stopped" in status, status
    before = [record.trial for record in records(folder) if record.kind == "trial_ended"]

    done, _ = submit(ray, place, *again)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_whole(folder, uri, 2)
    assert len(before) < 2, "it was stopped in the middle"
