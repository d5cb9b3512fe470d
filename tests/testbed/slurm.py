"""Real SLURM on simulated hosts: slurmctld on `ctl`, slurmd on `n1` and `n2` with four CPUs each, two partitions.

A job in `high` preempts those in `low`, which are requeued. Processes are tracked by their parents
(proctrack/linuxproc), so that what a job leaves behind in the background is really left behind, and is found.
"""

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.namespaces import ADDRESSES, CTL, NODES, SHARED, Hosts, simulated_hosts
from tests.waiting import until

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "srun", "munged")
CONFIGURATION = Path("/etc/slurm")
CPUS_PER_NODE = 4
PREEMPTION_GRACE_S = 60
"""Long enough for a study to end by itself after the first signal."""
SLURM_CONF = f"""
ClusterName=testbed
SlurmctldHost={CTL}({ADDRESSES[CTL]})
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
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
OverTimeLimit=0
InactiveLimit=0
JobRequeue=1
""" + "".join(
    [
        *(f"NodeName={name} NodeAddr={ADDRESSES[name]} CPUs={CPUS_PER_NODE} RealMemory=8000\n" for name in NODES),
        f"PartitionName=low Nodes={','.join(NODES)} Default=YES MaxTime=60 PriorityTier=1 ",
        f"GraceTime={PREEMPTION_GRACE_S} PreemptMode=REQUEUE\n",
        f"PartitionName=high Nodes={','.join(NODES)} MaxTime=60 PriorityTier=10 PreemptMode=OFF\n",
    ]
)
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A SLURM that runs."""

    hosts: Hosts

    def job(self, number: str) -> dict[str, str]:
        """Return what `scontrol show job` says of a job, by its keys: JobState, Restarts, ExitCode, ..."""
        said = self.hosts.ctl.run("scontrol", "-o", "show", "job", number).stdout
        return dict(re.findall(r"(\w[\w:/]*)=(\S*)", said))

    def jobs(self) -> set[str]:
        """Return the numbers of the jobs that wait or run."""
        return set(self.hosts.ctl.run("squeue", "-h", "-o", "%A").stdout.split())

    def wait_for_state(self, number: str, *states: str, timeout_s: float = 60) -> dict[str, str]:
        """Wait until a job is in one of these states; return what is said of it."""
        until(
            lambda: self.job(number)["JobState"] in states,
            lambda: f"job {number} {' or '.join(states)}: {self.job(number)}\n{self.log_of(number)}",
            timeout_s,
        )
        return self.job(number)

    def log_of(self, number: str) -> str:
        """Return what a job of a user has printed."""
        path = self.job(number).get("StdOut", "")
        file = self.hosts.outside(path) if path.startswith("/home/") else Path("/nonexistent")
        return file.read_text() if file.exists() else "(nothing printed)"

    def submit(self, *options: str, command: str, user: str = "tester") -> str:
        """Submit a command as a job; return its number."""
        words = ("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}")
        return self.hosts.ctl.run(*words, user=user, cwd=f"/home/{user}").stdout.strip()

    def start_now(self, number: str) -> None:
        """Let a requeued job begin at once instead of two minutes later."""
        self.hosts.ctl.run("scontrol", "update", f"jobid={number}", "StartTime=now", user="tester")

    def set_time_limit(self, number: str, minutes: int) -> None:
        """Change the walltime of a job, as an administrator may at any time."""
        self.hosts.ctl.run("scontrol", "update", f"jobid={number}", f"TimeLimit={minutes}")

    def elapsed_s(self, number: str) -> int:
        """Return how long a job has run."""
        *days, clock = self.job(number)["RunTime"].split("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        return sum(map(int, days)) * 86_400 + hours * 3600 + minutes * 60 + seconds


@contextlib.contextmanager
def running_slurm(folder: Path) -> Iterator[Slurm]:
    """Start SLURM in an empty folder, yield it, remove it."""
    configuration = folder / "configuration"
    configuration.mkdir()
    configuration.chmod(0o755)
    (configuration / "slurm.conf").write_text(SLURM_CONF)
    munge = folder / "munge"
    munge.mkdir()
    shutil.chown(munge, "munge", "munge")
    munge.chmod(0o755)
    with simulated_hosts(folder, binds={configuration: str(CONFIGURATION), munge: "/run/munge"}) as hosts:
        state = hosts.shared / "slurm"
        (state / "state").mkdir(parents=True)
        shutil.chown(state, "slurm", "slurm")
        shutil.chown(state / "state", "slurm", "slurm")
        hosts.ctl.run(
            *("munged", "--log-file=/run/munge/munged.log", "--seed-file=/run/munge/munged.seed"), user="munge"
        )
        hosts.ctl.run("slurmctld", "-c")
        for node in hosts.nodes:
            node.run("slurmd")
        slurm = Slurm(hosts=hosts)
        until(
            lambda: hosts.ctl.run("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D").stdout.strip() == "2",
            lambda: f"two idle nodes: {hosts.ctl.run('sinfo', '-N', '-l').stdout}",
            timeout_s=30,
        )
        yield slurm
