"""`python -m study launch` up to the scheduler: what it writes, shows and refuses."""

import json
import os
import re
import shlex
import stat

import pytest
from typer.testing import CliRunner

from study.cli.commands import app
from study.errors import ClusterError, LaunchError, SpaceError
from study.launch.batch import LEAST_WALLTIME_S
from study.launch.job import LaunchJob
from study.launch.option_checks import staged
from study.launch.supervisor import LEAST_S
from study.planning.plan import make_plan

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


def test_a_submission_says_id_start_and_log(place, monkeypatch):
    script_with(place, monkeypatch, "sbatch", SBATCH)
    result = launch(*TWO, "--set", "evaluation.episodes=4", "--tensorboard")
    assert result.exit_code == 0, result.output
    for words in ("foresees a start at 2026-11-22 08:00:00", "Submitted as job 17", "job-17.log"):
        assert words in result.output
    assert "ssh -N" not in result.output, "a tunnel to nothing"


def test_a_printed_command_is_one_that_runs(place, monkeypatch):
    script_with(place, monkeypatch, "sbatch", SBATCH)
    result = launch(*TWO, "--out", "my studies; touch PWN")
    line = next(line for line in result.output.splitlines() if line.startswith("Watch it: "))
    study = place / "my studies; touch PWN" / "acrobot_workers"
    assert shlex.split(line.removeprefix("Watch it: "))[3:] == ["status", str(study), "--watch"]


def test_a_submission_writes_what_the_job_reads(place, monkeypatch):
    script_with(place, monkeypatch, "sbatch", SBATCH)
    assert launch(*TWO, "--set", "evaluation.episodes=4", "--tensorboard").exit_code == 0
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


