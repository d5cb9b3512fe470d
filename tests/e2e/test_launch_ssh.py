"""`launch ssh` on two simulated hosts with an ordinary sshd each: to the end, killed, beside somebody else's Ray."""

import contextlib
import signal
import subprocess
import sys

import pytest

from tests.testbed.namespaces import ADDRESSES, SOURCES
from tests.testbed.studies import ACTIVATE, NAME, LaunchedStudy, assert_nothing_left, assert_nothing_runs
from tests.testbed.watch import watching
from tests.waiting import until

pytestmark = [pytest.mark.minutes, pytest.mark.timeout(1800)]

LAUNCH = ("launch", "ssh", f"{NAME}.yaml", "--hosts", "n1,n2", "--cpus-per-node", 2, "--out", "studies", *ACTIVATE)


@contextlib.contextmanager
def launched(hosts, study):
    """Launch on `ctl`, in the foreground as a person would; yield the process and its log."""
    log = study.folder.parents[1] / "log"
    words = hosts.ctl.words(
        [sys.executable, "-m", "study", *LAUNCH], user="tester", cwd=study.place, environment=SOURCES
    )
    with log.open("w") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process, log
    finally:
        for each in hosts.ctl.processes("tester"):
            each.kill()
        process.wait()


def supervisors(hosts):
    """Return the processes of `study launch`, without the ssh clients below them."""
    return [process for process in hosts.ctl.processes("tester") if "launch" in process.cmdline()]


@contextlib.contextmanager
def ray_of_another_user(host):
    """Run a Ray of `other` on a host; yield a function that returns the ids of its servers."""
    words = ("start", "--head", "--port=6399", f"--node-ip-address={ADDRESSES[host.name]}", "--num-cpus=1", "--block")
    more = ("--include-dashboard=false", "--temp-dir=/tmp/other", "--disable-usage-stats")
    full = host.words(
        [sys.executable, "-m", "ray.scripts.scripts", *words, *more],
        user="other",
        cwd="/home/other",
        environment={"RAY_AUTH_MODE": "disabled"},
    )

    def servers():
        return sorted(each.pid for each in host.processes("other") if each.name() in ("gcs_server", "raylet"))

    process = subprocess.Popen(full, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(servers()) == 2, "the other user's Ray is up")
        yield servers
    finally:
        for each in host.processes("other"):
            each.kill()
        process.wait()


def test_a_study_runs_on_a_list_of_hosts_beside_somebody_elses_ray(ssh_hosts):
    study = LaunchedStudy(ssh_hosts, "small", num_trials=2)
    with ray_of_another_user(ssh_hosts.nodes[0]) as servers, watching(ssh_hosts) as watch:
        before = servers()
        with launched(ssh_hosts, study) as (process, log):
            assert process.wait(timeout=600) == 0, log.read_text()
        assert_nothing_left(ssh_hosts.nodes)
        assert servers() == before
    study.assert_whole()
    watch.assert_private()


def test_a_killed_launch_leaves_no_ray_on_the_hosts_and_can_be_resumed(ssh_hosts):
    study = LaunchedStudy(ssh_hosts, "killed", num_trials=5)
    with ray_of_another_user(ssh_hosts.nodes[1]) as servers:
        before = servers()
        with launched(ssh_hosts, study):
            study.wait_until_midway()
            (supervisor,) = supervisors(ssh_hosts)
            supervisor.send_signal(signal.SIGKILL)
            assert_nothing_runs(ssh_hosts.nodes, timeout_s=30)
        assert servers() == before
    with launched(ssh_hosts, study) as (process, log):
        assert process.wait(timeout=600) == 0, log.read_text()
    assert study.num_sessions() == 2
    study.assert_whole()
    assert_nothing_left(ssh_hosts.nodes)
