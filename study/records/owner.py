"""Who is at work on a study, and whether that process is gone for certain. Reads /proc, asks a scheduler; no engine.

An owner is called gone on proof alone: its process is not there, its machine has started anew, its lock would be felt
here, or the scheduler says that its job is over. Silence is no proof: a process that is stopped, or cut off from the
network, comes back and goes on writing.
"""

import getpass
import json
import os
import secrets
import shlex
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from study.harmless import mask_credentials
from study.hosts.jobs import current_job
from study.hosts.machine import boot_id, machine_id
from study.hosts.mounts import mount_of
from study.hosts.processes import pid_namespace, started_at, still_runs
from study.records.shapes import misfit

_LONGEST_COMMAND = 300
"""Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, named so that a person can find it and a program can tell whether it is gone."""

    host: str
    machine: str
    """Identity of the installed system; the machines of a cluster may share one."""
    boot: str
    """Identity of the running kernel, new at every start; containers have that of their host."""
    namespace: str
    """Where `pid` counts: containers count for themselves."""
    pid: int
    began: float
    """Start of the process, seconds since the epoch."""
    user: str
    since: str
    """When it took the study."""
    command: str
    scheduler: str
    """Of the batch job: `slurm`, `oar`, `pbs` or `kubernetes`; empty outside of one."""
    cluster: str
    job: str
    restart: int
    """How often the scheduler has started this job again."""
    token: str
    """Random: no other holding has it."""

    @classmethod
    def of_this_process(cls) -> Self:
        """Return this process, as it begins to hold a study."""
        job = current_job()
        return cls(
            host=socket.gethostname(),
            machine=machine_id(),
            boot=boot_id(),
            namespace=pid_namespace(),
            pid=os.getpid(),
            began=started_at(),
            user=_user(),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            command=shlex.join(map(mask_credentials, sys.argv))[:_LONGEST_COMMAND],
            scheduler=job.scheduler if job is not None else "",
            cluster=job.cluster if job is not None else "",
            job=job.id if job is not None else "",
            restart=job.restarts if job is not None else 0,
            token=secrets.token_hex(8),
        )

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the owner that `to_text` wrote.

        Raises:
            ValueError: It did not write this.
        """
        try:
            content = json.loads(text)
            if (wrong := misfit(cls, content)) is not None:
                raise ValueError(wrong)
            return cls(**content)
        except (AttributeError, TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def to_text(self) -> str:
        """Return JSON, of one line."""
        return json.dumps(asdict(self)) + "\n"

    def __str__(self) -> str:
        job = f", {self.scheduler.upper()} job {self.job}" if self.job else ""
        return f"pid {self.pid} on {self.host} ({self.user}, since {self.since}{job}): {self.command}"


def is_gone(theirs: Owner, mine: Owner, path: Path, *, lock_is_free: bool) -> bool:
    """Return whether a process that held the study is gone for certain.

    Args:
        theirs: What it left behind.
        mine: The process that asks.
        path: A file of the study's folder.
        lock_is_free: Whether the kernel has shown the lock of the study to be free, as it cannot without flock.
    """
    if theirs.boot == mine.boot:
        countable = theirs.namespace == mine.namespace
        if countable and theirs.pid == mine.pid and lock_is_free:
            return True  # this process, which could not remove its name
        return not still_runs(theirs.pid, theirs.began) if countable else lock_is_free
    if theirs.host == mine.host and theirs.machine and theirs.machine == mine.machine:
        return True  # this machine has started anew since
    return (lock_is_free and mount_of(path).locks_reach_all_hosts) or _job_is_over(theirs, mine)


def _job_is_over(theirs: Owner, mine: Owner) -> bool:
    """Return whether the scheduler that runs this process says that the other one's job is over.

    A job's number means something to its own scheduler alone: so both must belong to a job of the same.
    """
    if not theirs.job or (theirs.scheduler, theirs.cluster) != (mine.scheduler, mine.cluster):
        return False
    if theirs.job == mine.job:
        return mine.restart > theirs.restart
    job = current_job()
    return job is not None and job.is_over(theirs.job)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without this user
        return f"uid {os.getuid()}"
