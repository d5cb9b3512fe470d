"""What every launcher keeps: its script, its submission, its allocation, its remote shell, its next job.

A new launcher is one more `Case`. The scheduler is a folder of programs on the PATH that answer as it would.
"""

import os
import shlex
import subprocess
import time
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from study.errors import ExitCode, LaunchError, SpaceError
from study.launch.commands import app
from study.launch.job import BATCH, JOB_FILE, Host, Job, parse_hosts
from study.launch.schedulers import clock, expand_counts
from study.options import seconds
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
            "SLURM_JOB_END_TIME": "{end}",
        },
        programs={"scontrol": '[[ $2 == hostnames ]] && printf "n1\\nn2\\n"\nexit 0', "srun": LAST_WORD},
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
def place(tmp_path, monkeypatch):
    (tmp_path / "my work").mkdir()
    monkeypatch.chdir(tmp_path / "my work")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def launch(name, *words):
    return CliRunner().invoke(app, [name, "quickstart.yaml", *CASES[name].options, *map(str, words)])


def job_of(name, place, *options, **changes):
    """Return the launcher of a job as the supervisor makes it."""
    fields = {"hosts": "n1:2,n2:2"} if name == "ssh" else {}
    fields |= {"nodes": 2, "cpus_per_node": 2, "python": "/v/bin/python", "folder": place / "job", **changes}
    (place / "nodes").write_text("n1\nn1\nn2\nn2\n")
    end = str(int(time.time()) + 7200)
    variables = {key: value.format(nodes=place / "nodes", end=end) for key, value in CASES[name].inside.items()}
    return launcher(name, *options, variables=variables, **fields)


# --- on the person's machine ------------------------------------------------------------------------------------------


@each
def test_print_shows_the_job_and_writes_nothing(name, place):
    result = launch(name, "--print")
    assert result.exit_code == 0, result.exception
    assert "quickstart on 2 nodes" in result.output
    assert list((place / "my work").iterdir()) == []


@each_batch
def test_the_script_asks_for_what_was_given_and_becomes_the_supervisor(name, place):
    result = launch(name, "--print", "--", "-r", "n", "--own=a b")
    folder = place / "my work" / "studies" / "quickstart.launch"
    script = result.output.split(f"# {folder}/job.sh\n")[1].split("\nSubmit with")[0]
    lines = [line.partition(" ")[2] for line in script.splitlines() if line.startswith(("#SBATCH", "#OAR"))]
    assert {line.format(folder=folder) for line in (*CASES[name].directives, CASES[name].again)} <= set(lines)
    assert result.output.splitlines()[-1].endswith(f" -r n '--own=a b' '{folder}/job.sh'")
    last = shlex.split(script.rstrip().splitlines()[-1])
    assert (last[0], last[-3:]) == ("exec", ["-m", "study.launch.supervisor", str(folder / JOB_FILE)])
    once = job_of(name, place, resubmit=False).directives()
    assert not any(line.endswith(f" {CASES[name].again}") for line in once)


def test_whole_nodes_are_asked_for_where_no_cpus_are_given_and_no_second_size_of_oar(place):
    assert "#SBATCH --exclusive" in job_of("slurm", place, cpus_per_node=None).directives()
    assert "#OAR -l /host=2,walltime=2:00:00" in job_of("oar", place, cpus_per_node=None).directives()
    # OAR would take the one that starts first.
    assert not any(line.startswith("#OAR -l") for line in job_of("oar", place, "-l", "/host=2").directives())


@each_batch
def test_a_script_is_shell_whatever_its_folder(name, place):
    folder, file = str(place / "a 'b' $(touch no)"), place / "job.sh"
    file.write_text(job_of(name, place, workdir=folder, activate="true").script())
    line = f'set -e; cd() {{ printf %s "$1"; exit; }}; . {file}'
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True).stdout == folder


@each_batch
@pytest.mark.parametrize(("workdir", "activate"), [("/no/such/folder", ""), ("/", "false")])
def test_a_job_ends_where_its_environment_is_missing(name, place, workdir, activate):
    script = job_of(name, place, workdir=workdir, activate=activate, python="/bin/echo").script()
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True)
    assert (done.stdout, done.returncode > 0) == ("", True)


@each_batch
def test_a_submission_says_id_and_log_and_writes_what_the_job_reads(name, place):
    # What a site prints, in whatever encoding, is not taken for the job's id.
    welcome = "echo 'Welcome to n1\n\n2 nodes are down.'; printf 'soumis \\340 demain' >&2"
    install(place, {CASES[name].submission: f"{welcome}\necho '{CASES[name].answer}'"})
    result = launch(name, "--set", "evaluation.episodes=4")
    assert result.exit_code == 0, result.exception
    folder = place / "my work" / "studies" / "quickstart.launch"
    assert f"Submitted as job 17. Its log: {folder}/job-17.log" in result.output
    assert (folder / "job.sh").stat().st_mode & 0o777 == 0o700
    job = Job.read(folder / JOB_FILE)
    assert (job.launcher, job.study) == (name, str(place / "my work" / "studies" / "quickstart"))
    assert job.arguments[-2:] == ("--set", "evaluation.episodes=4")


