"""Whole studies by the real command: run, extend, stop, kill, resume. Real Ray, RLlib, Optuna and MLflow on SQLite."""

import contextlib
import csv
import os
import random
import re
import signal
import subprocess
import time

import pytest
from typer.testing import CliRunner

from study.cli import commands as cli
from study.records.folder import StudyFolder
from tests.e2e.commands import SPACE, assert_whole, command, kill, ray_processes, records, run, start, wait_for
from tests.event_files import assert_files_follow

KILL_SEED = int(os.environ.get("KILL_SEED", "1"))
LONGER = SPACE.replace("env_steps: 800", "env_steps: 3000")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "space.yaml").write_text(SPACE)
    yield tmp_path
    assert not ray_processes(), "a Ray was left running"


def uri(place):
    return f"sqlite:///{place}/mlflow.db"


def table(place, name="space"):
    with (place / "studies" / name / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def killed_after(seconds, words, place):
    """Start the study, kill its driver so long after its first new record, and wait until its Ray is gone."""
    file = place / "studies" / "space" / "records.jsonl"
    size = file.stat().st_size if file.exists() else 0
    with (place / "log").open("a") as log:
        process = start(words, place, log)
        wait_for(lambda: file.exists() and file.stat().st_size > size, process)
        time.sleep(seconds)
        kill(process)
    end = time.monotonic() + 30
    while ray_processes() and time.monotonic() < end:
        time.sleep(0.2)
    assert not ray_processes()


def kinds(place, name="space"):
    return [record.kind for record in records(place / "studies" / name)]


@pytest.mark.heavy  # environments that wait, for as long as they say
def test_environments_that_wait_scale_on_few_cores(place):
    fewer = ["--set", "parameters.num_env_runners=[1, 4]", "--set", "budget.iterations=2"]
    done = run(command("--space", "waiting.yaml", *fewer), place)
    assert done.returncode == 0, done.stdout + done.stderr
    sampling = {}
    for row in table(place, "waiting"):
        assert row["execution"] == "real"
        # That depends on what else this machine does.
        assert row["timing"] in ("measured", "oversubscribed", "tainted")
        shares_cores = int(row["num_cpus"]) > len(os.sched_getaffinity(0))
        if row["timing"] == "tainted":
            assert row["timing_reason"].startswith(("foreign load on", "stolen time on"))
        else:
            assert row["timing_reason"].startswith("environments wait 4 ms a step") == shares_cores
            assert ("CPU pressure" in row["timing_reason"]) == shares_cores
        times = [
            record.metrics["sampling_time_s"]
            for record in records(place / "studies" / "waiting")
            if record.kind == "iteration" and record.trial == int(row["trial"]) and record.iteration > 1
        ]
        sampling[int(row["num_env_runners"])] = min(times)
    assert sampling[1] >= 800 * 0.004
    assert sampling[4] >= 200 * 0.004
    assert 2.5 < sampling[1] / sampling[4] <= 4.5


def typed(place, monkeypatch, *words):
    """Return what a command prints, or its error, in this process."""
    monkeypatch.chdir(place)
    result = CliRunner().invoke(cli.app, words)
    return str(result.exception) if result.exception else result.output


@pytest.mark.quick
def test_a_study_is_killed_extended_and_cannot_be_mistaken_for_another(place, monkeypatch):
    words, folder = ["--space", "space.yaml", "--resume-or-start", "--trials"], place / "studies" / "space"
    killed_after(random.Random(KILL_SEED).uniform(0, 10), command(*words, "1"), place)
    done = run(command(*words, "2"), place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "space: complete" in done.stdout
    assert f"mlflow ui --backend-store-uri {uri(place)}" in done.stdout
    assert "python -m study report studies/space" in done.stdout
    assert_whole(folder, uri(place), 2)
    rows = table(place)
    assert [row["status"] for row in rows] == ["finished"] * 2
    assert sorted(int(row["num_env_runners"]) for row in rows) == [1, 2]
    assert len({(row["train_batch_size"], row["lr"]) for row in rows}) == 2
    for row in rows:
        assert float(row["env_steps_per_s"]) > 0
        assert 0 <= float(row["final_return"]) <= 500
        assert (folder / row["checkpoint"]).is_dir()

    assert "Continue that study with --resume" in typed(place, monkeypatch, "run", "space.yaml")
    other = ["run", "space.yaml", "--resume", "--set", "parameters.num_epochs=3"]
    assert "parameters.num_epochs" in typed(place, monkeypatch, *other)
    assert_whole(folder, uri(place), 2)

    assert "2 trials there." in typed(place, monkeypatch, "sync", str(folder), "--tracking-uri", "sqlite:///copy.db")
    assert_whole(folder, f"sqlite:///{place}/copy.db", 2)
    assert not (folder / "tensorboard").exists()
    assert typed(place, monkeypatch, "sync", str(folder), "--tensorboard").endswith("2 trials there.\n")
    assert_files_follow(StudyFolder(folder))


@pytest.mark.minutes
def test_a_failing_trial_is_a_row_and_the_others_go_on(place):
    # One lane a runner: with one runner it steps 400 times and raises at 300, with two runners it never gets there.
    space = SPACE.replace("id: CartPole-v1", "id: 'tests.environments:Raises', kwargs: {at_step: 300}")
    space = space.replace("num_envs_per_env_runner: 2", "num_envs_per_env_runner: 1")
    (place / "space.yaml").write_text(space.replace("env_steps: 800", "env_steps: 400"))
    done = run(command("--space", "space.yaml", "--set", "parameters.train_batch_size=200"), place)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = table(place)
    failed = [int(row["trial"]) for row in rows if row["num_env_runners"] == "1"]
    assert [row["status"] == "failed" for row in rows] == [int(row["trial"]) in failed for row in rows]
    for row in rows:
        if row["status"] == "failed":
            reason = (
                r"env runner 1: sampling must not fail, got \w+: planted fault at step 300\. This happened in lane 0,"
            )
            assert re.match(reason, row["reason"])
            assert float(row["score"]) == 0.0
            assert row["final_return"] == ""
    assert "2 failed" in done.stdout
    assert_whole(place / "studies" / "space", uri(place), 4, failed=tuple(failed))


def on_request(*numbers):
    return [pytest.param([number], marks=pytest.mark.heavy) for number in numbers]


@pytest.mark.minutes
@pytest.mark.parametrize("numbers", [[signal.SIGTERM, signal.SIGINT], *on_request(signal.SIGUSR1)])
def test_signals_end_the_study_cleanly_and_a_resume_finishes_it(place, numbers):
    (place / "space.yaml").write_text(LONGER)
    words = command("--space", "space.yaml", "--resume-or-start", "--set", "search.num_trials=2")
    file = place / "studies" / "space" / "records.jsonl"
    for number in numbers:
        seen = kinds(place).count("iteration") if file.exists() else 0
        with (place / "log").open("w") as log:
            process = start(words if file.exists() else [*words, "--tensorboard"], place, log)
            wait_for(lambda seen=seen: file.exists() and kinds(place).count("iteration") > seen, process)
            process.send_signal(number)
            assert process.wait(timeout=120) == 75
        said = (place / "log").read_text()
        assert f"received {number.name}" in said
        assert "Resume with: " in said or "run the same command with --resume-or-start" in said
        assert "Traceback" not in said
        assert kinds(place)[-1] == "study_closed"
    done = run(words, place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_whole(place / "studies" / "space", uri(place), 2)
    assert "tensorboard --logdir studies/space/tensorboard" in done.stdout
    assert_files_follow(StudyFolder(place / "studies" / "space"))


@pytest.mark.heavy  # waits a minute for MLflow, whose cursor cannot be written either
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_ends_the_study_and_a_resume_finishes_it(place):
    (place / "space.yaml").write_text(LONGER)
    disk = place / "studies"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    words = command("--space", "space.yaml", "--resume-or-start", "--set", "search.num_trials=2")
    file = disk / "space" / "records.jsonl"
    try:
        with (place / "log").open("w") as log:
            process = start(words, place, log)
            wait_for(lambda: file.exists() and "iteration" in kinds(place), process)
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(b"x" * 4096)
            with contextlib.suppress(OSError), (disk / "filler").open("ab", buffering=0) as filler:
                while True:
                    filler.write(b"x")
            assert process.wait(timeout=180) == 75
        said = (place / "log").read_text()
        assert "No space left" in said
        assert "Fix: Free some space" in said
        assert "Traceback" not in said
        (disk / "filler").unlink()
        done = run(words, place)
        assert done.returncode == 0, done.stdout + done.stderr
        assert_whole(disk / "space", uri(place), 2)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.heavy  # waits for Ray to give up
def test_a_signal_to_the_whole_process_group_is_survived(place):
    """Schedulers and `timeout` signal every process of a job: Ray's own processes die of it too."""
    (place / "space.yaml").write_text(LONGER)
    words = command("--space", "space.yaml", "--resume-or-start", "--set", "search.num_trials=2")
    file = place / "studies" / "space" / "records.jsonl"
    with (place / "log").open("w") as log:
        process = start(words, place, log)
        wait_for(lambda: file.exists() and "iteration" in kinds(place), process)
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGTERM)  # forwarded once more, as by a shell's trap
        assert process.wait(timeout=50) == 75
    assert "--resume" in (place / "log").read_text()
    assert kinds(place)[-1] == "study_closed"
    done = run(words, place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_whole(place / "studies" / "space", uri(place), 2)


@pytest.mark.heavy  # starts two Rays
def test_two_first_starts_at_once_make_one_study(place):
    with (place / "log1").open("w") as log1, (place / "log2").open("w") as log2:
        words = command("--space", "space.yaml", "--set", "search.num_trials=2")
        both = [start(words, place, log) for log in (log1, log2)]
        codes = sorted(process.wait(timeout=200) for process in both)
    assert codes == [0, 2], (place / "log1").read_text() + (place / "log2").read_text()
    assert_whole(place / "studies" / "space", uri(place), 2)
