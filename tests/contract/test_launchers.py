"""`python -m study launch` with every launcher: what it says and refuses, its script, submission, hosts and next job.

A new launcher is one more `Case`. The scheduler is a folder of programs on the PATH that answer as it would.
"""

import json
import os
import re
import shlex
import subprocess
import time
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from typer.testing import CliRunner

from study.cli import launch as commands
from study.cli.commands import app
from study.errors import ClusterError, ExitCode, SpaceError
from study.launch.job import BATCH, JOB_FILE, Host, Job, parse_hosts
from study.launch.schedulers import clock, expand_counts
from study.options import seconds
from tests.e2e.commands import ROOT
from tests.launching import install, launcher

LAST_WORD = 'exec bash -c "${@: -1}"'
"""A remote shell: the last word is a line."""
TWO_NODES = ("--nodes", "2", "--cpus-per-node", "2", "--walltime", "2:00:00")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launcher, as a test meets it."""

    options: tuple[str, ...] = TWO_NODES
    """Options of two nodes with two CPUs each."""
    inside: dict[str, str]
    """Variables inside a job; `{nodes}` is a node file."""
    programs: dict[str, str]
    """Answers of the scheduler's programs, besides the submission."""
    resubmitted: int = ExitCode.STOPPED
    submission: str = ""
    """The program that submits."""
    answer: str = ""
    """What it prints."""
    directives: tuple[str, ...] = ()
    """What the script asks for, besides the options of the person."""
    again: str = ""
    """The directive of a job that is queued again."""


CASES = {
    "slurm": Case(
        inside={
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
        },
        programs={
            "scontrol": '[[ $2 == hostnames ]] && printf "n1\\nn2\\n"\nexit 0',
            "squeue": "date -d '+2 hours' +%FT%T",
            "srun": LAST_WORD,
        },
        submission="sbatch",
        answer="17;cluster",
        directives=(
            *("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--time=2:00:00"),
            "--signal=B:USR1@120",  # B: to the script alone; the steps would die of it
            "--open-mode=append",  # a requeued job would empty its log
            "--output='{folder}/job-'%j.log",
        ),
        again="--requeue",
    ),
    "oar": Case(
        inside={"OAR_JOB_ID": "17", "OAR_NODEFILE": "{nodes}", "OAR_JOB_WALLTIME_SECONDS": "7200"},
        programs={"oarsh": LAST_WORD},
        resubmitted=99,
        submission="oarsub",
        answer="OAR_JOB_ID=17",
        directives=("-l /host=2/core=2,walltime=2:00:00", "--checkpoint 120", "-O {folder}/job-%jobid%.log"),
        again="-t idempotent",
    ),
    "ssh": Case(options=("--hosts", "n1:2,n2:2"), inside={}, programs={"ssh": LAST_WORD}),
}
each = pytest.mark.parametrize("name", CASES)
each_batch = pytest.mark.parametrize("name", BATCH)


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """The folder that a person works in, whose PATH has that of a test's own programs."""
    (tmp_path / "my work").mkdir()
    monkeypatch.chdir(tmp_path / "my work")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path / "my work"


def launch(name, *words, space="quickstart.yaml", options=None):
    options = CASES[name].options if options is None else options
    return CliRunner().invoke(commands.app, [name, *(["--space", space] if space else []), *options, *map(str, words)])


def job_of(name, work, *options, **changes):
    """Return the launcher of a job as the supervisor makes it."""
    fields = {"hosts": "n1:2,n2:2"} if name == "ssh" else {}
    fields |= {"nodes": 2, "cpus_per_node": 2, "python": "/v/bin/python", "folder": work / "job", **changes}
    (work / "nodes").write_text("n1\nn1\nn2\nn2\n")
    variables = {key: value.format(nodes=work / "nodes") for key, value in CASES[name].inside.items()}
    return launcher(name, *options, variables=variables, **fields)


