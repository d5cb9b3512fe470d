"""The programs of a job: the agent on a host, a real process that is told what to do; the supervisor, without Ray."""

import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from study.errors import ClusterError, ExitCode
from study.launch import node
from study.launch import supervisor as supervising
from study.launch.job import Host
from study.launch.node import SIGNALS, Task
from study.launch.schedulers import Launcher
from study.launch.supervisor import Supervisor
from study.records.folder import StudyFolder
from study.records.records import StudyClosed
from tests.e2e.commands import ROOT, environment
from tests.launching import launcher
from tests.synthetic import append, opened, whole_trial

# --- the agent --------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-um", "study.launch.node"], cwd=ROOT, env=environment(), **pipes)
    yield process
    process.kill()
    process.wait()


def tell(agent, task):
    agent.stdin.write((task if isinstance(task, str) else msgspec.json.encode(task).decode()) + "\n")
    agent.stdin.flush()


def sleeper(agent):
    """Let the agent run a command that ends with 7 when asked to end; return its process and one that it leaves."""
    line = "sleep 1000 & trap 'echo ended; exit 7' TERM; echo $$ $!; while :; do sleep 0.1; done"
    tell(agent, Task(command=("bash", "-c", line)))
    return [psutil.Process(int(pid)) for pid in agent.stdout.readline().split()]


def test_it_passes_on_what_a_command_prints_and_how_it_ended(agent):
    words = ("bash", "-c", 'cat "$1"; echo $SECRET >&2; echo $2; exit 3', "-", "{folder}/a.yaml", "{python}")
    tell(agent, Task(environment={"SECRET": "s3cret"}, command=words, files={"a.yaml": "content\n"}))
    assert agent.stdout.read().split() == ["content", "s3cret", sys.executable]
    assert agent.wait(5) == 3


def test_signals_of_a_scheduler_do_not_end_its_child_and_the_end_of_its_supervisor_does(agent):
    child, left = sleeper(agent)
    for number in SIGNALS:
        agent.send_signal(number)  # as a scheduler would send to all of a job
    tell(agent, "more words")
    time.sleep(0.5)
    assert child.is_running()
    agent.stdin.close()  # the supervisor, or the connection to it, is gone
    assert agent.stdout.read() == "ended\n", "what the child leaves does not hold the connection open"
    assert agent.wait(5) == 7
    left.wait(10)


def test_a_killed_agent_leaves_no_child(agent):
    child, left = sleeper(agent)
    agent.kill()
    child.wait(10)
    left.kill()


@pytest.mark.parametrize(
    ("task", "code", "said"),
    [
        ('{"command": ["true"], "extra": 1}', ExitCode.NO_CLUSTER, "must be of the same version"),
        (Task(command=("no-such-command-here",)), ExitCode.NO_CLUSTER, "no-such-command-here"),
        (Task(command=("bash", "-c", "kill -9 $$")), 128 + signal.SIGKILL, ""),
    ],
)
def test_a_command_that_cannot_start_or_is_killed_is_told_by_the_code(agent, task, code, said):
    tell(agent, task)
    assert said in agent.stdout.read()
    assert agent.wait(5) == code


# --- the supervisor, on hosts that are programs here -----------------------------------------------------------------

AGAIN = 99
AGENT = """
import json, os, pathlib, signal, sys, time
task, (host, *ends) = json.loads(sys.stdin.readline()), sys.argv[1].split("-")
if words := task["command"]:
    out = pathlib.Path(words[words.index("--out") + 1])
    if (out / "after").exists():
        (out / "after").replace(out / "s" / "records.jsonl")
    print("the study's own line", flush=True)
    if ends[1:] == ["waits"]:
        sys.stdin.read()
    elif ends[1:]:
        os.kill(os.getppid(), signal.Signals[ends[1]])
    sys.exit(int(ends[0]))
if host == "late":
    sys.exit("its disk is full")
if host != "mute":
    about = {"ip": "127.0.0.1", "address": "127.0.0.1:6379", "num_cpus": 2, "task": task}
    print("@ray-is-up " + json.dumps(about), flush=True)
if host == "dying":
    time.sleep(0.2)
    sys.exit("a server of Ray no longer listens: its last line")
sys.stdin.read()
"""
"""An agent; its host's name says what it does, and how the driver ends."""


class Local(Launcher):
    """A launcher whose remote shells are programs here."""

    def remote_shell(self, host, line):
        return [sys.executable, "-c", AGENT, host.name]

    def allocation(self):
        return "17", tuple(Host(name, 72) for name in self.job.hosts.split(",")), time.time() + self.job.walltime_s

    def may_resume(self, signal_name):
        return signal_name != "SIGTERM"

    def resubmit(self, started_at):
        return AGAIN