def test_without_the_scheduler_the_front_end_is_named_and_nothing_is_left(place, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    result = launch(*TWO)
    assert "sbatch: must be on this machine's PATH" in str(result.exception)
    assert list(place.iterdir()) == []


def files_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_refused_job_leaves_an_earlier_launch_as_it_was(place, monkeypatch):
    script_with(place, monkeypatch, "sbatch", SBATCH)
    assert launch(*TWO).exit_code == 0
    (place / "studies" / "acrobot_workers.launch" / "job-17.log").write_text("of the first job")
    before = files_below(place / "studies")
    script_with(place, monkeypatch, "sbatch", "#!/bin/bash\nexit 1\n")
    assert isinstance(launch(*TWO, "--set", "evaluation.episodes=4").exception, LaunchError)
    assert files_below(place / "studies") == before


def test_a_job_that_may_have_been_taken_keeps_its_files(place, monkeypatch):
    script_with(place, monkeypatch, "sbatch", SBATCH.replace("17;cluster", "welcome"))
    result = launch(*TWO)
    assert "must answer with a job id" in str(result.exception)
    assert {path.name for path in files_below(place / "studies")} == {"launch.json", "job.sh"}


def test_a_folder_that_cannot_be_written_is_no_folder_left(place):
    (place / "file").write_text("")
    result = launch(*TWO, "--out", "file/studies")
    assert isinstance(result.exception, LaunchError)
    assert "must be writable" in str(result.exception)
    assert [path.name for path in place.iterdir()] == ["file"]


OARSTAT = """#!/bin/bash
here=${0%/*}
[[ -e $here/asked ]] || { touch $here/asked; echo "database is away" >&2; exit 1; }
echo "    state = Waiting"
echo "    scheduledStart = 2026-11-22 08:00:00"
"""


def test_a_job_that_was_submitted_is_no_failure_where_its_start_is_unknown(place, monkeypatch):
    script_with(place, monkeypatch, "oarsub", "#!/bin/bash\necho OAR_JOB_ID=17\n")
    script_with(place, monkeypatch, "oarstat", OARSTAT)
    result = launch("launch", "oar", "quickstart.yaml")
    assert result.exit_code == 0, result.exception
    assert "Submitted as job 17" in result.output
    assert "OAR foresees a start at 2026-11-22 08:00:00" in result.output
    monkeypatch.setattr("study.launch.batch.OAR_FORESIGHT_S", 0.1)
    script_with(place, monkeypatch, "oarstat", "#!/bin/bash\nexit 1\n")
    result = launch("launch", "oar", "quickstart.yaml")
    assert result.exit_code == 0, result.exception
    assert "foresees" not in result.output


def test_a_login_that_ssh_would_not_take_is_left_out(place, monkeypatch):
    script_with(place, monkeypatch, "sbatch", SBATCH)
    monkeypatch.setattr("getpass.getuser", lambda: "SITE\\me")
    result = launch(*TWO)
    assert result.exit_code == 0, result.exception
    assert LaunchJob.read(place / "studies" / "acrobot_workers.launch" / "launch.json").user == ""


def test_the_dashboard_is_where_its_port_is_known(place, monkeypatch):
    script_with(place, monkeypatch, "sbatch", SBATCH)
    assert "dashboard is in its log" in launch(*TWO, "--dashboard").output
    assert "dashboard is in its log" not in launch(*TWO).output


OVER_SSH = ("launch", "ssh", "quickstart.yaml", "--hosts", "me@lab-1:2")


def test_a_password_is_not_printed():
    uris = ("--tracking-uri", "http://me:secret@lab-1:5000", "--optuna-storage", "postgresql://me:se/c@ret@lab-1/db")
    result = launch(*OVER_SSH, *uris, "--print")
    assert result.exit_code == 0, result.exception
    assert "secret" not in result.output
    assert "ret@" not in result.output
    assert json.loads(result.output[result.output.index("{") :])["run"].count("http://***@lab-1:5000") == 1


@pytest.mark.parametrize("kind", ["ray-up", "kuberay"])
@pytest.mark.parametrize(
    ("option", "uri"),
    [
        ("--tracking-uri", "http://me:secret@lab-1:5000"),
        ("--tracking-uri", "http://lab-1:5000/?access_token=secret"),
        ("--optuna-storage", "postgresql://me:s/e@cret@lab-1/db"),
        ("--optuna-storage", "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BUID%3Dme%3BPWD%3Dsecret"),
    ],
)
@pytest.mark.parametrize("shown", [["--print"], []])
def test_a_password_gets_into_no_manifest_and_no_printed_command(place, kind, option, uri, shown):
    of_kind = {
        "ray-up": ("--hosts", "lab-1:8", "--head-ip", "10.0.0.1"),
        "kuberay": ("--image", "registry.example.org/study:1", "--cpus-per-node", "8"),
    }
    result = launch("launch", kind, "quickstart.yaml", *of_kind[kind], option, uri, *shown)
    assert isinstance(result.exception, SpaceError), result.output
    assert f"{option}: a URI without a password" in str(result.exception)
    assert "cret" not in f"{result.output}{result.exception}".replace("Secret that you", "")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("uri", ["postgresql://me@lab-1:5432/db", "http://lab-1:5000", "sqlite:////shared/mlflow.db"])
def test_a_manifest_takes_a_uri_without_a_password(uri):
    result = launch("launch", "ray-up", "quickstart.yaml", *JOBS["ray-up"], "--tracking-uri", uri, "--print")
    assert result.exit_code == 0, result.exception
    assert uri in result.output


JOBS = {
    "slurm": (),
    "oar": (),
    "pbs": ("--cpus-per-node", "4"),
    "ssh": ("--hosts", "lab-1:4"),
    "ray-up": ("--hosts", "lab-1:8", "--head-ip", "10.0.0.1"),
    "kuberay": ("--image", "registry.example.org/study:1", "--cpus-per-node", "8"),
}
TEXTS = {
    "--out": JOBS,
    "--python": JOBS,
    "--activate": JOBS,
    "--interface": JOBS,
    "--jump": JOBS,
    "--tracking-uri": JOBS,
    "--optuna-storage": JOBS,
    "--name": JOBS,
    "--set": JOBS,
    "--workdir": ("slurm", "oar", "pbs", "ssh"),
    "--temp-root": ("slurm", "oar", "pbs", "ssh"),
    "--hosts": ("ssh", "ray-up"),
    "--ssh-option": ("pbs", "ssh"),
    "--ssh-key": ("ray-up",),
    "--head-ip": ("ray-up",),
    "--image": ("kuberay",),
}


@pytest.mark.parametrize(("option", "kind"), [(option, kind) for option, kinds in TEXTS.items() for kind in kinds])
def test_no_value_begins_another_line(place, option, kind):
    for text in ("a\ntouch PWN", *(("a\rb", "a\x1b[2Jb", "a\u2028b") if kind == "slurm" else ())):
        result = launch("launch", kind, "quickstart.yaml", *JOBS[kind], option, text, "--print")
        assert isinstance(result.exception, SpaceError), (text, result.output)
        assert f"{option}: one line without control characters, got {text!r}." in str(result.exception)


def test_no_folder_and_no_option_of_the_scheduler_begins_another_line(tmp_path, monkeypatch):
    (tmp_path / "a\nb").mkdir()
    monkeypatch.chdir(tmp_path / "a\nb")
    for words in ([], ["--workdir", "/w", "--", "--account=x\ntouch PWN"]):
        result = launch("launch", "slurm", "quickstart.yaml", "--print", *words)
        assert "one line without control characters" in str(result.exception), result.output


@pytest.mark.parametrize(
    ("out", "study"), [("studies", "/work dir/studies/s"), ("/shared/studies", "/shared/studies/s")]
)
def test_the_line_that_fetches_a_study_names_its_folder(out, study, monkeypatch):
    monkeypatch.setattr("study.launch.supervisor.supervise", lambda file: 0)
    result = launch(*OVER_SSH, "--name", "s", "--workdir", "/work dir", "--out", out)
    line = next(line for line in result.output.splitlines() if "rsync" in line)
    assert shlex.split(line) == ["rsync", "-a", f"me@lab-1:{study}", "studies/"]


def test_a_trial_that_can_never_fit_is_refused_before_the_queue():
    result = launch(*WHOLE, "--cpus-per-node", "4", "--set", "execution=real")
    assert isinstance(result.exception, ClusterError)
    assert "need 11 CPUs at once, the cluster has 4 (node 2: 4 CPUs)." in str(result.exception)


@pytest.mark.parametrize(("cpus", "emulated"), [("1", True), ("5", False)])
def test_the_preview_says_what_will_be_emulated(cpus, emulated):
    words = ("launch", "slurm", "quickstart.yaml", "--cpus-per-node", cpus, "--print")
    result = launch(*words)
    assert result.exit_code == 0, result.exception
    assert f"on 1 node x {cpus} CPUs" in result.output
    assert ("Emulated there, so without a clock: trials of" in result.output) is emulated


def test_one_node_is_planned_with_all_its_cpus(monkeypatch):
    planned = []
    monkeypatch.setattr(
        "study.launch.command.make_plan", lambda spec, shape: planned.append(shape) or make_plan(spec, shape)
    )
    for words in (
        ("--cpus-per-node", "2"),
        ("--cpus-per-node", "8", "--nodes", "2"),
        ("--cpus-per-node", "8", "--nodes", "2", "--use-head"),
    ):
        assert launch("launch", "slurm", "quickstart.yaml", *words, "--print").exit_code == 0
    assert [[node.num_cpus for node in shape.nodes] for shape in planned] == [[2], [8], [8, 8]]


def test_what_nobody_knows_yet_refuses_no_job():
    result = launch(*TWO, "--set", "resources.num_gpus_per_learner=1", "--print", "--", "--gres=gpu:1")
    assert result.exit_code == 0, result.exception
    assert "#SBATCH --gres=gpu:1" in result.output


@pytest.mark.parametrize(
    ("words", "place_of"),
    [
        (("launch", "slurm", "quickstart.yaml", "--hosts", "a"), "--hosts"),
        (("launch", "ssh", "quickstart.yaml"), "--hosts"),
        (("launch", "ssh", "quickstart.yaml", "--hosts", "a", "--nodes", "2"), "--nodes"),
        (("launch", "ssh", "quickstart.yaml", "--hosts", "a", "--", "--account=x"), "after --"),
        (("launch", "slurm", "quickstart.yaml", "--besteffort"), "--besteffort"),
        (("launch", "slurm", "quickstart.yaml", "--walltime", "soon"), "--walltime"),
        (("launch", "slurm", "quickstart.yaml", "--walltime", "2m"), "--walltime"),
        (("launch", "slurm", "quickstart.yaml", "--nodes", "2", "--min-nodes", "3"), "--min-nodes"),
        (("launch", "ssh", "quickstart.yaml", "--hosts", "a,b", "--min-nodes", "3"), "--min-nodes"),
        (("launch", "slurm", "quickstart.yaml", "--python", "apptainer exec study.sif python"), "--python"),
        (("launch", "slurm", "quickstart.yaml", "--python", "'python"), "--python"),
        (("launch", "slurm", "quickstart.yaml", "--python", "python3", "--stage"), "--stage"),
        (("launch", "slurm", "quickstart.yaml", "--python", "/usr/bin/python3", "--stage"), "--stage"),
        (("launch", "ssh", "quickstart.yaml", "--hosts", "a", "--python", "/usr/bin/python3", "--stage"), "--stage"),
        (("launch", "slurm", "quickstart.yaml", "--name", "../x"), "--name"),
        (("launch", "slurm", "quickstart.yaml", "--jump", "-oProxyCommand=x"), "--jump"),
        (("launch", "ray-up", "quickstart.yaml", "--hosts", "a:2", "--jump", "a b"), "--jump"),
        (("launch", "slurm", "quickstart.yaml", "--temp-root", "/a/folder/of/27/characters/"), "--temp-root"),
        (("launch", "slurm", "quickstart.yaml", "--temp-root", "tmp"), "--temp-root"),
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


def test_a_container_is_for_hosts_without_a_scheduler():
    result = launch(*OVER_SSH, "--python", "apptainer exec study.sif python", "--print")
    assert result.exit_code == 0, result.exception


@pytest.mark.parametrize("mark", ["pyvenv.cfg", "conda-meta"])
def test_an_environment_is_staged(place, mark):
    (place / "env" / mark).mkdir(parents=True)
    assert staged("slurm", shlex.quote(str(place / "env" / "bin" / "python"))) == str(place / "env")
    with pytest.raises(SpaceError, match="--stage"):
        staged("slurm", str(place / "env" / "python"))


def test_an_environment_that_only_the_hosts_have_is_staged():
    assert staged("ssh", "/no/such/env/bin/python") == "/no/such/env"
    with pytest.raises(SpaceError, match="--stage"):
        staged("slurm", "/no/such/env/bin/python")


def test_the_shortest_job_has_time_for_a_study():
    margin = LaunchJob.model_fields["margin_s"].default
    assert margin + LEAST_S + 60 <= LEAST_WALLTIME_S  # with a minute to start Ray in
    assert launch("launch", "slurm", "quickstart.yaml", "--walltime", "3m", "--print").exit_code == 0


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
