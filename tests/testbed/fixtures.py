"""Fixtures: a real SLURM, a real OAR, hosts with a real sshd; each starts once a session, and only when asked for."""

import pytest

from tests.testbed.namespaces import has_controllers, obstacle
from tests.testbed.oar import PROGRAMS as OAR
from tests.testbed.oar import postgresql, running_oar
from tests.testbed.slurm import PROGRAMS as SLURM
from tests.testbed.slurm import running_slurm
from tests.testbed.ssh import PROGRAMS as SSH
from tests.testbed.ssh import running_sshds


def _fixture(start, programs, further=lambda: True):
    @pytest.fixture(scope="session")
    def running(tmp_path_factory):
        if (reason := obstacle(*programs)) or not further():
            pytest.skip(reason or "OAR needs PostgreSQL, and control groups version 1")
        with start(tmp_path_factory.mktemp(programs[0])) as system:
            yield system

    return running


slurm = _fixture(running_slurm, SLURM)
oar = _fixture(running_oar, OAR, lambda: postgresql() is not None and has_controllers())
ssh_hosts = _fixture(running_sshds, SSH)