@each_batch
@pytest.mark.parametrize(
    ("program", "rule", "got"),
    [
        ("echo 'invalid partition' >&2; exit 1", "must accept the request", "invalid partition"),
        ("echo welcome >&2; echo", "must answer with a job id", ""),  # it may have taken the job
        (None, "must be on this machine's PATH", "No such file or directory"),
    ],
)
def test_a_submission_that_fails_is_an_error_with_its_reason(name, place, monkeypatch, program, rule, got):
    if program is None:
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        install(place, {CASES[name].submission: program})
    error = launch(name).exception
    assert isinstance(error, LaunchError)
    assert (error.where, error.rule, error.got) == (CASES[name].submission, rule, got)


def test_a_launch_that_is_damaged_or_that_others_could_have_written_is_refused(place):
    file = place / JOB_FILE
    for content in ("", '{"launcher": "slurm"}'):
        file.write_text(content)
        file.chmod(0o600)
        with pytest.raises(LaunchError, match=f"^{file}: must be a launch of this version"):
            Job.read(file)
    file.write_bytes(msgspec.json.encode(job_of("slurm", place).job))
    file.chmod(0o666)
    with pytest.raises(LaunchError, match="must belong to you, and nobody else may write it"):
        Job.read(file)


@pytest.mark.parametrize("hosts", ["", "-oProxyCommand=touch no", "-o@a", "a b", "a:0", "a,a:3", "a;b"])
def test_hosts_that_are_none(hosts):
    assert parse_hosts("lab-1:16, me@lab-2.site") == (Host("lab-1", 16), Host("me@lab-2.site"))
    with pytest.raises(SpaceError, match="--hosts"):
        parse_hosts(hosts)


@given(st.integers(1, 10**6))
def test_clock_is_read_back(duration):
    assert seconds(clock(duration), "--walltime") == duration


@pytest.mark.parametrize("text", ["", "soon", "2:00", "0s", "-1h", "1:75:00"])
def test_durations_that_are_none(text):
    assert seconds("1-00:00:00", "--walltime") == 24 * 3600  # as SLURM writes it
    with pytest.raises(SpaceError):
        seconds(text, "--walltime")


# --- inside the job ---------------------------------------------------------------------------------------------------


@each
def test_the_allocation_is_read_inside_the_job(name, place):
    install(place, CASES[name].programs)
    job, hosts, ends_at = job_of(name, place).allocation()
    assert hosts == (Host("n1", 2), Host("n2", 2))
    assert name == "ssh" or job == "17"
    assert ends_at == (None if name == "ssh" else pytest.approx(time.time() + 7200, abs=5))


@each_batch
def test_outside_of_a_job_there_is_no_allocation(name):
    with pytest.raises(LaunchError, match=f"^{name}: must run inside a job of this scheduler"):
        launcher(name).allocation()


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 3)), min_size=1, max_size=30))
def test_counts_are_expanded_as_slurm_shortens_them(runs):
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert expand_counts(text) == [count for count, times in runs for _ in range(times)]


@each
def test_a_line_runs_on_a_host_with_our_input_and_output(name, place):
    install(place, CASES[name].programs)
    line = "cd / && pwd; read word; echo got $word"
    command = job_of(name, place).remote_shell(Host("n2"), line)
    done = subprocess.run(command, input="a task\n", capture_output=True, text=True)
    assert done.stdout.splitlines() == ["/", "got a task"], done.stderr


def test_a_cancelled_job_of_slurm_is_told_from_a_preempted_one(place):
    for state, resumes in (("CANCELLED", False), ("PREEMPTED", True)):
        install(place, {"scontrol": f"echo JobId=17 JobState={state}"})
        slurm = job_of("slurm", place)
        assert (slurm.may_resume("SIGTERM"), slurm.may_resume("SIGUSR1")) == (resumes, True)


@each_batch
def test_an_incomplete_study_is_queued_again(name, place):
    install(place, {"scontrol": f"echo $* > {place}/asked"})
    assert job_of(name, place).resubmit(time.time() - 100) == CASES[name].resubmitted
    assert name != "slurm" or (place / "asked").read_text() == "requeue 17\n"


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
def test_a_job_that_slurm_requeues_by_itself_is_not_submitted_a_second_time(place, begun, restarts, submitted):
    shows = "exit 1" if restarts is None else f"echo JobId=17 JobState=COMPLETING Restarts={restarts} BatchFlag=1"
    asked = place / "asked"
    install(place, {"scontrol": f"[[ $1 != requeue ]] || exit 1\n{shows}", "sbatch": f"echo $* > {asked}"})
    variables = {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": begun}
    launcher("slurm", "-p", "low", folder=place, variables=variables).resubmit(0)
    said = f"--parsable --dependency=afterany:17 -p low {place}/job.sh\n"
    assert (asked.read_text() if asked.exists() else "") == (said if submitted else "")