# --- on the person's machine: the plan, the script, the submission ---------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words", "options"),
    [
        ("slurm", ("--walltime", "soon"), ()),
        ("slurm", ("--walltime", "2m"), ()),
        ("slurm", ("--name", "../x"), ()),
        ("slurm", ("--hosts", "n1"), ()),
        ("slurm", ("--until", "race"), ()),
        ("ssh", ("--walltime", "2h"), None),
        ("ssh", ("--", "-p"), None),
        ("slurm", ("--", "other.yaml"), ()),
        ("ssh", ("--hosts",), ()),
        ("ssh", ("--hosts", "-oProxyCommand=touch no"), ()),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(work, name, words, options):
    error = launch(name, *(words if words != ("--hosts",) else ()), options=options).exception
    assert isinstance(error, SpaceError) and words[0] in str(error)
    assert list(work.iterdir()) == []


def test_hosts_are_names_and_no_options_of_ssh():
    assert parse_hosts("lab-1:16, me@lab-2.site") == (Host("lab-1", 16), Host("me@lab-2.site"))
    for hosts in ("", "-o@a", "a b", "a:0", "a,a:3", "a;b"):
        with pytest.raises(SpaceError, match="--hosts"):
            parse_hosts(hosts)


@given(st.integers(1, 10**6))
def test_clock_is_read_back(duration):
    assert seconds(clock(duration), "--walltime") == duration


def test_a_trial_that_can_never_fit_is_refused_before_the_queue():
    words = ("--nodes", 2, "--cpus-per-node", 4, "--set", "execution=real")
    assert isinstance(launch("slurm", *words, space="acrobot_workers.yaml", options=()).exception, ClusterError)


@pytest.mark.parametrize(("words", "emulated"), [(["1"], True), (["8", "--nodes", "2"], False), (["5"], False)])
def test_the_plan_is_made_for_the_cpus_of_the_job_and_says_what_is_emulated(words, emulated):
    """Of two nodes one runs Ray's head alone; five CPUs are those of four runners and their trial."""
    result = launch("slurm", "--cpus-per-node", *words, "--print", options=())
    assert ("  emulated" in result.output) is emulated


@each_batch
def test_print_shows_the_script_which_asks_for_what_was_given_and_writes_nothing(name, work):
    result = launch(name, "--print", "--workdir", "sub", "--", "-r", "n", "--own=a b")
    assert "quickstart on 2 nodes" in result.output
    assert list(work.iterdir()) == []
    folder = work / "sub" / "studies" / "quickstart.launch"
    script = result.output.split(f"# {folder}/job.sh\n")[1].split("\nSubmit with")[0]
    lines = [line.partition(" ")[2] for line in script.splitlines() if line.startswith(("#SBATCH", "#OAR"))]
    assert {line.format(folder=folder) for line in (*CASES[name].directives, CASES[name].again)} <= set(lines)
    assert result.output.splitlines()[-1].endswith(f" -r n '--own=a b' '{folder}/job.sh'")
    assert f"cd '{work}/sub' || exit" in script
    last = shlex.split(script.rstrip().splitlines()[-1])
    assert (last[0], last[-3:]) == ("exec", ["-m", "study.launch.supervisor", str(folder / JOB_FILE)])
    once = job_of(name, work, resubmit=False).directives()
    assert not any(line.endswith(f" {CASES[name].again}") for line in once)


def test_a_launch_over_ssh_prints_no_password_and_says_how_to_fetch_the_study(monkeypatch):
    monkeypatch.setattr("study.launch.supervisor.supervise", lambda file: 0)
    uris = ("--tracking-uri", "http://me:secret@lab-1:5000", "--optuna-storage", "postgresql://me:se/c@ret@lab-1/db")
    output = launch("ssh", *uris, "--print").output
    assert "http://***@lab-1:5000" in json.loads(output[output.index("{") :])["arguments"]
    assert not any(part in output for part in ("secret", "ret@"))
    result = launch("ssh", "--name", "s", "--workdir", "/work dir", "--out", "studies", *uris)
    line = next(line for line in result.output.splitlines() if "rsync" in line)
    assert shlex.split(line) == ["rsync", "-a", "n1:/work dir/studies/s", "studies/"]


def test_whole_nodes_are_asked_for_where_no_cpus_are_given_and_no_second_size_of_oar(work):
    assert "#SBATCH --exclusive" in job_of("slurm", work, cpus_per_node=None).directives()
    assert "#OAR -l /host=2,walltime=2:00:00" in job_of("oar", work, cpus_per_node=None).directives()
    # OAR would take the one that starts first.
    assert not any(line.startswith("#OAR -l") for line in job_of("oar", work, "-l", "/host=2").directives())


@each_batch
def test_a_script_is_shell_whatever_its_folder_and_ends_where_its_environment_is_missing(name, work):
    folder, file = str(work / "a 'b' $(touch no)"), work / "job.sh"
    file.write_text(job_of(name, work, workdir=folder, activate="true").script())
    line = f'set -e; cd() {{ printf %s "$1"; exit; }}; . "{file}"'
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True).stdout == folder
    for missing in ({"workdir": "/no/such/folder"}, {"workdir": "/", "activate": "false"}):
        script = job_of(name, work, python="/bin/echo", **missing).script()
        done = subprocess.run(["bash"], input=script, capture_output=True, text=True)
        assert (done.stdout, done.returncode > 0) == ("", True)


