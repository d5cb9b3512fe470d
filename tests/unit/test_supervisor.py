"""What a job does when its study has not ended: another life, or the reason. No scheduler, no Ray."""

import queue
import signal
import sys

import pytest

from study.errors import ExitCode, LaunchError
from study.launch.allocation import Allocation, Host
from study.launch.job import LaunchJob
from study.launch.ray_cluster import RayCluster
from study.launch.remote import Agent, Said
from study.launch.supervisor import Supervisor
from study.launch.tasks import CommandTask
from study.records.folder import StudyFolder
from study.records.records import StudyClosed
from tests.synthetic import append, opened, whole_trial

AGAIN = 99


class Scheduler:
    def may_resume(self, signal_name):
        return True

    def resubmit(self, started_at):
        return AGAIN


class Driver:
    """An agent whose driver ended as stopped, having written its records."""

    def __init__(self, study, records):
        self._study, self._records = study, records

    def run(self, *_, **__):
        append(StudyFolder(self._study), *self._records)
        return self

    address = "10.0.0.1:6379"
    next_start_at = None

    def stop(self):
        pass

    def wait(self, seconds):
        return True


def life(tmp_path, *records, before=(), loses_head=False, walltime_s=3600.0):
    """Return the code of a job whose driver wrote these records, behind those of a life before, and stopped."""
    study = tmp_path / "s"
    study.mkdir()
    append(StudyFolder(study), *before)
    job = LaunchJob(
        scheduler="slurm", study=str(study), run=("run",), workdir="/w", python="python", walltime_s=walltime_s
    )
    supervisor = Supervisor(job, tmp_path, Scheduler())
    ended_before = supervisor._num_ended()
    driver = Driver(study, records)
    supervisor._inbox.put(Said(driver, {"event": "exited", "code": ExitCode.STOPPED}))
    supervisor._head_is_lost = loses_head
    ends_at = supervisor._started_at + walltime_s
    code = supervisor._drive(driver, Allocation(hosts=(Host(name="a", num_cpus=4),), job="1", ends_at=ends_at))
    return supervisor._end(code, ended_before)


def test_a_study_that_ran_out_of_time_is_given_another_life(tmp_path):
    assert life(tmp_path, opened(), *whole_trial(0), StudyClosed(session=1, reason="time budget")) == AGAIN


@pytest.mark.parametrize("trials", [[], [0]])
def test_a_study_that_ended_for_a_reason_of_its_own_is_not(tmp_path, trials):
    lines = [line for trial in trials for line in whole_trial(trial)]
    assert life(tmp_path, opened(), *lines, StudyClosed(session=1, reason="error", detail="full")) == ExitCode.STOPPED


def test_a_study_that_could_not_even_write_its_end_is_not(tmp_path):
    earlier = [opened(), *whole_trial(0), StudyClosed(session=1, reason="time budget")]
    assert life(tmp_path, opened(session=2), *whole_trial(1), before=earlier) == ExitCode.STOPPED


def test_a_walltime_in_which_no_trial_ends_is_too_short(tmp_path):
    with pytest.raises(LaunchError, match="long enough for one trial"):
        life(tmp_path, opened(), StudyClosed(session=1, reason="time budget"))


@pytest.mark.parametrize(("trials", "code"), [([], ExitCode.STOPPED), ([0], AGAIN)])
def test_a_lost_head_is_no_fault_of_the_study_as_long_as_it_goes_on(tmp_path, trials, code):
    lines = [line for trial in trials for line in whole_trial(trial)]
    end = StudyClosed(session=1, reason="error", detail="Ray is gone")
    assert life(tmp_path, opened(), *lines, end, loses_head=True) == code


def supervisor_of(tmp_path, **values):
    job = LaunchJob(scheduler="slurm", study="s", run=("run",), workdir="/w", python="python", **values)
    return Supervisor(job, tmp_path, Scheduler())


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_nohup_survives_a_hang_up(tmp_path, before):
    was = signal.signal(signal.SIGHUP, before)
    try:
        supervisor = supervisor_of(tmp_path)
        with supervisor._taking_signals():
            signal.raise_signal(signal.SIGHUP)
        assert supervisor._inbox.empty() == (before is signal.SIG_IGN)
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, was)


def test_the_way_to_the_dashboard_is_told(tmp_path, capsys):
    (tmp_path / "ray.json").write_text('{"dashboard": "127.0.0.1:20008"}')
    supervisor_of(tmp_path, dashboard=True, jump="front", user="me")._show_dashboard("n1")
    assert "ssh -N -L 8265:127.0.0.1:20008 -J me@front me@n1  # Ray dashboard" in capsys.readouterr().out
    supervisor_of(tmp_path)._show_dashboard("n1")
    assert capsys.readouterr().out == ""


