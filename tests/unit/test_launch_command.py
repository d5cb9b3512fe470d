"""`python -m study launch` up to the scheduler: what it writes, shows and refuses."""

import os
import re
import stat

import pytest
from typer.testing import CliRunner

from study.cli import app
from study.errors import ClusterError, LaunchError, SpaceError
from study.launch.job import LaunchJob

WHOLE = ("launch", "slurm", "acrobot_workers.yaml", "--nodes", "2")
TWO = (*WHOLE, "--cpus-per-node", "48", "--walltime", "1h30m")
SBATCH = """#!/bin/bash
[[ $1 == --test-only ]] && { echo "sbatch: Job 5 to start at 2026-11-22T08:00:00 using 96 processors" >&2; exit; }
echo "17;cluster"
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def script_with(place, monkeypatch, name, text):
    (place / "bin").mkdir(exist_ok=True)
    (place / "bin" / name).write_text(text)
    (place / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")


def test_print_shows_the_job_and_writes_nothing(place):
    result = launch(*TWO, "--print", "--", "--account=rl")
    assert result.exit_code == 0, result.output
    assert "#SBATCH --account=rl" in result.output
    assert "Reserves at most 144.0 CPU-hours" in result.output  # 2 x 48 x 1.5
    assert "The first node carries Ray's head" in result.output
    assert list(place.iterdir()) == []


def test_a_submission_says_id_start_log_and_tunnels(place, monkeypatch):
    script_with(place, monkeypatch, "sbatch", SBATCH)
    result = launch(*TWO, "--set", "evaluation.episodes=4", "--tensorboard")
    assert result.exit_code == 0, result.output
    for words in ("foresees a start at 2026-11-22 08:00:00", "Submitted as job 17", "job-17.log", "ssh -N -L 5000:"):
        assert words in result.output
    folder = place / "studies" / "acrobot_workers.launch"
    assert stat.S_IMODE((folder / "job.sh").stat().st_mode) == 0o700
    job = LaunchJob.read(folder / "launch.json")
    assert job.study == str(place / "studies" / "acrobot_workers")
    assert job.run[-3:] == ("--tensorboard", "--set", "evaluation.episodes=4")
    assert job.run[job.run.index("--space") + 1].endswith("search_spaces/acrobot_workers.yaml")


def test_what_the_scheduler_refuses_is_told_in_its_words(place, monkeypatch):
    script_with(place, monkeypatch, "sbatch", "#!/bin/bash\necho 'sbatch: error: invalid partition' >&2; exit 1\n")
    result = launch(*TWO)
    assert isinstance(result.exception, LaunchError)
    assert "invalid partition" in str(result.exception)
    assert "Fix:" in str(result.exception)


def test_without_the_scheduler_the_front_end_is_named(place, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    result = launch(*TWO)
    assert "sbatch: must be on this machine's PATH" in str(result.exception)


def test_a_trial_that_can_never_fit_is_refused_before_the_queue():
    result = launch(*WHOLE, "--cpus-per-node", "4", "--set", "execution=real")
    assert isinstance(result.exception, ClusterError)


@pytest.mark.parametrize(
    ("words", "place_of"),
    [
        (("launch", "slurm", "quickstart.yaml", "--hosts", "a"), "--hosts"),
        (("launch", "ssh", "quickstart.yaml"), "--hosts"),
        (("launch", "ssh", "quickstart.yaml", "--hosts", "a", "--nodes", "2"), "--nodes"),
        (("launch", "ssh", "quickstart.yaml", "--hosts", "a", "--", "--account=x"), "after --"),
        (("launch", "slurm", "quickstart.yaml", "--besteffort"), "--besteffort"),
        (("launch", "slurm", "quickstart.yaml", "--walltime", "soon"), "--walltime"),
        (("launch", "slurm", "quickstart.yaml", "--walltime", "30s"), "--walltime"),
        (("launch", "slurm", "quickstart.yaml", "--name", "../x"), "--name"),
        (("launch", "slurm", "quickstart.yaml", "--until", "race"), "--until"),
        (("launch", "kuberay", "quickstart.yaml"), "--image"),
        (("launch", "slurm", "no_such_space.yaml"), "no_such_space.yaml"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(place, words, place_of):
    result = launch(*words)
    assert isinstance(result.exception, SpaceError), result.output
    assert place_of in str(result.exception)
    assert list(place.iterdir()) == []


def test_ray_up_writes_its_files_for_nobody_else(place):
    result = launch("launch", "ray-up", "quickstart.yaml", "--hosts", "me@lab-1:4,lab-2:8", "--head-ip", "10.0.0.1")
    assert result.exit_code == 0, result.output
    folder = place / "studies" / "quickstart.launch"
    assert {file.name for file in folder.iterdir()} == {"cluster.yaml", "ray.token"}
    assert all(stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 for file in folder.iterdir())
    assert "ray up --yes" in result.output
    assert (folder / "ray.token").read_text() not in result.output


def test_kuberay_writes_a_manifest_and_recipes(place):
    words = ("--image", "registry.example.org/study:1", "--cpus-per-node", "8", "--nodes", "3")
    result = launch("launch", "kuberay", "quickstart.yaml", *words)
    assert result.exit_code == 0, result.output
    folder = place / "studies" / "quickstart.launch"
    assert {file.name for file in folder.iterdir()} == {"rayjob.yaml", "Containerfile", "apptainer.def"}
    assert "kubectl" in result.output


def test_a_name_that_kubernetes_would_not_take_is_made_one(place):
    words = (
        "--image",
        "registry.example.org/study:1",
        "--cpus-per-node",
        "8",
        "--name",
        "2026_A.very-long-name-of-a-study",
    )
    result = launch("launch", "kuberay", "quickstart.yaml", *words, "--print")
    assert result.exit_code == 0, result.output
    (name,) = set(re.findall(r"s-2026-a-very-lo\w+-[0-9a-f]{6}\b", result.output))
    assert len(name) <= 24
    longer = launch("launch", "kuberay", "quickstart.yaml", *words[:-1], f"{words[-1]}-2", "--print")
    assert name not in longer.output


def test_pods_into_which_no_trial_fits_are_refused(place):
    words = ("--image", "registry.example.org/study:1", "--cpus-per-node", "16", "--nodes", "1")
    memory = ("--set", "execution=real", "--set", "resources.memory_per_env_runner_mb=2000")
    result = launch("launch", "kuberay", "quickstart.yaml", *words, *memory, "--memory-gb", "2")
    assert isinstance(result.exception, ClusterError), result.output
    assert "worker 1: 16 CPUs, 2048 MB" in str(result.exception)
    assert list(place.iterdir()) == []
    assert launch("launch", "kuberay", "quickstart.yaml", *words, *memory, "--memory-gb", "64").exit_code == 0


def test_two_people_and_two_studies_get_two_clusters_of_ray_up(place, monkeypatch):
    def name(study, user="me"):
        monkeypatch.setattr("getpass.getuser", lambda: user)
        words = ("--hosts", "lab-1:4,lab-2:8", "--head-ip", "10.0.0.1", "--name", study, "--print")
        result = launch("launch", "ray-up", "quickstart.yaml", *words)
        assert result.exit_code == 0, result.output
        (found,) = re.findall(r'^cluster_name: "([a-z0-9-]{1,24})"$', result.output, re.MULTILINE)
        return found

    long = "a-study-of-a-very-long-name"
    names = {name("lab"), name("lab", "you"), name(f"{long}-1"), name(f"{long}-2")}
    assert len(names) == 4
    assert name("lab") in names
    assert name("lab").startswith("lab-")


def test_a_head_that_only_knows_itself_is_refused(place, monkeypatch):
    monkeypatch.setattr("socket.gethostbyname", lambda host: "127.0.1.1")
    result = launch("launch", "ray-up", "quickstart.yaml", "--hosts", "lab-1:4,lab-2:8", "--print")
    assert isinstance(result.exception, LaunchError)
    assert "lab-1: must have an address" in str(result.exception)
    assert "--head-ip" in str(result.exception)
    assert launch("launch", "ray-up", "quickstart.yaml", "--hosts", "lab-1:4", "--print").exit_code == 0
