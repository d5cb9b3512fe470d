"""Fixtures: a real SLURM, a real OAR, hosts with a real sshd; each starts once a session, and only when asked for."""

import pytest

from tests.testbed import oar as real_oar
from tests.testbed import slurm as real_slurm
from tests.testbed import ssh as real_ssh
from tests.testbed.namespaces import has_controllers, missing, obstacle


def _skip_without(component, programs):
    if reason := obstacle():
        pytest.skip(reason)
    if absent := missing(*programs):
        pytest.skip(f"{component} is not installed: no {', '.join(absent)}")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    _skip_without("SLURM", real_slurm.PROGRAMS)
    with real_slurm.running_slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="session")
def oar(tmp_path_factory):
    _skip_without("OAR", real_oar.PROGRAMS)
    if real_oar.postgresql() is None:
        pytest.skip("PostgreSQL is not installed, and OAR needs it")
    if not has_controllers():
        pytest.skip("OAR needs control groups version 1")
    with real_oar.running_oar(tmp_path_factory.mktemp("oar")) as running:
        yield running


@pytest.fixture(scope="session")
def ssh_hosts(tmp_path_factory):
    _skip_without("OpenSSH's server", real_ssh.PROGRAMS)
    with real_ssh.running_sshds(tmp_path_factory.mktemp("ssh")) as running:
        yield running
