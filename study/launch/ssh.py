"""A list of hosts that can be reached by ssh; and what other launchers need of ssh."""

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from study.errors import ExitCode, LaunchError
from study.launch.base import Launcher
from study.launch.job import Allocation, Host, LaunchJob
from study.launch.options import TARGET, Hosts, JobOptions, SshOption
from study.options import wrong_option

_ALIVE = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8")
DASHBOARD_PORT = 8265
"""Ray's usual port, used on the laptop."""


@dataclass(frozen=True, kw_only=True)
class SshOptions(JobOptions):
    """Run a study on a list of hosts, in the foreground."""

    example = "python -m study launch ssh scaling.yaml --hosts lab-1:16,lab-2:16,me@lab-3:8"
    shares_files = False
    hosts: Hosts
    ssh_options: SshOption = None

    def __post_init__(self) -> None:
        """Refuse more nodes than there are hosts."""
        super().__post_init__()
        self.check_min_nodes(len(parse_hosts(self.hosts)))

    @property
    def studies(self) -> Path:
        """Folder of the studies, below the working directory of the first host."""
        return self.out

    @property
    def space_on_nodes(self) -> str:
        """The space in the folder of the job on the first host."""
        return f"{{folder}}/{self.space_file.name}"

    @property
    def inputs(self) -> dict[str, str]:
        """The space, since hosts share no files."""
        return {self.space_file.name: self.space_file.read_text(encoding="utf-8-sig")}


class Ssh(Launcher):
    """Hosts on which one may log in."""

    name = "ssh"
    Options = SshOptions
    has_exact_cpus = True

    def planned_cpus(self) -> list[int | None]:
        """Return what the list of hosts says."""
        return [self.job.cpus_per_node or host.num_cpus for host in parse_hosts(self.job.hosts)]

    def allocation(self) -> Allocation:
        """Return the hosts as they were listed."""
        return Allocation(hosts=parse_hosts(self.job.hosts), job=f"ssh{os.getpid()}", ends_at=None)

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return a remote shell."""
        return over_ssh(self.job, host, line)

    def may_resume(self, signal_name: str) -> bool:
        """Return False: a signal comes from the person at the keyboard."""
        return False

    def resubmit(self, started_at: float) -> int:
        """Return that the study can be resumed: there is no queue."""
        return ExitCode.STOPPED


def over_ssh(job: LaunchJob, host: Host, line: str) -> list[str]:
    """Return a remote shell that asks for no password; the end of its input tells the agent that we are gone."""
    return ["ssh", *_ALIVE, *(job.ssh_options or ()), host.name, line]


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of `[user@]name[:cpus]`, with commas between them.

    Raises:
        SpaceError: One has another form, or none is given, or one is given twice.
    """
    hosts = []
    for each in [part.strip() for part in text.split(",")]:
        match = re.fullmatch(r"((?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]*)(?::(\d+))?", each, flags=re.ASCII)
        if match is None or match[2] == "0":
            rule, fix = "must be [user@]name[:cpus] each", "Write them like lab-1:16,lab-2:16."
            raise wrong_option("--hosts", rule=rule, got=each, fix=fix)
        hosts.append(Host(name=match[1], num_cpus=None if match[2] is None else int(match[2])))
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise wrong_option("--hosts", rule="must be different hosts", got=", ".join(names), fix="List each once.")
    return tuple(hosts)


def dashboard_line(head: str, port: int, *, jump: str = "", user: str = "") -> str:
    """Return the `ssh -L` line by which a laptop reaches Ray's dashboard, which listens on loopback on the head.

    Args:
        head: Host on which it listens, as the laptop or the front-end knows it; may begin with `user@`.
        port: Where it listens there.
        jump: Front-end through which the host is reached; may begin with `user@`.
        user: Name on both, where it is not that of the laptop.

    Raises:
        LaunchError: A host or a user would be read as an option or as more than a name.
    """
    target, way_in = (host if not user or "@" in host else f"{user}@{host}" for host in (head, jump))
    for name in (target, way_in) if jump else (target,):
        if not re.fullmatch(TARGET, name, flags=re.ASCII):
            fix = "Name them like me@front-end."
            raise LaunchError(where="ssh", rule="must be [user@]name", got=repr(name), fix=fix)
    way = ["-J", way_in] if jump else []
    line = shlex.join(["ssh", "-N", "-L", f"{DASHBOARD_PORT}:127.0.0.1:{port}", *way, target])
    return f"{line}  # Ray dashboard: http://127.0.0.1:{DASHBOARD_PORT}"
