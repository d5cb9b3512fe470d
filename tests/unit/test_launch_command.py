"""`python -m study launch` up to the launcher: its options, what it says of the plan, what it refuses."""

import json
import os
import re
import shlex

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from study.cli.commands import app
from study.designs.registry import make_plan
from study.errors import ClusterError, LaunchError, SpaceError
from study.launch import commands
from study.text import cpu_hours
from tests.e2e.commands import ROOT
from tests.launching import install

SPACE = "quickstart.yaml"
NEEDED = {"slurm": (), "oar": (), "ssh": ("--hosts", "me@lab-1:4")}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def launch(kind, *words, space=SPACE):
    return CliRunner().invoke(commands.app, [kind, *([space] if space else []), *NEEDED[kind], *map(str, words)])


def test_a_job_that_cannot_be_written_says_so(place):
    (place / "work" / "file").write_text("")
    error = launch("slurm", "--out", "file/studies").exception
    assert isinstance(error, LaunchError) and error.rule == "must be writable"


def test_a_printed_command_runs_and_a_relative_working_directory_is_that_of_this_folder(place):
    install(place, {"sbatch": "echo 17"})
    result = launch("slurm", "--out", "my studies; touch PWN")
    line = next(line for line in result.output.splitlines() if line.startswith("Watch it: "))
    study = place / "work" / "my studies; touch PWN" / "quickstart"
    assert shlex.split(line.removeprefix("Watch it: "))[3:] == ["status", str(study)]
    script = launch("slurm", "--workdir", "sub", "--print").output
    assert f"cd {place}/work/sub || exit" in script
    assert f"# {place}/work/sub/studies/quickstart.launch/job.sh" in script


def test_the_line_that_fetches_a_study_names_its_folder(monkeypatch):
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

    monkeypatch.setattr("study.designs.registry.make_plan", planning)
    result = launch("slurm", "--cpus-per-node", *words, "--print")
    assert [node.num_cpus for plan in planned for node in plan.cluster.nodes] == cpus
    assert f" there, {cpu_hours(planned[0].hours * sum(cpus))} (guessed" in result.output
    assert ("Emulated there" in result.output) is emulated


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("slurm", ("--walltime", "soon")),
        ("slurm", ("--walltime", "2m")),
        ("slurm", ("--space", "scaling.yaml")),
        ("slurm", ("--name", "../x")),
        ("slurm", ("--hosts", "n1")),
        ("ssh", ("--walltime", "2h")),
        ("slurm", ("--until", "race")),
        ("slurm", ("--wait", "long")),
        ("ssh", ("--", "-p")),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(place, kind, words):
    error = launch(kind, *words).exception
    assert isinstance(error, SpaceError) and words[0] in str(error)
    assert list((place / "work").iterdir()) == []


def test_hosts_are_asked_for():
    error = CliRunner().invoke(commands.app, ["ssh", SPACE]).exception
    assert isinstance(error, SpaceError) and "--hosts: must be given" in str(error)


def test_a_password_is_not_printed():
    uris = ("--tracking-uri", "http://me:secret@lab-1:5000", "--optuna-storage", "postgresql://me:se/c@ret@lab-1/db")
    output = launch("ssh", *uris, "--print").output
    assert "http://***@lab-1:5000" in json.loads(output[output.index("{") :])["arguments"]
    assert not any(part in output for part in ("secret", "ret@"))


def test_the_manifest_for_kubernetes_hands_out_what_its_pods_own_and_types_a_command_that_exists(place):
    text = (ROOT / "study" / "launch" / "kubernetes" / "rayjob.yaml").read_text()
    _, job = YAML(typ="safe").load_all(text)
    cluster = job["spec"]["rayClusterSpec"]
    (worker,) = cluster["workerGroupSpecs"]
    (container,) = worker["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"]["cpu"] == worker["rayStartParams"]["num-cpus"]
    assert worker["replicas"] == worker["minReplicas"] == worker["maxReplicas"]
    assert cluster["authOptions"] == {"mode": "token"}
    program, *words = shlex.split(job["spec"]["entrypoint"])[1:]
    assert program == "run_study.py"
    mounted = {
        each["mountPath"] for each in cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    }
    assert {"/etc/study", "/study"} <= mounted
    words = [SPACE if word.startswith("/etc/") else re.sub("^local$|^auto$", "local", word) for word in words]
    words = [word.replace("/study/", f"{place}/") for word in words]
    result = CliRunner().invoke(app, ["run", *words, "--dry-run"])
    assert result.exit_code == 0, (result.output, result.exception)