@pytest.fixture(autouse=True)
def handlers():
    """Give back the signals of this process, which the supervisor takes."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def supervisor_on(folder, *hosts, **fields):
    """Return the supervisor of a job on hosts, whose study is in a folder."""
    job = {"out": str(folder), "workdir": "/", "hosts": ",".join(hosts), **fields}
    return Supervisor(launcher("slurm", folder=folder, kind=Local, **job))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("dying", "mute"), "dying: Ray must start there, and go on, got a server of Ray no longer listens"),
        (("head", "dying", "mute"), "dying: Ray must start there, and go on, got a server of Ray"),
        (("head", "late"), "late: Ray must start there, and go on, got its disk is full"),
        (("head", "mute"), "mute: Ray must start there within 4 s"),
    ],
)
def test_ray_that_does_not_come_up_is_told_at_once_with_host_and_reason(tmp_path, monkeypatch, names, said):
    if names == ("head", "mute"):
        monkeypatch.setattr(supervising, "START_TIMEOUT_S", 4.0)
    with pytest.raises(ClusterError, match=f"^{said}"):
        supervisor_on(tmp_path, *names).run()


@pytest.mark.parametrize(
    ("task", "cpus"), [({"granted": 72}, 36), ({"granted": 12}, 12), ({}, 36), ({"num_cpus": 48, "granted": 72}, 48)]
)
def test_hyper_threads_that_a_scheduler_counts_are_no_cpus_of_ray(monkeypatch, task, cpus):
    """On a host of 36 cores. What a person asks for is taken as it is."""
    monkeypatch.setattr(node, "num_cores", lambda: 36)
    assert node.cpus_of(Task(**task)) == cpus


@pytest.mark.parametrize(
    ("fields", "asked"), [({}, [0, None]), ({"use_head": True}, [None, None]), ({"cpus_per_node": 48}, [0, 48])]
)
def test_a_scheduler_s_count_is_a_limit_and_the_head_alone_runs_nothing(tmp_path, monkeypatch, fields, asked):
    tasks = []
    monkeypatch.setattr(supervising, "Task", lambda **task: tasks.append(task) or Task(**task))
    assert supervisor_on(tmp_path, "head-0", "n", **fields).run() == 0
    assert [(task["num_cpus"], task["granted"]) for task in tasks[:2]] == [(number, 72) for number in asked]


# --- the end ----------------------------------------------------------------------------------------------------------

TIME_IS_UP = StudyClosed(session=1, reason="time budget")
OF_ITS_OWN = StudyClosed(session=1, reason="error", detail="full")
EARLIER = (opened(), *whole_trial(0), TIME_IS_UP)
ENDS = [
    # trials that ended, how the driver closed the study, the hosts, what else is so; the code of the job
    ([0], [TIME_IS_UP], ["head-75"], {}, AGAIN),
    ([], [TIME_IS_UP], ["head-75"], {}, ClusterError),  # the walltime is too short
    ([0], [TIME_IS_UP], ["head-75-SIGUSR1"], {}, AGAIN),
    ([], [], ["head-75-SIGUSR1"], {}, AGAIN),  # a preemption
    ([], [], ["head-75-SIGUSR1"], {"walltime": "170s"}, ClusterError),  # its walltime is over
    ([0], [TIME_IS_UP], ["head-75-SIGTERM"], {}, ExitCode.STOPPED),  # somebody cancels it as it ends
    ([0], [TIME_IS_UP], ["head-75"], {"resubmit": False}, ExitCode.STOPPED),
    ([0], [OF_ITS_OWN], ["head-75"], {}, ExitCode.STOPPED),
    ([], [], ["head-75"], {"before": EARLIER}, ExitCode.STOPPED),  # it could not even write its end
    ([], [], ["head-75-waits", "dying"], {}, ClusterError),
    ([0], [], ["head-75-waits", "dying"], {}, AGAIN),
    ([], [], [f"head-{128 + 9}"], {}, ClusterError),
    ([0], [], [f"head-{128 + 9}"], {}, AGAIN),
    ([0], [], ["head-255"], {}, ClusterError),  # the connection broke
    ([0], [], ["head-1"], {}, 1),
]


@pytest.mark.parametrize(("trials", "closed", "hosts", "more", "code"), ENDS)
def test_a_study_is_given_another_job_where_time_or_a_node_ended_it_after_a_trial(
    tmp_path, trials, closed, hosts, more, code
):
    study, fields = StudyFolder(tmp_path / "s"), {**more}
    before = fields.pop("before", ())
    study.path.mkdir()
    append(study, *before)
    records = study.records.read_bytes()
    append(study, opened(session=2 if before else 1), *(line for each in trials for line in whole_trial(each)), *closed)
    study.records.rename(tmp_path / "after")  # the driver puts it back
    study.records.write_bytes(records)
    supervisor = supervisor_on(tmp_path, *hosts, **fields)
    if code is ClusterError:
        with pytest.raises(ClusterError):
            supervisor.run()
    else:
        assert supervisor.run() == code


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_neither_a_hang_up_under_nohup_nor_a_log_on_a_full_disk_ends_a_job(tmp_path, monkeypatch, before):
    def full(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervising, "say", full)
    signal.signal(signal.SIGHUP, before)
    assert supervisor_on(tmp_path, "head-0").run() == 0
    assert (signal.getsignal(signal.SIGHUP) is before) == (before is signal.SIG_IGN)
