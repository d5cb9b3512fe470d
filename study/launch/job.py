"""What a launch is made of: the job as JSON, its hosts, and what a scheduler has given to it."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import pydantic

from study.errors import LaunchError
from study.hosts.jobs import cpus_of_hosts

JOB_FILE = "launch.json"
LONGEST_TEMP_ROOT = 25
"""Bytes; with the folders of a node and of Ray behind it, the path of a socket has 107, which is the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine of an allocation."""

    name: str
    """As remote commands know it."""
    num_cpus: int | None
    """CPUs of the job there; None if unknown: then the host counts its own cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The machines of a job, the head first."""

    hosts: tuple[Host, ...]
    job: str
    """The scheduler's name for the job, short enough for a folder."""
    ends_at: float | None
    """When the scheduler ends it, seconds since the epoch; None without a limit."""

    @property
    def head(self) -> Host:
        """The host of Ray's head and of the study's driver."""
        return self.hosts[0]

    @property
    def workers(self) -> tuple[Host, ...]:
        """The other hosts."""
        return self.hosts[1:]


def hosts_of_file(node_file: Path) -> tuple[Host, ...]:
    """Return the hosts of a node file that has one line for each CPU, in its order."""
    return tuple(Host(name=name, num_cpus=count) for name, count in cpus_of_hosts(node_file).items())


class LaunchJob(pydantic.BaseModel):
    """Everything that the programs inside an allocation have to know."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    launcher: str
    """Name of the launcher, as in `study.launch.launchers`."""
    study: str
    """Folder of the study, as the head host sees it."""
    run: tuple[str, ...]
    """Arguments of `python -m study run`, without those that only the allocation knows."""
    inputs: dict[str, str] = {}
    """Files that `run` reads from `{folder}`, where hosts share no file system: name -> content."""
    workdir: str
    """Folder on every host in which everything runs."""
    python: str
    """Interpreter on every host, in the environment that has this project; with `ssh` also `apptainer exec …`."""
    activate: str = ""
    """Shell line before it, for instance `module load python`."""
    stage: str = ""
    """Environment that is copied to each host's own disk first; empty: none."""
    hosts: str = ""
    """For `ssh`: the hosts, as `name` or `name:cpus`, with commas."""
    ssh_options: tuple[str, ...] | None = None
    nodes: int = 1
    """How many are asked of the scheduler."""
    cpus_per_node: int | None = None
    """CPUs for Ray on each host, instead of all that the scheduler gave."""
    scheduler_options: tuple[str, ...] = ()
    """Options of the scheduler's own, as words of a command line."""
    use_head: bool = False
    """Whether trials may run on the head's host too."""
    min_nodes: int | None = None
    """Begin when so many hosts are there; by default all."""
    interface: str = ""
    """Network interface whose address Ray uses; empty: the one by which the hosts reach the head."""
    port_base: int | None = None
    """First port that may be used; by default the job's name decides."""
    temp_root: str = pydantic.Field(default="/tmp", max_length=LONGEST_TEMP_ROOT)
    """Folder on each host's own disk, or one that hosts share."""
    wait_s: float = pydantic.Field(default=300, gt=0)
    """How long Ray may take to start on all hosts."""
    walltime_s: int | None = None
    """What is asked of the scheduler; None: there is no limit."""
    resubmit: bool = False
    """Whether a study that is not complete is submitted again."""
    dashboard: bool = False
    jump: str = ""
    """Front-end, for the ssh line of the dashboard; empty: none."""
    user: str = ""
    """Name on the hosts, for that line; empty: that of the laptop."""

    @property
    def name(self) -> str:
        """Name of the study."""
        return Path(self.study).name

    def files(self) -> dict[str, str]:
        """Return the file of a job's folder that `read` reads, by its name."""
        return {JOB_FILE: self.model_dump_json(indent=1)}

    @classmethod
    def read(cls, file: Path) -> "LaunchJob":
        """Read the file of a job's folder.

        Raises:
            LaunchError: It is missing, damaged, or another user could have written it.
        """
        again = "Launch the study again."
        try:
            status = file.stat()
            if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
                raise LaunchError(where=str(file), rule="must belong to you, and nobody else may write it", fix=again)
            return cls.model_validate_json(file.read_bytes())
        except (OSError, pydantic.ValidationError) as error:
            raise LaunchError(
                where=str(file), rule="must be a launch of this version", got=str(error).splitlines()[0], fix=again
            ) from error
