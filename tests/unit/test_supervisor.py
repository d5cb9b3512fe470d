"""What a job does when Ray does not come up, and when its study has not ended: another life, or the reason. No Ray."""

import signal
import sys

import pytest

from study.errors import ExitCode, LaunchError
from study.launch import supervisor as supervising
from study.launch.job import Host
from study.launch.schedulers import Launcher
from study.launch.supervisor import Supervisor
from study.records.folder import StudyFolder
from study.records.records import StudyClosed
from tests.launching import launcher
from tests.synthetic import append, opened, whole_trial

AGAIN = 99
AGENT = """
import json, sys, time
task, host = json.loads(sys.stdin.readline()), sys.argv[1]
if task["command"]:
    print("the study's own line", flush=True)
    sys.exit(int(host.partition("-")[2]))
if host == "late":
    sys.exit("its disk is full")
if host != "mute":
    about = {"ip": "127.0.0.1", "address": "127.0.0.1:6379", "num_cpus": 2}
    print("@ray-is-up " + json.dumps(about), flush=True)
if host == "dying":
    time.sleep(0.2)
    sys.exit("a server of Ray no longer listens: its last line")
sys.stdin.read()
"""


class Local(Launcher):
    """A launcher whose remote shells are programs here; a host's name says what they do."""

    def remote_shell(self, host, line):
        return [sys.executable, "-c", AGENT, host.name]

    def allocation(self):
        return "17", tuple(Host(name, 2) for name in self.job.hosts.split(",")), self.ends_at

    def may_resume(self, signal_name):
        return signal_name != "SIGTERM"

    def resubmit(self, started_at):
        return AGAIN


def supervisor_on(folder, hosts, *, ends_in_s=None, **fields):
    """Return the supervisor of a job on hosts, whose study is in a folder."""
    job = {"out": str(folder), "workdir": "/", "hosts": ",".join(hosts), **fields}
    made = launcher("slurm", folder=folder, kind=Local, **job)
    supervisor = Supervisor(made)
    made.ends_at = None if ends_in_s is None else supervisor._started_at + ends_in_s
    return supervisor


# --- Ray --------------------------------------------------------------------------------------------------------------


def test_ray_comes_up_says_so_and_leaves_no_token(tmp_path, monkeypatch):
    notes = []
    monkeypatch.setattr(supervising, "note", notes.append)
    supervisor = supervisor_on(tmp_path, [])
    supervisor._hosts = (Host("head"), Host("steady"))
    try:
        assert supervisor.start_ray()
        assert (tmp_path / "ray.token").stat().st_mode & 0o077 == 0
    finally:
        supervisor.stop_ray()
    assert notes[-1] == "Ray is up: 2 nodes with 4 CPUs."
    assert list(tmp_path.iterdir()) == []


FAULTS = {
    ("dying", "mute"): "dying: Ray's head must go on running there, got a server of Ray no longer listens",
    ("head", "dying", "mute"): "dying: a node of Ray must go on running there, got a server of Ray",
    ("head", "late"): "late: Ray must start there, got its disk is full",
    ("head", "mute"): "mute: Ray must start there within 4 s",
}


@pytest.mark.parametrize("names", FAULTS, ids="-".join)
def test_ray_that_does_not_come_up_is_told_at_once_with_host_and_reason(tmp_path, names):
    with pytest.raises(LaunchError, match=f"^{FAULTS[names]}") as error:
        supervisor_on(tmp_path, names, wait="4s" if names == ("head", "mute") else "5m").run()
    assert error.value.fix
    assert not list(tmp_path.iterdir())


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
    monkeypatch.setattr(supervisor, "_agent", lambda host, **task: tasks.append(task))
    for host in supervisor._hosts:
        supervisor._start_node(host, peer="", address="" if host is supervisor._hosts[0] else "10.0.0.1:6379")
    assert [(task["num_cpus"], task["granted"]) for task in tasks] == cpus


# --- the end ----------------------------------------------------------------------------------------------------------

TIME_IS_UP = StudyClosed(session=1, reason="time budget")
OF_ITS_OWN = StudyClosed(session=1, reason="error", detail="full")
EARLIER = (opened(), *whole_trial(0), TIME_IS_UP)
ENDS = [
    # trials that ended, how the driver closed the study, what else happened; the code of the job
    ([0], [TIME_IS_UP], {}, AGAIN),
    ([], [TIME_IS_UP], {}, LaunchError),  # the walltime is too short
    ([0], [TIME_IS_UP], {"late": "SIGUSR1"}, AGAIN),
    ([0], [TIME_IS_UP], {"late": "SIGTERM"}, ExitCode.STOPPED),  # somebody cancels it as it ends
    ([], [OF_ITS_OWN], {}, ExitCode.STOPPED),
    ([0], [OF_ITS_OWN], {}, ExitCode.STOPPED),
    ([], [], {"before": EARLIER}, ExitCode.STOPPED),  # it could not even write its end
    ([], [], {"nodes": ("dying",)}, LaunchError),
    ([0], [], {"nodes": ("dying",)}, AGAIN),
    ([], [], {"code": 128 + 9}, LaunchError),
    ([0], [], {"code": 128 + 9}, AGAIN),
    ([0], [], {"code": 255}, LaunchError),  # the connection broke
    ([0], [], {"code": 1}, 1),
]


@pytest.mark.parametrize(("trials", "closed", "events", "code"), ENDS)
def test_a_study_is_given_another_job_where_time_or_a_node_ended_it_after_a_trial(
    tmp_path, trials, closed, events, code
):
    before = events.get("before", ())
    study = StudyFolder(tmp_path / "s")
    study.path.mkdir()
    append(study, *before)
    supervisor = supervisor_on(tmp_path, [], ends_in_s=3600)
    supervisor._ends_at = supervisor._started_at + 3600
    supervisor._hosts = (Host(f"head-{events.get('code', ExitCode.STOPPED)}"), *map(Host, events.get("nodes", ())))
    ended_before, _ = supervisor.progress()
    lines = [line for trial in trials for line in whole_trial(trial)]
    append(study, opened(session=2 if before else 1), *lines, *closed)
    try:
        assert supervisor.start_ray()
        if events.get("nodes"):
            assert supervisor._nodes[1]._process.wait(10)
            while supervisor.inbox.qsize() < 2:
                pass
        driven = supervisor.drive()
        if "late" in events:
            supervisor.inbox.put((None, events["late"]))
        assert supervisor.end(driven, ended_before) == code
    except LaunchError:
        assert code is LaunchError
    finally:
        supervisor.stop_ray()


def test_a_log_on_a_full_disk_does_not_end_a_job(tmp_path, monkeypatch):
    def full(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(supervising, "write", full)
    assert supervisor_on(tmp_path, ["head-0"]).run() == 0


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_nohup_survives_a_hang_up(tmp_path, before):
    was = signal.signal(signal.SIGHUP, before)
    try:
        supervisor = supervisor_on(tmp_path, [])
        with supervisor._taking_signals():
            signal.raise_signal(signal.SIGHUP)
        assert supervisor.inbox.empty() == (before is signal.SIG_IGN)
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, was)