@each_batch
def test_a_submission_says_id_log_and_command_and_writes_what_the_job_reads(name, work):
    # What a site prints, in whatever encoding, is not taken for the job's id.
    welcome = "echo 'Welcome to n1\n\n2 nodes are down.'; printf 'soumis \\340 demain' >&2"
    install(work.parent, {CASES[name].submission: f"{welcome}\necho '{CASES[name].answer}'"})
    result = launch(name, "--out", "my studies; touch PWN", "--set", "evaluation.episodes=4")
    assert result.exit_code == 0, result.exception
    study = work / "my studies; touch PWN" / "quickstart"
    folder = study.with_name("quickstart.launch")
    assert f"Submitted as job 17. Its log: {folder}/job-17.log" in result.output
    line = next(line for line in result.output.splitlines() if line.startswith("Watch it: "))
    assert shlex.split(line.removeprefix("Watch it: "))[3:] == ["status", str(study)]
    assert (folder / "job.sh").stat().st_mode & 0o777 == 0o700
    job = Job.read(folder / JOB_FILE)
    assert (job.launcher, job.study) == (name, str(study))
    assert job.arguments[-2:] == ("--set", "evaluation.episodes=4")


@each_batch
@pytest.mark.parametrize(
    ("program", "rule", "got"),
    [
        ("echo 'invalid partition' >&2; exit 1", "must accept the request", "invalid partition"),
        ("echo welcome >&2; echo", "must answer with a job id", ""),  # it may have taken the job
        (None, "must answer on this machine", "No such file or directory"),
    ],
)
def test_a_submission_that_fails_is_an_error_with_its_reason(name, work, monkeypatch, program, rule, got):
    if program is None:
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        install(work.parent, {CASES[name].submission: program})
    error = launch(name).exception
    assert isinstance(error, ClusterError)
    assert (error.where, error.rule) == (CASES[name].submission, rule) and got in error.got


def test_a_launch_that_is_damaged_or_that_others_could_have_written_or_that_cannot_be_written_is_refused(work):
    file = work / JOB_FILE
    for content in ("", '{"launcher": "slurm"}'):
        file.write_text(content)
        file.chmod(0o600)
        with pytest.raises(ClusterError, match=f"^{file}: must be a launch of this version"):
            Job.read(file)
    file.write_bytes(msgspec.json.encode(job_of("slurm", work).job))
    file.chmod(0o666)
    with pytest.raises(ClusterError, match="must belong to you, and nobody else may write it"):
        Job.read(file)
    error = launch("slurm", "--out", f"{JOB_FILE}/studies").exception
    assert isinstance(error, ClusterError) and error.rule == "must be writable"


