"""Real SLURM and OAR, and ordinary sshds, on simulated hosts; each starts once a session, and only when asked for."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.testbed.hosts import ADDRESSES, CGROUPS, CONTROLLERS, NODES, SHARED, USERS, Hosts, obstacle, simulated_hosts
from tests.waiting import until

CPUS_PER_NODE = 4


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """A scheduler that runs."""

    hosts: Hosts
    ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
    """States of a job that is over."""

    def state(self, job: str) -> str:
        """Return the state of a job."""
        raise NotImplementedError

    def wait_for(self, job: str, *states: str, timeout_s: float = 60) -> str:
        """Wait until a job is in one of these states, or is over; return its state."""
        wanted = (*states, *self.ended)
        until(lambda: self.state(job) in wanted, lambda: f"{job}: {self.state(job)}\n{self.log()}", timeout_s, 0.5)
        return self.state(job)

    def log(self) -> str:
        """Return what the jobs of launches have printed."""
        return "\n".join(path.read_text() for path in (self.hosts.folder / "home").rglob("job-*.log"))


def place_of(factory: pytest.TempPathFactory, *programs: str) -> Path:
    """Return an empty folder for a scheduler of these programs; skip the test where it cannot run."""
    if reason := obstacle(*programs):
        pytest.skip(reason)
    return factory.mktemp(programs[0])


# --- SLURM: slurmctld on `ctl`, slurmd on the nodes, two partitions ---------------------------------------------------

SLURM_CONF = f"""
ClusterName=testbed
SlurmctldHost=ctl({ADDRESSES["ctl"]})
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation={SHARED}/slurm/state
SlurmctldPidFile=/run/slurmctld.pid
SlurmctldLogFile={SHARED}/slurm/slurmctld.log
SlurmctldParameters=preempt_send_user_signal
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/run/slurmd
SlurmdLogFile={SHARED}/slurm/slurmd-%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=30
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=60 PriorityTier=1 GraceTime=60 PreemptMode=REQUEUE
PartitionName=high Nodes=n1,n2 MaxTime=60 PriorityTier=10 PreemptMode=OFF
""" + "".join(f"NodeName={name} NodeAddr={ADDRESSES[name]} CPUs={CPUS_PER_NODE} RealMemory=8000\n" for name in NODES)
"""A job in `high` preempts those in `low`, which are requeued, and have a minute to end by themselves after the first
signal. Processes are tracked by their parents, so that what a job leaves in the background is left, and found."""


class Slurm(Scheduler):
    """A SLURM that runs."""

    def job(self, number: str) -> dict[str, str]:
        """Return what `scontrol show job` says of a job, by its keys: JobState, Restarts, ExitCode, ..."""
        said = self.hosts.ctl.run("scontrol", "-o", "show", "job", number).stdout
        return dict(re.findall(r"(\w[\w:/]*)=(\S*)", said))

    def state(self, job: str) -> str:
        return self.job(job)["JobState"]

    def preempt(self) -> str:
        """Submit a job that another one must make way for; return its number."""
        words = ("sbatch", "--parsable", "--output=/dev/null", "--partition=high", "--nodes=2", "--exclusive")
        return self.hosts.ctl.run(*words, "--wrap=sleep 3", user="tester", cwd="/home/tester").stdout.strip()

    def update(self, job: str, what: str) -> None:
        """Change a job as an administrator may at any time."""
        self.hosts.ctl.run("scontrol", "update", f"jobid={job}", what)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    folder = place_of(tmp_path_factory, "slurmctld", "slurmd", "sbatch", "scontrol", "srun", "munged")
    configuration, munge = folder / "configuration", folder / "munge"
    for place in (configuration, munge):
        place.mkdir()
        place.chmod(0o755)
    (configuration / "slurm.conf").write_text(SLURM_CONF)
    shutil.chown(munge, "munge", "munge")
    with simulated_hosts(folder, binds={configuration: "/etc/slurm", munge: "/run/munge"}) as hosts:
        for place in (hosts.shared / "slurm", hosts.shared / "slurm" / "state"):
            place.mkdir()
            shutil.chown(place, "slurm", "slurm")
        words = ("munged", "--log-file=/run/munge/munged.log", "--seed-file=/run/munge/munged.seed")
        hosts.ctl.run(*words, user="munge")
        hosts.ctl.run("slurmctld", "-c")
        for node in hosts.nodes:
            node.run("slurmd")
        idle = ("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D")
        until(lambda: hosts.ctl.run(*idle).stdout.strip() == "2", "two idle nodes", timeout_s=30)
        yield Slurm(hosts=hosts)


# --- OAR: server and PostgreSQL on `ctl`, its sshd on the nodes -------------------------------------------------------

OAR_CONFIGURATION, OAR_HOME = Path("/etc/oar"), Path("/var/lib/oar")
OAR_SETTINGS = {
    "DB_HOSTNAME": "localhost",
    "DB_PORT": "5432",
    "DB_BASE_PASSWD": "oar",
    "DB_BASE_PASSWD_RO": "oar_ro",
    "SERVER_HOSTNAME": ADDRESSES["ctl"],
    "SCHEDULER_JOB_SECURITY_TIME": "2",  # 60 as installed: so long a start would be put off
    "LOG_LEVEL": "3",
    "LOG_FILE": f"{SHARED}/oar/oar.log",
}
"""Lines of oar.conf that differ from the installed ones."""
POSTGRESQL = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
"""Folder of PostgreSQL's server programs."""