AGENT = """
import json, sys, time
task = json.loads(sys.stdin.readline())
def say(**event):
    print(json.dumps(event), flush=True)
if sys.argv[1] == "mute":
    sys.stdin.read()
elif task["kind"] == "command":  # the one that waits until all have registered
    time.sleep(1)
    say(event="line", text="3 nodes, 12 CPUs.")
    say(event="exited", code=0)
elif sys.argv[1] == "late":
    say(event="failed", reason="its disk is full")
    sys.exit(1)
else:
    say(event="started", ip="127.0.0.1", address="127.0.0.1:6379")
    if sys.argv[1] == "early":
        time.sleep(0.2)
        sys.exit(1)
    if sys.argv[1] == "dying":
        time.sleep(0.2)
        say(event="failed", reason="a server of Ray no longer listens: its last line")
sys.stdin.read()
"""


class Local(Scheduler):
    def command(self, host, line):
        return [sys.executable, "-c", AGENT, host.name]


def test_workers_that_are_lost_while_the_cluster_comes_up_are_replaced_like_others(tmp_path):
    hosts = tuple(Host(name=name, num_cpus=4) for name in ("head", "early", "late", "steady"))
    job = LaunchJob(
        scheduler="slurm", study=str(tmp_path / "s"), run=("run",), workdir="/w", python="python", min_nodes=2
    )
    inbox, notes = queue.SimpleQueue(), []
    ray = RayCluster(job, tmp_path, Allocation(hosts=hosts, job="1", ends_at=None), Local(), inbox, notes.append)
    try:
        ray.start()
        heard = set()
        while len(heard) < 2:
            said = inbox.get(timeout=5)
            if said.event["event"] == "gone" and ray.is_ours(said.agent):
                heard.add(said.agent.host)
                assert ray.replace(said.agent) == 5
        assert heard == {"early", "late"}
    finally:
        ray.stop()


@pytest.mark.parametrize("other", ["mute", "steady"])
def test_the_death_of_the_head_is_told_at_once_with_its_last_lines(tmp_path, other):
    hosts = tuple(Host(name=name, num_cpus=4) for name in ("dying", other))
    job = LaunchJob(scheduler="slurm", study=str(tmp_path / "s"), run=("run",), workdir="/w", python="python")
    allocation = Allocation(hosts=hosts, job="1", ends_at=None)
    notes = []
    ray = RayCluster(job, tmp_path, allocation, Local(), queue.SimpleQueue(), notes.append)
    try:
        with pytest.raises(LaunchError, match=r"^dying: Ray's head must go on running there, got its end\. Fix: "):
            ray.start()  # which would wait five minutes
        assert notes[-1] == "dying: Ray's head has ended: a server of Ray no longer listens: its last line."
    finally:
        ray.stop()


def test_a_node_that_could_not_start_is_told_with_its_reason_and_what_to_do(tmp_path):
    hosts = tuple(Host(name=name, num_cpus=4) for name in ("head", "late"))
    job = LaunchJob(scheduler="slurm", study=str(tmp_path / "s"), run=("run",), workdir="/w", python="python")
    allocation = Allocation(hosts=hosts, job="1", ends_at=None)
    ray = RayCluster(job, tmp_path, allocation, Local(), queue.SimpleQueue(), print)
    try:
        with pytest.raises(LaunchError, match=r"^late: Ray must start there\. its disk is full\. Fix: "):
            ray.start()
    finally:
        ray.stop()


def test_more_nodes_than_there_are_hosts_is_said(tmp_path):
    hosts = tuple(Host(name=name, num_cpus=4) for name in ("head", "steady"))
    job = LaunchJob(
        scheduler="slurm", study=str(tmp_path / "s"), run=("run",), workdir="/w", python="python", min_nodes=3
    )
    allocation = Allocation(hosts=hosts, job="1", ends_at=None)
    with pytest.raises(LaunchError, match=r"--min-nodes: at most .* 2, got 3\. Fix: lower it"):
        RayCluster(job, tmp_path, allocation, Local(), queue.SimpleQueue(), print).start()


@pytest.mark.timeout(60)
def test_a_remote_shell_that_ends_at_once_is_gone(tmp_path):
    task = CommandTask(job="1", temp_root="/tmp", environment={}, command=("true",))
    for _ in range(200):  # faster than its second thread began, once in a dozen times
        inbox = queue.SimpleQueue()
        Agent("a", ["/bin/false"], task, inbox)
        assert inbox.get(timeout=5).event == {"event": "gone", "code": 1}
