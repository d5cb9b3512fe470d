"""`launch` on a real SLURM, a real OAR and hosts with a real sshd: to the end, preempted, killed, late, cancelled."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from study.records.records import TrialEnded, TrialStarted
from tests.e2e.commands import ROOT, assert_whole, records
from tests.testbed.hosts import ADDRESSES, SOURCES, USERS
from tests.waiting import until

pytestmark = pytest.mark.timeout(1800)

NAME = "tiny"
ACTIVATE = ("--activate", f"export PYTHONPATH={ROOT}")
"""Options of a launch that runs this checkout, and not another one that is installed."""
GRID = """
environment: {{id: CartPole-v1, floor: 0, reference: 500, target: 450}}
parameters:
  num_env_runners: 1
  num_envs_per_env_runner: 2
  train_batch_size: 200
  lr: {lrs}
  minibatch_size: 64
  num_epochs: 2
budget: {{env_steps: {env_steps}}}
search: {{sampler: grid, seeds: [1]}}
evaluation: {{episodes: 2, num_evaluations: 1}}
"""


class Launched:
    """A study in a folder of `tester`; its trials are known before it runs, since a grid counts them."""

    def __init__(self, system, place, *, num_trials=5, env_steps=400):
        self.hosts, self.num_trials = system.hosts, num_trials
        self.cwd = f"/home/tester/{place}"
        self.place = self.hosts.outside(self.cwd)
        self.place.mkdir(mode=0o755)
        self.lrs = [round(0.001 + 0.0001 * number, 4) for number in range(num_trials)]
        (self.place / f"{NAME}.yaml").write_text(GRID.format(lrs=self.lrs, env_steps=env_steps))
        os.chown(self.place, USERS["tester"], USERS["tester"])
        self.folder = self.place / "studies" / NAME

    def words(self, scheduler, *options):
        """Return the command of a launch on `ctl`, in the foreground as a person would type it."""
        words = ("launch", scheduler, "--space", f"{NAME}.yaml", "--cpus-per-node", 2, *ACTIVATE, *options)
        return [sys.executable, "-m", "study", *words], {"user": "tester", "cwd": self.cwd, "environment": SOURCES}

    def submit(self, scheduler, *options, walltime="0:40:00", nodes=2):
        """Launch it as a job; return its number."""
        words, place = self.words(scheduler, "--nodes", nodes, "--walltime", walltime, *options)
        said = self.hosts.ctl.run(*words, **place).stdout
        return re.findall(r"Submitted as job (\d+)", said)[0]

    @contextlib.contextmanager
    def over_ssh(self, *options):
        """Launch it over ssh; yield the process, and a function that returns what it has printed."""
        words, place = self.words("ssh", *options)
        with (self.place / "log").open("w") as file:
            full = self.hosts.ctl.words(words, **place)
            process = subprocess.Popen(full, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield process, (self.place / "log").read_text
        finally:
            for each in self.hosts.ctl.processes("tester"):
                each.kill()
            process.wait()

    def num_ended(self):
        return sum(isinstance(each, TrialEnded) and each.status != "interrupted" for each in records(self.folder))

    def num_sessions(self):
        return sum(each.kind == "study_opened" for each in records(self.folder))

    def wait_until_midway(self):
        """Wait until a trial has ended and others have not."""
        until(lambda: self.num_ended() >= 1, "a first trial ended", 600)
        assert self.num_ended() < self.num_trials

    def assert_whole(self):
        """Every trial of the grid ended well and once, in records and MLflow, and nothing is left on the nodes."""
        started = {each.trial: each for each in records(self.folder) if isinstance(each, TrialStarted)}
        assert sorted((trial.seed, trial.setting["lr"]) for trial in started.values()) == [(1, lr) for lr in self.lrs]
        assert {each.execution for each in started.values()} == {"real"}, "a runner and its trial have a CPU each"
        assert_whole(self.folder, f"sqlite:///{self.place}/mlflow.db", self.num_trials)
        self.assert_nothing_left()

    def assert_private(self, nodes):
        """Ray comes up on so many nodes, whose servers ask for tokens, and no command line shows one."""
        until(lambda: len(self.hosts.rays()) == nodes, lambda: f"Ray is up: {self.hosts.rays()}", 600)
        tokens = set().union(*self.hosts.rays().values())
        assert tokens and "" not in tokens
        lines = [line for host in self.hosts.by_name.values() for line in host.command_lines()]
        assert not [line for line in lines if any(token in line for token in tokens)]

    def assert_nothing_runs(self, timeout_s=20):
        def processes():
            return [f"{host.name}: {line}" for host in self.hosts.nodes for line in host.command_lines("tester")]

        until(lambda: not processes(), lambda: f"all processes of tester ended: {processes()}", timeout_s)

    def assert_nothing_left(self):
        """No process of `tester` runs on the nodes, and no file of one is left on their own disks."""
        self.assert_nothing_runs()
        for host in self.hosts.nodes:
            left = host.run("find", "/tmp", "/var/tmp", "/dev/shm", "!", "-type", "d", "-user", "tester").stdout
            assert not left, f"{host.name}: {left}"


@contextlib.contextmanager
def ray_of_another_user(host):
    """Run a Ray of `other` on a host, and see that nobody ends it."""
    words = ("start", "--head", "--port=6399", f"--node-ip-address={ADDRESSES[host.name]}", "--num-cpus=1", "--block")
    words += ("--include-dashboard=false", "--temp-dir=/tmp/other", "--disable-usage-stats")
    place = {"user": "other", "cwd": "/home/other", "environment": {"RAY_AUTH_MODE": "disabled"}}
    full, nothing = host.words([sys.executable, "-m", "ray.scripts.scripts", *words], **place), subprocess.DEVNULL

    def servers():
        return sorted(each.pid for each in host.processes("other") if each.name() in ("gcs_server", "raylet"))

    process = subprocess.Popen(full, stdin=nothing, stdout=nothing, stderr=nothing)
    try:
        until(lambda: len(servers()) == 2, "the other user's Ray is up")
        before = servers()
        yield
        assert servers() == before
    finally:
        for each in host.processes("other"):
            each.kill()
        process.wait()


# --- to the end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nodes", [pytest.param(1, marks=pytest.mark.minutes), pytest.param(2, marks=pytest.mark.heavy)]
)
@pytest.mark.parametrize("name", ["slurm", "oar", "ssh"])
def test_a_study_runs_to_its_end_beside_somebody_elses_ray_and_nothing_of_it_is_open_to_others(name, nodes, request):
    system = request.getfixturevalue(name)
    study, names = Launched(system, f"whole-{nodes}", num_trials=2), [host.name for host in system.hosts.nodes[:nodes]]
    if name == "ssh":
        with ray_of_another_user(system.hosts.nodes[0]), study.over_ssh("--hosts", ",".join(names)) as (process, said):
            study.assert_private(nodes)
            assert process.wait(timeout=900) == 0, said()
            log = said()
    else:
        job = study.submit(name, nodes=nodes, walltime="0:20:00")
        study.assert_private(nodes)
        state = system.wait_for(job, timeout_s=900)
        assert state == ("COMPLETED" if name == "slurm" else "Terminated"), system.log()
        assert system.job(job)["Restarts"] == "0" if name == "slurm" else not system.successors(job)
        log = system.log()
    assert f"Ray is up: {nodes} node{'s' if nodes > 1 else ''} with 2 CPUs." in log, log
    study.assert_whole()


# --- killed, and resumed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way", [pytest.param("preempted", marks=pytest.mark.minutes), pytest.param("walltime", marks=pytest.mark.heavy)]
)
def test_a_study_on_slurm_that_is_interrupted_is_requeued_and_resumes(slurm, way):
    study = Launched(slurm, way, env_steps=30_000 if way == "walltime" else 400)
    job, restarts = study.submit("slurm", "--", "--partition=low"), 0
    study.wait_until_midway()
    if way == "preempted":
        high = slurm.preempt()
        assert slurm.wait_for(high, timeout_s=120) == "COMPLETED"
        assert 1 <= study.num_ended() < study.num_trials
    else:
        hours, minutes, _ = map(int, slurm.job(job)["RunTime"].split(":"))
        slurm.update(job, f"TimeLimit={60 * hours + minutes + 3}")  # the signal is due two to three minutes before it
        slurm.wait_for(job, "PENDING", timeout_s=240)
        assert "Received SIGUSR1" in slurm.log()
        slurm.update(job, "TimeLimit=40")
    while slurm.state(job) not in slurm.ended:
        if slurm.wait_for(job, "PENDING", timeout_s=500) == "PENDING":
            study.assert_nothing_left()
            restarts += 1
            slurm.update(job, "StartTime=now")  # instead of two minutes later
            slurm.wait_for(job, "RUNNING")
    assert slurm.wait_for(job, timeout_s=500) == "COMPLETED", slurm.log()
    assert slurm.job(job)["Restarts"] == str(restarts) != "0"
    assert study.num_sessions() == 1 + restarts
    study.assert_whole()


@pytest.mark.heavy
def test_a_study_on_slurm_that_its_owner_cancels_is_not_requeued_and_a_second_launch_resumes(slurm):
    study = Launched(slurm, "cancelled")
    job = study.submit("slurm", "--", "--partition=low")
    study.wait_until_midway()
    slurm.hosts.ctl.run("scancel", job, user="tester")
    assert (slurm.wait_for(job), slurm.job(job)["Restarts"]) == ("CANCELLED", "0")
    study.assert_nothing_runs()
    following = study.submit("slurm", "--", "--partition=low")
    assert slurm.wait_for(following, timeout_s=500) == "COMPLETED", slurm.log()
    assert study.num_sessions() == 2
    study.assert_whole()


@pytest.mark.parametrize(
    ("way", "options"),
    [
        pytest.param("preempted", ("-t", "besteffort"), marks=pytest.mark.minutes),
        pytest.param("killed", ("-t", "besteffort", "--checkpoint", "0"), marks=pytest.mark.heavy),
        pytest.param("early", (), marks=pytest.mark.heavy),  # told to end in its first minute, before it may
    ],
)
def test_a_study_on_oar_that_is_interrupted_is_submitted_again_under_another_number_and_resumes(oar, way, options):
    study = Launched(oar, way)
    job = study.submit("oar", *(("--", *options) if options else ()))
    if way == "early":
        oar.wait_for(job, "Running")
        until(lambda: "Ray's head" in oar.log(), "Ray is starting")
        oar.hosts.ctl.run("oardel", "-c", job, user="tester")
        oar.wait_for(job, timeout_s=200)
    else:
        study.wait_until_midway()
        normal = oar.preempt()
        oar.wait_for(job, timeout_s=400)
        assert ("BESTEFFORT_KILL" in oar.events(job)) == (way == "killed"), oar.events(job)
        assert way == "killed" or 1 <= study.num_ended() < study.num_trials, oar.log()
        oar.wait_for(normal, timeout_s=120)
    if way != "killed":
        assert oar.exit_code(job) == 99, oar.log()
        assert "CHECKPOINT" in oar.events(job)
    (following,) = until(lambda: oar.successors(job), lambda: f"job {job} resubmitted: {oar.log()}", 60, period_s=0.5)
    assert following != job
    assert (oar.wait_for(following, timeout_s=500), oar.exit_code(following)) == ("Terminated", 0), oar.log()
    study.assert_whole()


@pytest.mark.minutes
def test_a_killed_launch_over_ssh_leaves_no_ray_of_its_own_on_the_hosts_and_resumes(ssh):
    study = Launched(ssh, "killed")
    with ray_of_another_user(ssh.hosts.nodes[1]), study.over_ssh("--hosts", "n1,n2"):
        study.wait_until_midway()
        (supervisor,) = [each for each in ssh.hosts.ctl.processes("tester") if "launch" in each.cmdline()]
        supervisor.send_signal(signal.SIGKILL)
        study.assert_nothing_runs(timeout_s=30)
    with study.over_ssh("--hosts", "n1,n2") as (process, said):
        assert process.wait(timeout=600) == 0, said()
    assert study.num_sessions() == 2
    study.assert_whole()


@pytest.mark.minutes
def test_two_launches_on_one_host_do_not_meet_and_leave_nothing(ssh):
    studies = [Launched(ssh, name, num_trials=1) for name in ("one", "two")]
    with contextlib.ExitStack() as running:
        launched = [running.enter_context(each.over_ssh("--hosts", "n1")) for each in studies]
        for process, said in launched:
            assert process.wait(timeout=900) == 0, said()
            assert "Ray is up: 1 node with 2 CPUs." in said()
    for study in studies:
        study.assert_whole()
