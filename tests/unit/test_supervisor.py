"""What a job does when its study has not ended: another life, or the reason. No scheduler, no Ray."""

import json
import queue
import signal
import sys
from types import SimpleNamespace

import pytest

from study.errors import ExitCode, LaunchError
from study.launch import supervisor as supervising
from study.launch.node import CommandTask
from study.launch.schedulers import Host, Slurm
from study.launch.supervisor import Agent, AgentEvent, Supervisor
from study.records.folder import StudyFolder
from study.records.records import StudyClosed
from tests.launching import launcher
from tests.synthetic import append, opened, whole_trial

AGAIN = 99


class Local(Slurm):
    """A launcher whose remote shells are programs here."""

    def remote_shell(self, host, line):
        return [sys.executable, "-c", AGENT, host.name]

    def may_resume(self, signal_name):
        return signal_name != "SIGTERM"

    def resubmit(self, started_at):
        return AGAIN


def local(folder, **fields):
    """Return the launcher of a job whose study is in a folder."""
    return launcher("slurm", folder=folder, kind=Local, **{"out": str(folder), "resubmit": True, **fields})


class Driver:
    """The agent of a driver, whose records are those of `job`."""

    host, last_lines = "n1", ""

    def __init__(self, supervisor, study, records):
        append(StudyFolder(study), *records)
        self.was_told_to_end = False

    def stop(self):
        self.was_told_to_end = True

    def wait(self, seconds):
        return True


NODE = SimpleNamespace(host="n2", last_lines="", started={"address": "10.0.0.1:6379"})


def job(tmp_path, monkeypatch, *records, before=(), loses_node=False, late="", code=ExitCode.STOPPED):
    """Return the code of a job whose driver wrote these records, behind those of a job before, and ended with `code`.

    The signal `late` comes while Ray is taken down.
    """
    study = tmp_path / "s"
    study.mkdir()
    append(StudyFolder(study), *before)
    supervisor = Supervisor(local(tmp_path))
    ended_before = supervisor.num_ended()
    supervisor._hosts, supervisor._nodes, supervisor._ends_at = (Host("a"),), [NODE], supervisor._started_at + 3600
    said_to_end = []

    def agent(host, task):
        driver = Driver(supervisor, study, records)
        if loses_node:
            supervisor.inbox.put(AgentEvent(NODE, {"event": "failed", "reason": "its raylet is gone"}))
            supervisor.inbox.put(AgentEvent(NODE, {"event": "gone", "code": 1}))
        supervisor.inbox.put(AgentEvent(driver, {"event": "exited", "code": code}))
        said_to_end.append(driver)
        return driver

    monkeypatch.setattr(supervisor, "_agent", agent)
    ended = supervisor.drive()
    assert said_to_end[0].was_told_to_end
    if late:
        supervisor.inbox.put(late)
    return supervisor.end(ended, ended_before)


TIME_IS_UP = StudyClosed(session=1, reason="time budget")
OF_ITS_OWN = StudyClosed(session=1, reason="error", detail="full")
EARLIER = (opened(), *whole_trial(0), TIME_IS_UP)
ENDS = [
    # trials that ended, how the driver closed the study, what else happened; the code of the job
    ([0], [TIME_IS_UP], {}, AGAIN),
    ([0], [TIME_IS_UP], {"late": "SIGUSR1"}, AGAIN),
    ([0], [TIME_IS_UP], {"late": "SIGTERM"}, ExitCode.STOPPED),  # somebody cancels it as it ends
    ([], [OF_ITS_OWN], {}, ExitCode.STOPPED),
    ([0], [OF_ITS_OWN], {}, ExitCode.STOPPED),
    ([], [], {"before": EARLIER}, ExitCode.STOPPED),  # it could not even write its end
    ([], [], {"loses_node": True}, ExitCode.STOPPED),
    ([0], [], {"loses_node": True}, AGAIN),
    ([], [], {"code": -9}, ExitCode.STOPPED),
    ([0], [], {"code": -9}, AGAIN),
]


@pytest.mark.parametrize(("trials", "closed", "events", "code"), ENDS)
def test_a_study_is_given_another_job_where_time_or_a_node_ended_it_after_a_trial(
    tmp_path, monkeypatch, trials, closed, events, code
):
    lines = [line for trial in trials for line in whole_trial(trial)]
    session = 2 if "before" in events else 1
    assert job(tmp_path, monkeypatch, opened(session=session), *lines, *closed, **events) == code


