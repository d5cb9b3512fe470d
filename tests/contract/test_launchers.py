"""What every launcher keeps: its subcommand, its script, its submission, its allocation, its remote shell.

A new launcher is one more `Case`. The scheduler is a folder of programs on the PATH that answer as it would.
"""

import os
import shlex
import subprocess
import time
from dataclasses import dataclass

import msgspec
import pytest
from typer.testing import CliRunner

from study.errors import ExitCode, LaunchError
from study.launch.commands import app
from study.launch.job import BATCH, JOB_FILE, Host, Job
from study.launch.schedulers import Launcher
from tests.launching import install, launcher

LAST_WORD = '#!/bin/bash\nexec bash -c "${@: -1}"\n'
"""A remote shell: the last word is a line."""
HOSTS = ("n1", "n2")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launcher, as a test meets it."""

    options: tuple[str, ...]
    """Options of two nodes with two CPUs each."""
    inside: dict[str, str]
    """Variables inside a job; `{nodes}` is a node file."""
    programs: dict[str, str]
    """Answers of the scheduler's programs, besides the submission."""
    may_resume: dict[str, bool]
    """Signal -> whether the study may be queued again."""
    resubmitted: int = ExitCode.STOPPED
    requeue: str | None = None
    """The command that queues the job again; `{folder}` is that of the job. None where an exit code asks for it."""
    submission: str = ""
    """The program that submits."""
    answer: str = ""
    """What it prints."""
    log: str = "job-17.log"
    """The file into which the submitted job prints."""
    directives: tuple[str, ...] = ()
    """What the script asks for, besides the options of the person."""
    once: str = ""
    """The directive of a job that is not queued again; one that begins with "not " must be missing."""


CASES = {
    "slurm": Case(
        options=("--nodes", "2", "--cpus-per-node", "2", "--walltime", "2:00:00"),
        inside={
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_CPUS_PER_NODE": "2(x2)",
            "SLURM_JOB_END_TIME": "{end}",
        },
        programs={
            "scontrol": '#!/bin/bash\n[[ $2 == hostnames ]] && printf "n1\\nn2\\n"\n[[ $1 != requeue ]] || exit 0\n',
            "srun": LAST_WORD,
        },
        may_resume={"SIGUSR1": True, "SIGTERM": True},
        requeue="scontrol requeue 17",
        submission="sbatch",
        answer="17;cluster",
        directives=(
            "--nodes=2",
            "--ntasks-per-node=1",
            "--cpus-per-task=2",
            "--time=2:00:00",
            "--requeue",
            "--signal=B:USR1@120",  # B: to the script alone; the steps would die of it
            "--open-mode=append",  # a requeued job would empty its log
            "--output={folder}/job-%j.log",
        ),
        once="--no-requeue",
    ),
    "oar": Case(
        options=("--nodes", "2", "--cpus-per-node", "2", "--walltime", "2:00:00"),
        inside={"OAR_JOB_ID": "17", "OAR_NODEFILE": "{nodes}", "OAR_JOB_WALLTIME_SECONDS": "7200"},
        programs={"oarsh": LAST_WORD, "oarstat": "#!/bin/bash\necho state = Running\n"},
        may_resume={"SIGUSR2": True, "SIGTERM": True},
        resubmitted=99,
        submission="oarsub",
        answer="OAR_JOB_ID=17",
        directives=(
            "-l /host=2/core=2,walltime=2:00:00",
            "-t idempotent",
            "--checkpoint 120",
            "-O {folder}/job-%jobid%.log",
        ),
        once="not -t idempotent",
    ),
    "pbs": Case(
        options=("--nodes", "2", "--cpus-per-node", "2", "--walltime", "2:00:00"),
        inside={"PBS_JOBID": "17.server", "PBS_NODEFILE": "{nodes}"},
        programs={"ssh": LAST_WORD},
        may_resume={"SIGUSR1": True, "SIGTERM": False},
        requeue="qsub -W depend=afterany:17.server {folder}/job.sh",
        submission="qsub",
        answer="17",
        log="17.OU",
        directives=("-l select=2:ncpus=2:mpiprocs=2", "-l place=scatter", "-l walltime=2:00:00", "-r y"),
        once="-r n",
    ),
    "ssh": Case(
        options=("--hosts", "n1:2,n2:2"),
        inside={},
        programs={"ssh": LAST_WORD},
        may_resume={},
    ),
}
each = pytest.mark.parametrize("name", CASES)
each_batch = pytest.mark.parametrize("name", BATCH)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def launch(name, *words):
    return CliRunner().invoke(app, [name, "quickstart.yaml", *CASES[name].options, *map(str, words)])


def job_of(name, place, **changes):
    """Return the launcher of a job as the supervisor makes it."""
    fields = {"hosts": "n1:2,n2:2"} if name == "ssh" else {}
    fields |= {"nodes": 2, "cpus_per_node": 2, "python": "/v/bin/python", **changes}
    (place / "nodes").write_text("n1\nn1\nn2\nn2\n")
    end = str(int(time.time()) + 7200)
    environment = {key: value.format(nodes=place / "nodes", end=end) for key, value in CASES[name].inside.items()}
    return launcher(name, folder=place / "job", environment=environment, **fields)


@each
def test_print_shows_the_job_and_writes_nothing(name, place):
    result = launch(name, "--print")
    assert result.exit_code == 0, result.exception
    assert "quickstart on 2 nodes" in result.output
    assert list((place / "work").iterdir()) == []