class Oar(Scheduler):
    """An OAR that runs; each job has a cpuset on every node, and the epilogue empties its user's /tmp, as installed."""

    ended = ("Terminated", "Error")

    def ask(self, query: str) -> list[str]:
        """Return the rows of a query on OAR's database, columns joined by `|`."""
        words = ("psql", "-X", "-t", "-A", "-d", "oar", "-c", query)
        return self.hosts.ctl.run(*words, user="postgres").stdout.split("\n")[:-1]

    def state(self, job: str) -> str:
        return self.ask(f"select state from jobs where job_id = {int(job)}")[0]

    def exit_code(self, job: str) -> int:
        """Return what the job's script ended with."""
        return int(self.ask(f"select exit_code from jobs where job_id = {int(job)}")[0]) >> 8

    def events(self, job: str) -> list[str]:
        """Return the types of what OAR noted of a job, in order: CHECKPOINT, BESTEFFORT_KILL, ..."""
        return self.ask(f"select type from event_logs where job_id = {int(job)} order by event_id")

    def successors(self, job: str) -> list[str]:
        """Return the job that a job was resubmitted as, if it was."""
        return self.ask(f"select job_id from jobs where resubmit_job_id = {int(job)}")

    def preempt(self) -> str:
        """Submit a job that one of besteffort must make way for; return its number."""
        size = f"/host=2/core={CPUS_PER_NODE},walltime=0:01:00"
        words = ("oarsub", "-l", size, "-O", "/dev/null", "-E", "/dev/null", "sleep 3")
        said = self.hosts.ctl.run(*words, user="other", cwd="/home/other").stdout
        return re.findall(r"OAR_JOB_ID=(\d+)", said)[0]