def test_the_manifest_for_kubernetes_hands_out_what_its_pods_own_and_types_a_command_that_exists(work):
    _, job = YAML(typ="safe").load_all((ROOT / "study" / "launch" / "kubernetes" / "rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    (worker,) = cluster["workerGroupSpecs"]
    resources = worker["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"]
    assert resources["limits"]["cpu"] == worker["rayStartParams"]["num-cpus"]
    assert worker["replicas"] == worker["minReplicas"] == worker["maxReplicas"]
    assert cluster["authOptions"] == {"mode": "token"}
    _, program, *words = shlex.split(job["spec"]["entrypoint"])
    assert program == "run_study.py"
    words = ["quickstart.yaml" if word.startswith("/etc/") else re.sub("^auto$", "local", word) for word in words]
    result = CliRunner().invoke(app, ["run", *(word.replace("/study/", f"{work}/") for word in words), "--dry-run"])
    assert result.exit_code == 0, (result.output, result.exception)


# --- inside the job ---------------------------------------------------------------------------------------------------


@each
def test_the_hosts_of_a_job_and_its_end_are_read_inside_it_and_a_line_runs_there(name, work):
    install(work.parent, CASES[name].programs)
    launcher_ = job_of(name, work)
    job, hosts, ends_at = launcher_.allocation()
    assert hosts == (Host("n1", 2), Host("n2", 2))
    assert name == "ssh" or job == "17"
    assert ends_at == (None if name == "ssh" else pytest.approx(time.time() + 7200, abs=5))
    command = launcher_.remote_shell(Host("n2"), "cd / && pwd; read word; echo got $word")
    done = subprocess.run(command, input="a task\n", capture_output=True, text=True)
    assert done.stdout.splitlines() == ["/", "got a task"], done.stderr
    if name in BATCH:
        with pytest.raises(ClusterError, match=f"^{name}: must run inside a job of this scheduler"):
            launcher(name).allocation()


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 3)), min_size=1, max_size=30))
def test_counts_are_expanded_as_slurm_shortens_them(runs):
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert expand_counts(text) == [count for count, times in runs for _ in range(times)]


def test_a_cancelled_job_of_slurm_is_told_from_a_preempted_one(work):
    for state, resumes in (("CANCELLED", False), ("PREEMPTED", True)):
        install(work.parent, {"scontrol": f"echo JobId=17 JobState={state}"})
        slurm = job_of("slurm", work)
        assert (slurm.may_resume("SIGTERM"), slurm.may_resume("SIGUSR1")) == (resumes, True)


@each_batch
def test_an_incomplete_study_is_queued_again(name, work):
    install(work.parent, {"scontrol": f"echo $* > '{work}/asked'"})
    assert job_of(name, work).resubmit(time.time() - 100) == CASES[name].resubmitted
    assert name != "slurm" or (work / "asked").read_text() == "requeue 17\n"


@pytest.mark.parametrize(
    ("begun", "restarts", "submitted"),
    [
        pytest.param("0", 1, False, id="SLURM requeues it"),
        pytest.param("1", 2, False, id="SLURM requeues it once more"),
        pytest.param("0", 0, True, id="the site lets no job be requeued"),
        pytest.param("1", 1, True, id="nor once more"),
        pytest.param("0", None, True, id="SLURM does not answer"),
    ],
)
def test_a_job_that_slurm_requeues_by_itself_is_not_submitted_a_second_time(work, begun, restarts, submitted):
    shows = "exit 1" if restarts is None else f"echo JobId=17 JobState=COMPLETING Restarts={restarts} BatchFlag=1"
    install(work.parent, {"scontrol": f"[[ $1 != requeue ]] || exit 1\n{shows}", "sbatch": f"echo $* > '{work}/asked'"})
    variables = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": begun}
    launcher("slurm", "-p", "low", folder=work, variables=variables).resubmit(0)
    said = f"--parsable --dependency=afterany:17 -p low {work}/job.sh\n"
    assert ((work / "asked").read_text() if (work / "asked").exists() else "") == (said if submitted else "")
