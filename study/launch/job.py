"""A launch as JSON: what to run, on what, and how. Written where it is submitted, read inside the allocation."""

import os
import stat
from pathlib import Path
from typing import Any, Literal

import pydantic

from study.errors import LaunchError

JOB_FILE = "launch.json"
SchedulerName = Literal["slurm", "oar", "pbs", "ssh"]
LONGEST_TEMP_ROOT = 25
"""Bytes; with the folders of a node and of Ray behind it, a socket's path has 107."""


class LaunchJob(pydantic.BaseModel):
    """Everything that the programs inside an allocation have to know."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    scheduler: SchedulerName
    study: str
    """Folder of the study, as the head host sees it."""
    run: tuple[str, ...]
    """Arguments of `python -m study run`, without those that only the allocation knows."""
    space_file: str = ""
    """Name of the space file inside the job's folder on the head, where hosts share no file system."""
    space_text: str = ""
    """Its content; empty where `run` names a file that all hosts see."""
    workdir: str
    """Folder on every host in which everything runs."""
    python: str
    """Interpreter on every host, in the environment that has this project; with `ssh` words of a shell, for
    `apptainer exec …`."""
    activate: str = ""
    """Shell line before it, for instance `module load python`."""
    stage: str = ""
    """Environment that is copied to each host's own disk first; empty: none."""
    hosts: tuple[str, ...] = ()
    """For `ssh`: the hosts, as `name` or `name:cpus`."""
    ssh_options: tuple[str, ...] = ()
    cpus_per_node: int | None = None
    """CPUs for Ray on each host, instead of all that the scheduler gave."""
    use_head: bool = False
    """Whether trials may run on the head's host too."""
    min_nodes: int | None = None
    """Begin when so many hosts are there; by default all."""
    interface: str = ""
    """Network interface whose address Ray uses; empty: the one by which the hosts reach the head."""
    port_base: int | None = None
    """First port that may be used; by default the job's name decides."""
    temp_root: str = pydantic.Field(default="/tmp", max_length=LONGEST_TEMP_ROOT)
    """Folder on each host's own disk: paths of sockets have 107 bytes at most."""
    wait_s: float = pydantic.Field(default=300, gt=0)
    """How long Ray may take to start on all hosts."""
    margin_s: float = pydantic.Field(default=90, ge=0)
    """So long before the walltime the study ends itself."""
    walltime_s: float | None = None
    """What was asked of the scheduler."""
    resubmit: bool = True
    """Whether a study that is not complete is given another life."""
    dashboard: bool = False
    jump: str = ""
    """Front-end, for the ssh line of the dashboard; empty: none."""
    user: str = ""
    """Name on the hosts, for that line; empty: that of the laptop."""
    environment: dict[str, str] = {}
    """Variables for Ray and for the study, on every host."""

    def files(self) -> dict[str, str]:
        """Return the file of a job's folder that `read` reads, by its name."""
        return {JOB_FILE: self.model_dump_json(indent=1)}

    @classmethod
    def read(cls, file: Path) -> "LaunchJob":
        """Read it again.

        Raises:
            LaunchError: It is not there, is not ours, or somebody else could have written it.
        """
        again = "Fix: launch the study again."
        try:
            status = file.stat()
            if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
                raise LaunchError(f"{file}: must belong to you, and to nobody else to write. {again}")
            return cls.model_validate_json(file.read_bytes())
        except (OSError, pydantic.ValidationError) as error:
            raise LaunchError(f"{file}: must be a launch of this version, got {_first(error)}. {again}") from error


def _first(error: Any) -> str:
    return str(error).splitlines()[0]