@each_batch
def test_the_script_asks_for_what_was_given_and_becomes_the_supervisor(name, place):
    result = launch(name, "--print", "--", "-r", "n", "--own=a b")
    folder = place / "work" / "studies" / "quickstart.launch"
    script = result.output.split(f"# {folder}/job.sh\n")[1].split("\nSubmit with")[0]
    mark = script.splitlines()[3].split()[0] + " "
    lines = [line.removeprefix(mark) for line in script.splitlines() if line.startswith(mark)]
    assert {line.format(folder=folder) for line in CASES[name].directives} <= set(lines)
    assert result.output.splitlines()[-1].endswith(f" -r n '--own=a b' {folder}/job.sh")
    last = shlex.split(script.rstrip().splitlines()[-1])
    assert last[0] == "exec"
    assert last[-3:] == ["-m", "study.launch.supervisor", str(folder / JOB_FILE)]


@each_batch
def test_a_job_that_is_not_resubmitted_says_so(name, place):
    script = job_of(name, place, resubmit=False).script()
    wanted, once = not CASES[name].once.startswith("not "), CASES[name].once.removeprefix("not ")
    assert any(line.endswith(f" {once}") for line in script.splitlines()) is wanted


@each_batch
def test_a_script_is_shell_whatever_its_folder(name, place):
    folder = str(place / "a 'b' $(touch no)")
    file = place / "job.sh"
    file.write_text(job_of(name, place, workdir=folder, activate="true").script())
    assert subprocess.run(["bash", "-n", file]).returncode == 0
    said = subprocess.run(
        ["bash", "-c", f'set -e; cd() {{ printf %s "$1"; exit; }}; . {file}'], capture_output=True, text=True
    ).stdout
    assert said == folder


@each_batch
@pytest.mark.parametrize(("workdir", "activate"), [("/no/such/folder", ""), ("/", "false")])
def test_a_job_ends_where_its_environment_is_missing(name, place, workdir, activate):
    script = job_of(name, place, workdir=workdir, activate=activate, python="/bin/echo").script()
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True)
    assert (done.stdout, done.returncode > 0) == ("", True)


@each_batch
def test_a_submission_says_id_and_log_and_writes_what_the_job_reads(name, place):
    case = CASES[name]
    welcome = "echo 'Welcome to n1\n\n2 nodes are down.'"  # what a site prints is not taken for the job's id
    install(place, {**case.programs, case.submission: f"#!/bin/bash\n{welcome}\necho '{case.answer}'\n"})
    result = launch(name, "--set", "evaluation.episodes=4")
    assert result.exit_code == 0, result.exception
    folder = place / "work" / "studies" / "quickstart.launch"
    assert f"Submitted as job 17. Its log: {folder}/{case.log}" in result.output
    assert (folder / "job.sh").stat().st_mode & 0o777 == 0o700
    job = Job.read(folder / JOB_FILE)
    assert (job.launcher, job.study) == (name, str(place / "work" / "studies" / "quickstart"))
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
        install(place, {CASES[name].submission: f"#!/bin/bash\n{program}\n"})
    error = launch(name).exception
    assert isinstance(error, LaunchError)
    assert (error.where, error.rule, error.got) == (CASES[name].submission, rule, got)


@each
def test_the_allocation_is_read_inside_the_job(name, place):
    install(place, CASES[name].programs)
    job, hosts, ends_at = job_of(name, place).allocation()
    assert hosts == tuple(Host(name, 2) for name in HOSTS)
    assert name == "ssh" or job == "17"
    assert ends_at == (None if name == "ssh" else pytest.approx(time.time() + 7200, abs=5))


@each_batch
def test_outside_of_a_job_there_is_no_allocation(name, place):
    launcher = Launcher(job_of(name, place).job, place, {})
    with pytest.raises(LaunchError, match=f"^{name}: must run inside a job of this scheduler"):
        launcher.allocation()


@each
def test_a_line_runs_on_a_host_with_our_input_and_output(name, place):
    install(place, CASES[name].programs)
    line = "cd / && pwd; read word; echo got $word"
    command = job_of(name, place).remote_shell(Host("n2"), line)
    done = subprocess.run(command, input="a task\n", capture_output=True, text=True)
    assert done.stdout.splitlines() == ["/", "got a task"], done.stderr


@each_batch
def test_a_signal_says_whether_the_study_may_be_queued_again(name, place):
    install(place, CASES[name].programs)
    launcher = job_of(name, place)
    assert {signal: launcher.may_resume(signal) for signal in CASES[name].may_resume} == CASES[name].may_resume


@each_batch
def test_an_incomplete_study_is_queued_again(name, place):
    asked, requeue = place / "asked", CASES[name].requeue
    if requeue:
        install(place, {requeue.split()[0]: f"#!/bin/bash\necho ${{0##*/}} $* > {asked}\n"})
    assert job_of(name, place).resubmit(time.time() - 100) == CASES[name].resubmitted
    assert (asked.read_text().strip() if asked.exists() else None) == (requeue and requeue.format(folder=place / "job"))


def test_a_launch_that_is_damaged_or_that_others_could_have_written_is_refused(place):
    file = place / JOB_FILE
    for content in ("", "{", '{"launcher": "slurm"}'):
        file.write_text(content)
        file.chmod(0o600)
        with pytest.raises(LaunchError, match=f"^{file}: must be a launch of this version"):
            Job.read(file)
    file.write_bytes(msgspec.json.encode(job_of("slurm", place).job))
    file.chmod(0o666)
    with pytest.raises(LaunchError, match="must belong to you, and nobody else may write it"):
        Job.read(file)
