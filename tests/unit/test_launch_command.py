"""`python -m study launch` up to the launcher: its options, what it says of the plan, what it refuses."""

import json
import os
import shlex

import pytest
from typer.testing import CliRunner

from study.designs.registry import make_plan
from study.errors import ClusterError, LaunchError, SpaceError
from study.launch import commands
from study.text import cpu_hours
from tests.launching import install

SPACE = "quickstart.yaml"
NEEDED = {
    "slurm": (),
    "oar": (),
    "pbs": ("--cpus-per-node", "4"),
    "ssh": ("--hosts", "me@lab-1:4"),
    "ray-up": ("--hosts", "10.0.0.1:8"),
    "kuberay": ("--image", "registry.example.org/study:1", "--cpus-per-node", "8"),
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def launch(kind, *words, space=SPACE):
    return CliRunner().invoke(commands.app, [kind, *([space] if space else []), *NEEDED[kind], *map(str, words)])


def refused(result, option, *, kind=SpaceError):
    assert isinstance(result.exception, kind), result.output
    assert option in str(result.exception)


def test_a_job_that_cannot_be_written_says_so(place):
    (place / "work" / "file").write_text("")
    error = launch("slurm", "--out", "file/studies").exception
    assert isinstance(error, LaunchError) and error.rule == "must be writable"


def test_a_printed_command_runs_and_a_relative_working_directory_is_that_of_this_folder(place):
    install(place, {"sbatch": "#!/bin/bash\necho 17\n"})
    result = launch("slurm", "--out", "my studies; touch PWN")
    line = next(line for line in result.output.splitlines() if line.startswith("Watch it: "))
    study = place / "work" / "my studies; touch PWN" / "quickstart"
    assert shlex.split(line.removeprefix("Watch it: "))[3:] == ["status", str(study)]
    script = launch("slurm", "--workdir", "sub", "--print").output
    assert f"cd {place}/work/sub || exit" in script
    assert f"# {place}/work/sub/studies/quickstart.launch/job.sh" in script


def test_the_line_that_fetches_a_study_names_its_folder(monkeypatch):
    monkeypatch.setattr("study.launch.commands.write_files", lambda folder, files: None)
    monkeypatch.setattr("study.launch.supervisor.supervise", lambda file: 0)
    result = launch("ssh", "--name", "s", "--workdir", "/work dir", "--out", "studies")
    line = next(line for line in result.output.splitlines() if "rsync" in line)
    assert shlex.split(line) == ["rsync", "-a", "me@lab-1:/work dir/studies/s", "studies/"]


def test_a_trial_that_can_never_fit_is_refused_before_the_queue():
    words = ("--nodes", 2, "--cpus-per-node", 4, "--set", "execution=real")
    assert isinstance(launch("slurm", *words, space="acrobot_workers.yaml").exception, ClusterError)


@pytest.mark.parametrize(
    ("words", "cpus", "emulated"), [(["1"], [1], True), (["8", "--nodes", "2"], [8], False), (["5"], [5], False)]
)
def test_the_plan_is_made_for_the_cpus_of_the_job_and_says_what_is_emulated(monkeypatch, words, cpus, emulated):
    planned = []

    def planning(spec, shape):
        planned.append(make_plan(spec, shape))
        return planned[-1]

    monkeypatch.setattr(commands, "make_plan", planning)
    result = launch("slurm", "--cpus-per-node", *words, "--print")
    assert [node.num_cpus for plan in planned for node in plan.cluster.nodes] == cpus
    assert f" there, {cpu_hours(planned[0].hours * sum(cpus))} (guessed" in result.output
    assert ("Emulated there" in result.output) is emulated
    launch("slurm", "--cpus-per-node", *words, "--use-head", "--print")
    assert len(planned[-1].cluster.nodes) == (2 if "--nodes" in words else 1)


def test_what_nobody_knows_yet_refuses_no_job():
    result = launch("slurm", "--set", "resources.num_gpus_per_learner=1", "--print", "--", "--gres=gpu:1")
    assert result.exit_code == 0, result.exception


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("slurm", ("--walltime", "soon")),
        ("slurm", ("--space", "scaling.yaml")),
        ("slurm", ("--python", "apptainer exec study.sif python")),
        ("slurm", ("--name", "../x")),
        ("slurm", ("--hosts", "n1")),
        ("ssh", ("--walltime", "2h")),
        ("kuberay", ("--temp-root", "/tmp")),
        ("slurm", ("--temp-root", "/a/folder/of/27/characters/")),
        ("slurm", ("--until", "race")),
        ("slurm", ("--wait", "long")),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(place, kind, words):
    refused(launch(kind, *words), words[0])
    assert list((place / "work").iterdir()) == []


def test_an_option_that_is_needed_is_asked_for():
    for kind, words in NEEDED.items():
        if words:
            refused(CliRunner().invoke(commands.app, [kind, SPACE]), words[0])


def test_an_interpreter_may_be_in_a_container_and_a_password_is_not_printed():
    uris = ("--tracking-uri", "http://me:secret@lab-1:5000", "--optuna-storage", "postgresql://me:se/c@ret@lab-1/db")
    output = launch("ssh", "--python", "apptainer exec study.sif python", *uris, "--print").output
    job = json.loads(output[output.index("{") :])
    assert job["python"] == "apptainer exec study.sif python"
    assert "http://***@lab-1:5000" in job["arguments"]
    assert not any(part in output for part in ("secret", "ret@"))
    assert launch("kuberay", "--tracking-uri", "postgresql://me@lab-1:5432/db", "--print").exit_code == 0


SECRETS = [
    ("--tracking-uri", "http://me:secret@lab-1:5000"),
    ("--tracking-uri", "http://lab-1:5000/?access_token=secret"),
    ("MLFLOW_TRACKING_URI", "http://me:secret@lab-1:5000"),  # the environment names it as well as the option
    ("--optuna-storage", "postgresql://me:s/e@cret@lab-1/db"),
    ("config_args", "--hf-token secret"),
]


@pytest.mark.parametrize("kind", ["ray-up", "kuberay"])
@pytest.mark.parametrize(("place_of_it", "secret"), SECRETS)
def test_a_secret_gets_into_no_manifest_and_no_printed_command(place, monkeypatch, kind, place_of_it, secret):
    words = []
    if place_of_it.startswith("--"):
        words = [place_of_it, secret]
    elif place_of_it.isupper():
        monkeypatch.setenv(place_of_it, secret)
    else:
        space = commands.load(SPACE, None, None).model_copy(update={place_of_it: secret})
        monkeypatch.setattr(commands, "load", lambda *_: space)
    for shown in (["--print"], []):
        result = launch(kind, *words, *shown)
        refused(result, "--tracking-uri" if place_of_it.isupper() else place_of_it)
        said = f"{result.output}{result.exception}"
        assert not any(part in said for part in ("=secret", ":secret", " secret'", "e@cret"))
    assert list((place / "work").iterdir()) == []
