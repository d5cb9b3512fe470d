"""One node and two, on a real SLURM, a real OAR and hosts with a real sshd: each to a finished study."""

import subprocess
import sys

import pytest

from tests.testbed.namespaces import SOURCES
from tests.testbed.studies import ACTIVATE, NAME, LaunchedStudy, assert_nothing_left
from tests.testbed.watch import watching
from tests.waiting import until


def run_on_slurm(slurm, study, nodes, options):
    job = study.launch("slurm", "--nodes", nodes, "--walltime", "0:20:00", *options)
    ended = slurm.wait_for_state(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", timeout_s=900)
    assert [ended[key] for key in ("JobState", "ExitCode", "Restarts")] == ["COMPLETED", "0:0", "0"], slurm.log_of(job)
    return slurm.log_of(job)


def run_on_oar(oar, study, nodes, options):
    job = study.launch("oar", "--nodes", nodes, "--walltime", "0:20:00", *options)
    oar.wait_for_state(job, "Terminated", "Error", timeout_s=900)
    log = "\n".join(path.read_text() for path in study.folder.parents[1].rglob("job-*.log"))
    assert (oar.state(job), oar.exit_code(job), oar.successor(job)) == ("Terminated", 0, None), log
    return log


def run_over_ssh(hosts, study, nodes, options):
    names = ",".join(host.name for host in hosts.nodes[:nodes])
    words = ("launch", "ssh", f"{NAME}.yaml", "--hosts", names, "--out", "studies", *ACTIVATE, *options)
    done = hosts.study(*words, cwd=study.place, timeout_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


RUN = {"slurm": run_on_slurm, "oar": run_on_oar, "ssh": run_over_ssh}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "nodes", [pytest.param(1, marks=pytest.mark.minutes), pytest.param(2, marks=pytest.mark.heavy)]
)
@pytest.mark.parametrize("scheduler", RUN)
def test_a_study_runs_to_its_end(scheduler, nodes, request):
    system = request.getfixturevalue("ssh_hosts" if scheduler == "ssh" else scheduler)
    hosts = system if scheduler == "ssh" else system.hosts
    study = LaunchedStudy(hosts, f"whole-{nodes}", num_trials=2)
    with watching(hosts) as watch:
        log = RUN[scheduler](system, study, nodes, ["--cpus-per-node", 2])
    assert f"Ray is up: {nodes} node{'s' if nodes > 1 else ''} with 2 CPUs." in log, log
    study.assert_whole()
    started = [record for record in study.records() if record.kind == "trial_started"]
    assert {record.execution for record in started} == {"real"}, "a runner and its trial have a CPU each"
    assert not watch.without_token
    if nodes == 2:
        watch.assert_private()
    assert_nothing_left(hosts.nodes)


@pytest.mark.minutes
@pytest.mark.timeout(600)
def test_the_death_of_the_head_is_told_at_once_with_its_last_lines(ssh_hosts):
    """It dies while the second node starts, for which the launch would wait another five minutes."""
    study = LaunchedStudy(ssh_hosts, "headless", num_trials=1)
    head, slow = ssh_hosts.nodes
    stuck = f"{ACTIVATE[1]}; [ $(uname -n) = n1 ] || sleep 1000"
    words = ("launch", "ssh", f"{NAME}.yaml", "--hosts", "n1,n2", "--cpus-per-node", 2, "--activate", stuck)
    command = ssh_hosts.ctl.words(
        [sys.executable, "-m", "study", *words], user="tester", cwd=study.place, environment=SOURCES
    )
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until(lambda: any("sleep 1000" in line for line in slow.command_lines("tester")), "n2 is starting", 120)
        (server,) = [each for each in head.processes("tester") if each.name() == "gcs_server"]
        server.kill()
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 69, said
        told = said.index("n1: Ray's head must go on running there.")
        assert told < said.index("n1: Ray's head must go on running there, got "), said
        assert "gcs_server" in said[told:], said
        assert "n2: Ray must start there" not in said, said
    finally:
        for each in [*ssh_hosts.ctl.processes("tester"), *slow.processes("tester")]:
            each.kill()
        process.wait()
