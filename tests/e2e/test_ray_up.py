"""The printed commands around `ray up`, typed on one simulated host, with an ordinary sshd on two others."""

import contextlib
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.e2e.commands import assert_whole
from tests.testbed.namespaces import ADDRESSES
from tests.testbed.studies import NAME, SPACE
from tests.testbed.watch import watching

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

RAY = (sys.executable, "-m", "ray.scripts.scripts")


@dataclass(frozen=True)
class Written:
    """What `launch ray-up` wrote and printed."""

    place: str
    commands: list[str]
    """Prepare, up, run, fetch, stop, forget."""
    temp: str
    """Folder of the cluster on every host."""
    home: str
    """Folder of the study on the head."""


@pytest.fixture
def lab(ssh_hosts, request):
    """Files of a cluster on both nodes, written on `ctl` by the command."""
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    place = ssh_hosts.make_place(request.node.name[:20])
    ssh_hosts.write(f"{place}/{NAME}.yaml", SPACE.format(lrs="0.001, 0.002", env_steps=400))
    words = ("launch", "ray-up", f"{NAME}.yaml", "--hosts", f"{ADDRESSES['n1']}:2,n2:3")
    done = ssh_hosts.study(*words, cwd=place)
    assert done.returncode == 0, done.stdout + done.stderr
    commands = re.findall(r"^# .*\n(.*)$", done.stdout, flags=re.MULTILINE)
    temp, home = (re.search(pattern, done.stdout)[0] for pattern in (r"/tmp/ru-[a-z0-9-]+", r"study-[a-z0-9-]+"))
    return Written(place, commands, temp, f"/home/tester/{home}")


def type_in(hosts, place, *lines, timeout_s=900):
    """Type lines into one shell of `tester` on `ctl`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "set -e\n" + "\n".join(lines)
    words = ("bash", "-c", script)
    return hosts.ctl.run(*words, user="tester", cwd=place, environment={"PATH": path}, timeout_s=timeout_s, check=False)


def servers(host):
    """Return Ray's servers on a host, by process id."""
    found = {}
    for each in host.processes("tester"):
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.name() in ("gcs_server", "raylet"):
                found[each.pid] = each
    return found


@pytest.fixture
def own_ray(ssh_hosts):
    """Another Ray of the same user, on the worker's host."""
    host = ssh_hosts.by_name["n2"]
    words = ["start", "--head", "--port=6399", f"--node-ip-address={ADDRESSES['n2']}", "--num-cpus=1"]
    words += ["--include-dashboard=false", "--temp-dir=/tmp/own", "--disable-usage-stats"]
    host.run(*RAY, *words, user="tester", cwd="/home/tester", environment={"RAY_AUTH_MODE": "disabled"})
    yield set(servers(host))
    for each in host.processes("tester"):
        each.kill()


def test_the_commands_run_a_study_and_stop_only_its_own_ray(ssh_hosts, lab, own_ray):
    prepare, up, study, fetch, stop, forget = lab.commands
    head, worker = ssh_hosts.nodes
    with watching(ssh_hosts) as watch:
        done = type_in(ssh_hosts, lab.place, prepare, up, study, fetch)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        assert "2 nodes with 3 CPUs" in done.stdout, "no trial runs on the head"
        assert_whole(
            ssh_hosts.outside(lab.place) / "studies" / NAME, f"sqlite:///{ssh_hosts.outside(lab.home)}/mlflow.db", 2
        )
        assert len(servers(head)) == 2
        assert len(set(servers(worker)) - own_ray) == 1

        done = type_in(ssh_hosts, lab.place, prepare, stop)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        assert {each.name() for each in head.processes("tester")} <= {"sshd"}
        assert set(servers(worker)) == own_ray
        left = [" ".join(each.cmdline()) for each in worker.processes("tester") if lab.temp in str(each.cmdline())]
        assert not left

        done = type_in(ssh_hosts, lab.place, prepare, forget)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert watch.tokens
    assert not watch.exposed
