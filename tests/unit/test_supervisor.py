"""What a job does when its study has not ended: another life, or the reason. No scheduler, no Ray."""

import queue
import signal
import sys
from types import SimpleNamespace

import pytest

from study.errors import ExitCode, LaunchError
from study.launch.job import Allocation, CommandTask
from study.launch.ray_cluster import Agent, AgentEvent
from study.launch.schedulers import Slurm
from study.launch.supervisor import Supervisor
from study.records.folder import StudyFolder
from study.records.records import StudyClosed
from tests.launching import host, launcher, ray_on
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
    return launcher("slurm", folder=folder, kind=Local, **{"study": f"{folder}/s", "resubmit": True, **fields})


class Cluster:
    """A cluster of one node, and the agent of a driver, whose records are those of `job`."""

    address = "10.0.0.1:6379"
    host, content = "n2", {}
    last_lines = ""

    def __init__(self, study, records):
        self._study, self._records = study, records
        self.was_told_to_end = False

    def run(self, *_, **__):
        append(StudyFolder(self._study), *self._records)
        return self

    def role(self, agent):
        return "a node of Ray" if agent is NODE else ""

    def terminate(self):
        self.was_told_to_end = True

    def stop(self):
        pass

    def wait(self, seconds):
        return True


NODE = SimpleNamespace(host="n2", last_lines="")


def job(tmp_path, *records, before=(), loses_node=False, late="", code=ExitCode.STOPPED):
    """Return the code of a job whose driver wrote these records, behind those of a job before, and ended with `code`.

    The signal `late` comes while Ray is taken down.
    """
    study = tmp_path / "s"
    study.mkdir()
    append(StudyFolder(study), *before)
    supervisor = Supervisor(local(tmp_path))
    ended_before = supervisor._num_ended()
    cluster = Cluster(study, records)
    if loses_node:
        supervisor._inbox.put(AgentEvent(NODE, {"event": "failed", "reason": "its raylet is gone"}))
        supervisor._inbox.put(AgentEvent(NODE, {"event": "gone", "code": 1}))
    supervisor._inbox.put(AgentEvent(cluster, {"event": "exited", "code": code}))
    ends_at = supervisor._started_at + 3600
    code = supervisor._drive(cluster, Allocation(hosts=(host("a"),), job="1", ends_at=ends_at))
    assert cluster.was_told_to_end is loses_node
    if late:
        supervisor._inbox.put(late)
    return supervisor._end(code, ended_before)


@pytest.mark.parametrize(("late", "code"), [("", AGAIN), ("SIGUSR1", AGAIN), ("SIGTERM", ExitCode.STOPPED)])
def test_a_study_that_ran_out_of_time_is_given_another_job_unless_it_is_cancelled_as_it_ends(tmp_path, late, code):
    records = opened(), *whole_trial(0), StudyClosed(session=1, reason="time budget")
    assert job(tmp_path, *records, late=late) == code


def test_a_log_on_a_full_disk_does_not_keep_a_study_from_another_job(tmp_path, monkeypatch):
    def full(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("study.launch.supervisor.write", full)
    assert job(tmp_path, opened(), *whole_trial(0), StudyClosed(session=1, reason="time budget")) == AGAIN


@pytest.mark.parametrize("trials", [[], [0]])
def test_a_study_that_ended_for_a_reason_of_its_own_is_not(tmp_path, trials):
    lines = [line for trial in trials for line in whole_trial(trial)]
    assert job(tmp_path, opened(), *lines, StudyClosed(session=1, reason="error", detail="full")) == ExitCode.STOPPED


def test_a_study_that_could_not_even_write_its_end_is_not(tmp_path):
    earlier = [opened(), *whole_trial(0), StudyClosed(session=1, reason="time budget")]
    assert job(tmp_path, opened(session=2), *whole_trial(1), before=earlier) == ExitCode.STOPPED


def test_a_walltime_in_which_no_trial_ends_is_too_short(tmp_path):
    with pytest.raises(LaunchError, match="must be long enough for one trial"):
        job(tmp_path, opened(), StudyClosed(session=1, reason="time budget"))


@pytest.mark.parametrize(("trials", "code"), [([], ExitCode.STOPPED), ([0], AGAIN)])
@pytest.mark.parametrize("fault", [{"loses_node": True}, {"code": -9}])
def test_a_lost_node_or_a_killed_driver_ends_the_job_and_the_study_goes_on_in_another(tmp_path, trials, code, fault):
    lines = [line for trial in trials for line in whole_trial(trial)]
    assert job(tmp_path, opened(), *lines, **fault) == code


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_nohup_survives_a_hang_up(tmp_path, before):
    was = signal.signal(signal.SIGHUP, before)
    try:
        supervisor = Supervisor(local(tmp_path))
        with supervisor._taking_signals():
            signal.raise_signal(signal.SIGHUP)
        assert supervisor._inbox.empty() == (before is signal.SIG_IGN)
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
elif task["kind"] == "command":  # the one that waits until all have registered
    time.sleep(1)
    misses = sys.argv[1] == "head-alone"
    say(event="line", text="10.0.0.2" if misses else "3 nodes, 12 CPUs.")
    say(event="exited", code=int(misses))
elif sys.argv[1] == "late":
    say(event="failed", reason="its disk is full")
    sys.exit(1)
else:
    say(event="started", ip="127.0.0.1", address="127.0.0.1:6379", dashboard="127.0.0.1:20008")
    if sys.argv[1] == "dying":
        time.sleep(0.2)
        say(event="failed", reason="a server of Ray no longer listens: its last line")
sys.stdin.read()
"""


def test_a_cluster_comes_up_and_knows_its_nodes(tmp_path):
    inbox = queue.SimpleQueue()
    ray = ray_on(local(tmp_path), host("head"), host("steady"), inbox=inbox)
    try:
        ray.start()
        assert ray.dashboard_port == 20008
        assert [ray.role(agent) for agent in ray._agents] == ["Ray's head", "a node of Ray"]
        assert ray.role(NODE) == ""
    finally:
        ray.stop()


FAULTS = {
    ("dying", "mute"): "dying: Ray's head must go on running there, got its end",
    ("dying", "steady"): "dying: Ray's head must go on running there, got its end",
    ("head", "steady", "dying"): "dying: a node of Ray must go on running there, got its end",
    ("head", "late"): "late: Ray must start there, got its disk is full",
    ("head-alone", "steady"): "10.0.0.2: must register with Ray's head",
    ("head", "mute"): "mute: Ray must start there within 4 s",
}


@pytest.mark.parametrize("names", FAULTS, ids="-".join)
def test_ray_that_does_not_come_up_is_told_at_once_with_host_and_reason(tmp_path, names):
    notes = []
    wait_s = 4 if names == ("head", "mute") else 300
    ray = ray_on(local(tmp_path, wait_s=wait_s), *map(host, names), note=notes.append)
    try:
        with pytest.raises(LaunchError, match=f"^{FAULTS[names]}") as error:
            ray.start()
        assert error.value.fix
        if names[0] == "dying":
            assert notes[-1] == "dying: Ray's head has ended: a server of Ray no longer listens: its last line."
    finally:
        ray.stop()


@pytest.mark.timeout(60)
def test_a_remote_shell_that_ends_at_once_is_gone(tmp_path):
    task = CommandTask(job="1", temp_root="/tmp", environment={}, command=("true",))
    for _ in range(200):  # faster than its second thread began, once in a dozen times
        inbox = queue.SimpleQueue()
        Agent("a", ["/bin/false"], task, inbox)
        assert inbox.get(timeout=5).content == {"event": "gone", "code": 1}