def test_a_log_on_a_full_disk_does_not_keep_a_study_from_another_job(tmp_path, monkeypatch):
    def full(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("study.launch.supervisor.write", full)
    assert job(tmp_path, monkeypatch, *EARLIER) == AGAIN


def test_a_walltime_in_which_no_trial_ends_is_too_short(tmp_path, monkeypatch):
    with pytest.raises(LaunchError, match="must be long enough for one trial"):
        job(tmp_path, monkeypatch, opened(), TIME_IS_UP)


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_nohup_survives_a_hang_up(tmp_path, before):
    was = signal.signal(signal.SIGHUP, before)
    try:
        supervisor = Supervisor(local(tmp_path))
        with supervisor._taking_signals():
            signal.raise_signal(signal.SIGHUP)
        assert supervisor.inbox.empty() == (before is signal.SIG_IGN)
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, was)


AGENT = """
import json, sys, time
task = json.loads(sys.stdin.readline())
def say(**event):
    print(json.dumps(event), flush=True)
if sys.argv[1] == "mute":
    sys.stdin.read()
elif sys.argv[1] == "late":
    say(event="failed", reason="its disk is full")
    sys.exit(1)
else:
    say(event="started", ip="127.0.0.1", address="127.0.0.1:6379", dashboard=20008, num_cpus=2)
    if sys.argv[1] == "dying":
        time.sleep(0.2)
        say(event="failed", reason="a server of Ray no longer listens: its last line")
sys.stdin.read()
"""


def supervisor_on(tmp_path, *names, **fields):
    supervisor = Supervisor(local(tmp_path, workdir="/", **fields))
    supervisor._hosts = tuple(map(Host, names))
    return supervisor


def test_ray_comes_up_says_so_and_leaves_no_token(tmp_path, monkeypatch):
    notes = []
    monkeypatch.setattr(supervising, "note", notes.append)
    supervisor = supervisor_on(tmp_path, "head", "steady", dashboard=True)
    try:
        supervisor.start_ray()
        about = json.loads((tmp_path / "ray.json").read_text())
        assert (tmp_path / "ray.token").stat().st_mode & 0o077 == 0
        assert [about["address"], [each["host"] for each in about["hosts"]]] == ["127.0.0.1:6379", ["head", "steady"]]
    finally:
        supervisor.stop_ray()
    assert notes[-2] == "Ray is up: 2 nodes with 4 CPUs."
    assert "ssh -N -L 8265:127.0.0.1:20008 head" in notes[-1]
    assert list(tmp_path.iterdir()) == []


FAULTS = {
    ("dying", "mute"): "dying: Ray's head must go on running there, got its end",
    ("head", "dying", "mute"): "dying: a node of Ray must go on running there, got its end",
    ("head", "late"): "late: Ray must start there, got its disk is full",
    ("head", "mute"): "mute: Ray must start there within 4 s",
}


@pytest.mark.parametrize("names", FAULTS, ids="-".join)
def test_ray_that_does_not_come_up_is_told_at_once_with_host_and_reason(tmp_path, names):
    supervisor = supervisor_on(tmp_path, *names, wait_s=4 if names == ("head", "mute") else 300)
    try:
        with pytest.raises(LaunchError, match=f"^{FAULTS[names]}") as error:
            supervisor.start_ray()
        assert error.value.fix
    finally:
        supervisor.stop_ray()


@pytest.mark.parametrize(
    ("name", "given", "fields", "cpus"),
    [
        ("slurm", [72, 72, 12], {}, [(0, 72), (None, 72), (None, 12)]),
        ("slurm", [72, 72], {"use_head": True}, [(None, 72), (None, 72)]),
        ("slurm", [72, 72], {"cpus_per_node": 48}, [(0, 72), (48, 72)]),
        ("slurm", [2], {}, [(None, 2)]),
        ("ssh", [72, None], {"use_head": True}, [(72, 72), (None, None)]),
    ],
)
def test_hyper_threads_that_a_scheduler_counts_are_no_cpus_of_ray(tmp_path, monkeypatch, name, given, fields, cpus):
    """What a person asks for is taken as it is; None lets the host count its cores, up to what was granted."""
    supervisor = Supervisor(launcher(name, folder=tmp_path, **fields))
    supervisor._hosts = tuple(Host(f"n{number}", count) for number, count in enumerate(given))
    tasks = []
    monkeypatch.setattr(supervisor, "_agent", lambda host, task: tasks.append(task))
    for host in supervisor._hosts:
        supervisor._start_node(host, peer="", address="" if host is supervisor._hosts[0] else "10.0.0.1:6379")
    assert [(task.num_cpus, task.granted) for task in tasks] == cpus


@pytest.mark.timeout(60)
def test_a_remote_shell_that_ends_at_once_is_gone():
    task = CommandTask(job="1", temp_root="/tmp", environment={}, command=("true",))
    for _ in range(100):  # faster than its second thread began, once in a dozen times
        inbox = queue.SimpleQueue()
        Agent("a", ["/bin/false"], task, inbox)
        assert inbox.get(timeout=5).content == {"event": "gone", "code": 1}
