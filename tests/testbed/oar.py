"""Real OAR on simulated hosts: server and PostgreSQL on `ctl`, jobs on `n1` and `n2` with four cores each.

Each job has a cpuset on every node, and the epilogue empties /tmp, /var/tmp and /dev/shm of its user, as installed.
Needs control groups version 1.
"""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.namespaces import ADDRESSES, CONTROLLERS, CTL, NODES, SHARED, Host, Hosts, simulated_hosts
from tests.waiting import until

PROGRAMS = ("oar-server", "oarsub", "oarnodesetting", "oar-database", "sshd")
CONFIGURATION, OAR_HOME = Path("/etc/oar"), Path("/var/lib/oar")
SETTINGS = {
    "DB_HOSTNAME": "localhost",
    "DB_PORT": "5432",
    "DB_BASE_PASSWD": "oar",
    "DB_BASE_PASSWD_RO": "oar_ro",
    "SERVER_HOSTNAME": ADDRESSES[CTL],
    "SCHEDULER_JOB_SECURITY_TIME": "2",  # 60 as installed: so long a start would be put off
    "LOG_LEVEL": "3",
    "LOG_FILE": f"{SHARED}/oar/oar.log",
}
"""Lines of oar.conf that differ from the installed ones."""
CORES_PER_NODE = 4
ENDED = ("Terminated", "Error")
DATABASE_OPTIONS = "-c listen_addresses=localhost -c fsync=off"


def postgresql() -> Path | None:
    """Return the folder of PostgreSQL's server programs, None where there are none."""
    return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


@dataclass(frozen=True, kw_only=True)
class Oar:
    """An OAR that runs."""

    hosts: Hosts

    def ask(self, query: str) -> list[str]:
        """Return the rows of a query on OAR's database, columns joined by `|`."""
        words = ("psql", "-X", "-t", "-A", "-d", "oar", "-c", query)
        return self.hosts.ctl.run(*words, user="postgres").stdout.split("\n")[:-1]

    def _of_job(self, number: str, column: str) -> str:
        return self.ask(f"select {column} from jobs where job_id = {int(number)}")[0]

    def state(self, number: str) -> str:
        """Return the state of a job: Waiting, Launching, Running, Finishing, Terminated, Error, ..."""
        return self._of_job(number, "state")

    def exit_code(self, number: str) -> int:
        """Return what the job's script ended with."""
        return int(self._of_job(number, "exit_code")) >> 8

    def events(self, number: str) -> list[str]:
        """Return the types of what OAR noted of a job, in order: CHECKPOINT, BESTEFFORT_KILL, ..."""
        return self.ask(f"select type from event_logs where job_id = {int(number)} order by event_id")

    def successor(self, number: str) -> str | None:
        """Return the job that a job was resubmitted as."""
        found = self.ask(f"select job_id from jobs where resubmit_job_id = {int(number)}")
        return found[0] if found else None

    def wait_for_state(self, number: str, *states: str, timeout_s: float = 60) -> None:
        """Wait until a job is in one of these states."""
        until(
            lambda: self.state(number) in states,
            lambda: f"job {number} {' or '.join(states)}: {self.state(number)}, {self.events(number)}",
            timeout_s,
            period_s=0.5,
        )

    def submit(self, *options: str, command: str, user: str = "tester") -> str:
        """Submit a command as a job; return its number."""
        words = ("oarsub", *options, "-O", "/dev/null", "-E", "/dev/null", command)
        return job_number(self.hosts.ctl.run(*words, user=user, cwd=f"/home/{user}").stdout)


def job_number(said: str) -> str:
    """Return the number in what oarsub prints."""
    found = re.search(r"OAR_JOB_ID=(\d+)", said)
    assert found, said
    return found[1]


@contextlib.contextmanager
def running_oar(folder: Path) -> Iterator[Oar]:
    """Start OAR in an empty folder, yield it, remove it."""
    configuration, homes = folder / "configuration", folder / "oar"
    subprocess.run(["cp", "-a", str(CONFIGURATION), str(configuration)], check=True)
    _set(configuration / "oar.conf", SETTINGS)
    homes.mkdir()
    for name in ADDRESSES:
        subprocess.run(["cp", "-a", str(OAR_HOME), str(homes / name)], check=True)
    with simulated_hosts(
        folder, binds={configuration: str(CONFIGURATION)}, own={homes: str(OAR_HOME)}, groups=True
    ) as hosts:
        oar = Oar(hosts=hosts)
        place = hosts.shared / "oar"
        place.mkdir()
        shutil.chown(place, "oar", "oar")
        _start_database(hosts.ctl)
        for node in hosts.nodes:
            _start_node(node)
        _describe_nodes(hosts.ctl)
        hosts.ctl.run("oar-server")
        for node in hosts.nodes:
            hosts.ctl.run("oarnodesetting", "-h", node.name, "-s", "Alive")
        yield oar


def _set(file: Path, settings: dict[str, str]) -> None:
    """Replace settings of oar.conf in place, so that its owner and mode stay."""
    text = file.read_text()
    for name, value in settings.items():
        text, count = re.subn(rf"^#?{name}=.*$", f'{name}="{value}"', text, flags=re.MULTILINE)
        assert count, f"{file} has no {name}"
    file.write_text(text)


def _start_database(ctl: Host) -> None:
    """Start a PostgreSQL with OAR's tables."""
    programs, data = postgresql(), SHARED / "oar" / "db"
    assert programs is not None
    ctl.run("install", "-d", "-o", "postgres", "/run/postgresql", data)
    ctl.run(programs / "initdb", "-D", data, "-A", "trust", "--no-sync", user="postgres")
    log = ("-l", data / "log", "-o", DATABASE_OPTIONS)
    ctl.run(programs / "pg_ctl", "-D", data, *log, "-w", "start", user="postgres")
    for order in ("create role adm superuser login password 'adm'", "create database adm owner adm"):
        ctl.run("psql", "-X", "-q", "-c", order, user="postgres")
    ctl.run("oar-database", "--create", "--db-admin-user=adm", "--db-admin-pass=adm")


def _start_node(node: Host) -> None:
    """Start OAR's sshd, and show its job manager this host's control groups."""
    node.run("mkdir", "-p", "/run/sshd", "/dev/oar_cgroups_links")
    for name in CONTROLLERS:
        node.run("ln", "-s", f"/sys/fs/cgroup/{name}", f"/dev/oar_cgroups_links/{name}")
    node.run("ln", "-s", "/sys/fs/cgroup/cpuset", "/dev/cpuset")
    node.run("/usr/sbin/sshd", "-f", CONFIGURATION / "sshd_config", "-o", "PidFile=/run/oar-sshd.pid")


def _describe_nodes(ctl: Host) -> None:
    """Tell OAR of its nodes and of their cores, two of which share a real one."""
    for words in (("-a", "cpu"), ("-a", "core"), ("-c", "-a", "host")):
        ctl.run("oarproperty", *words)
    for index, name in enumerate(NODES):
        for core in range(CORES_PER_NODE):
            number = index * CORES_PER_NODE + core + 1
            properties = {"host": name, "cpu": index + 1, "core": number, "cpuset": core % 2}
            options = [word for key, value in properties.items() for word in ("-p", f"{key}={value}")]
            ctl.run("oarnodesetting", "-a", "-h", name, *options, check=False)  # there is no server yet to tell it to
