"""A list of hosts that can be reached by ssh, and nothing else."""

import os
import re

from study.errors import ExitCode, LaunchError
from study.launch.allocation import Allocation, Host
from study.launch.job import LaunchJob

_ALIVE = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=8")


class Ssh:
    """Hosts that belong to whoever may log in."""

    def __init__(self, job: LaunchJob) -> None:
        """Look at nothing yet."""
        self._job = job

    def allocation(self) -> Allocation:
        """Return the hosts as they were listed."""
        return Allocation(hosts=parse_hosts(self._job.hosts), job=f"ssh{os.getpid()}", ends_at=None)

    def command(self, host: Host, line: str) -> list[str]:
        """Return a remote shell."""
        return over_ssh(self._job, host, line)

    def may_resume(self, signal_name: str) -> bool:
        """Return False: nobody gives these hosts away but the person at the keyboard."""
        return False

    def resubmit(self, started_at: float) -> int:
        """Return that the study can be resumed: there is nobody to queue it."""
        return ExitCode.STOPPED


def over_ssh(job: LaunchJob, host: Host, line: str) -> list[str]:
    """Return a remote shell that asks for no password; its end of input tells the agent that we are gone."""
    return ["ssh", *_ALIVE, *job.ssh_options, host.name, line]


def parse_hosts(texts: tuple[str, ...]) -> tuple[Host, ...]:
    """Return the hosts of `[user@]name[:cpus]`.

    Raises:
        LaunchError: One has another form, or none is given, or one is given twice.
    """
    hosts = []
    for text in texts:
        # No leading dash: ssh would take it for an option.
        match = re.fullmatch(r"((?:[\w.-]+@)?[A-Za-z0-9_][\w.-]*)(?::(\d+))?", text)
        if match is None or match[2] == "0":
            raise LaunchError(f"--hosts: [user@]name[:cpus] each, got '{text}'. Fix: for instance lab-1:16,lab-2:16.")
        hosts.append(Host(name=match[1], num_cpus=None if match[2] is None else int(match[2])))
    names = [host.name for host in hosts]
    if len(set(names)) < len(names) or not names:
        raise LaunchError(f"--hosts: different hosts, at least one, got {', '.join(names) or 'none'}. Fix: list them.")
    return tuple(hosts)