@pytest.fixture(scope="session")
def oar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oar]:
    if POSTGRESQL is None or not all((CGROUPS / name / "tasks").exists() for name in CONTROLLERS):
        pytest.skip("OAR needs PostgreSQL, and control groups version 1")
    folder = place_of(tmp_path_factory, "oar-server", "oarsub", "oarnodesetting", "oar-database", "sshd")
    configuration, homes = folder / "configuration", folder / "oar"
    homes.mkdir()
    for source, target in ((OAR_CONFIGURATION, configuration), *((OAR_HOME, homes / name) for name in ADDRESSES)):
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    text = (configuration / "oar.conf").read_text()
    for name, value in OAR_SETTINGS.items():
        text, count = re.subn(rf"^#?{name}=.*$", f'{name}="{value}"', text, flags=re.MULTILINE)
        assert count, f"oar.conf has no {name}"
    (configuration / "oar.conf").write_text(text)  # in place: its owner and mode stay
    binds, own = {configuration: str(OAR_CONFIGURATION)}, {homes: str(OAR_HOME)}
    with simulated_hosts(folder, binds=binds, own=own, groups=True) as hosts:
        place, ctl = hosts.shared / "oar", hosts.ctl
        place.mkdir()
        shutil.chown(place, "oar", "oar")
        data, options = SHARED / "oar" / "db", "-c listen_addresses=localhost -c fsync=off"
        ctl.run("install", "-d", "-o", "postgres", "/run/postgresql", data)
        ctl.run(f"{POSTGRESQL}/initdb", "-D", data, "-A", "trust", "--no-sync", user="postgres")
        words = ("-D", data, "-l", data / "log", "-o", options, "-w", "start")
        ctl.run(f"{POSTGRESQL}/pg_ctl", *words, user="postgres")
        for order in ("create role adm superuser login password 'adm'", "create database adm owner adm"):
            ctl.run("psql", "-X", "-q", "-c", order, user="postgres")
        ctl.run("oar-database", "--create", "--db-admin-user=adm", "--db-admin-pass=adm")
        for node in hosts.nodes:  # its job manager sees this host's control groups
            node.run("mkdir", "-p", "/run/sshd", "/dev/oar_cgroups_links")
            for name in CONTROLLERS:
                node.run("ln", "-s", CGROUPS / name, f"/dev/oar_cgroups_links/{name}")
            node.run("ln", "-s", CGROUPS / "cpuset", "/dev/cpuset")
            node.run("/usr/sbin/sshd", "-f", OAR_CONFIGURATION / "sshd_config", "-o", "PidFile=/run/oar-sshd.pid")
        for property_ in ("-a cpu", "-a core", "-c -a host"):
            ctl.run("oarproperty", *property_.split())
        for number in range(CPUS_PER_NODE * len(NODES)):  # two cores share a real one
            host = number // CPUS_PER_NODE
            line = f"-p host={NODES[host]} -p cpu={host + 1} -p core={number + 1} -p cpuset={number % 2}"
            ctl.run("oarnodesetting", "-a", "-h", NODES[host], *line.split(), check=False)  # no server is there yet
        ctl.run("oar-server")
        for name in NODES:
            ctl.run("oarnodesetting", "-h", name, "-s", "Alive")
        yield Oar(hosts=hosts)


# --- sshd: `tester` comes to any node with a key, without a password --------------------------------------------------

SSHD_CONFIG = f"""
HostKey {SHARED}/ssh/host_key
PidFile /run/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes yes
"""


@pytest.fixture(scope="session")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """A sshd on each node."""
    with simulated_hosts(place_of(tmp_path_factory, "sshd", "ssh", "ssh-keygen")) as hosts:
        place, home = hosts.shared / "ssh", hosts.outside("/home/tester/.ssh")
        place.mkdir()
        home.mkdir(mode=0o700)
        for file in (place / "host_key", home / "id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
        (place / "sshd_config").write_text(SSHD_CONFIG)
        shutil.copy(home / "id_ed25519.pub", home / "authorized_keys")
        key = (place / "host_key.pub").read_text()
        (home / "known_hosts").write_text("".join(f"{name},{ADDRESSES[name]} {key}" for name in NODES))
        hosts.ctl.run("chown", "-R", f"{USERS['tester']}:{USERS['tester']}", "/home/tester/.ssh")
        for node in hosts.nodes:
            node.run("mkdir", "-m", "755", "/run/sshd")
            node.run("/usr/sbin/sshd", "-f", SHARED / "ssh" / "sshd_config")
        yield Scheduler(hosts=hosts)
