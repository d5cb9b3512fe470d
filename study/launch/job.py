"""The one description of a launch, which the command and the programs of a job read; its hosts.

What stands with a field of `Job` is its option of `python -m study launch` too.
"""

import os
import re
import stat
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from study.errors import ClusterError, wrong_option
from study.options import seconds

JOB_FILE, SCRIPT = "launch.json", "job.sh"
BATCH = ("slurm", "oar")
SERVES = {"nodes": BATCH, "walltime": BATCH, "resubmit": BATCH, "hosts": ("ssh",)}
"""Field -> the launchers that its option is for; the others are for all."""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which study, and how it gets its hosts."""

    launcher: str
    """First word of the command."""
    space: str
    """The space file, on this machine; absolute."""
    space_text: str = ""
    """Its content, where hosts share no files with this machine."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `python -m study run`."""
    scheduler_options: tuple[str, ...] = ()
    """Further arguments of the command that submits the job."""
    nodes: Annotated[int, typer.Option(min=1, help="slurm, oar: number of nodes.")] = 1
    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="CPUs of each node for Ray; by default all of the node that the job has.")
    ] = None
    walltime: Annotated[str, typer.Option(help="slurm, oar: longest duration of one job, as 90m.")] = "1h"
    resubmit: Annotated[
        bool,
        typer.Option("--resubmit/--no-resubmit", help="slurm, oar: queue the job again until the study is complete."),
    ] = True
    hosts: Annotated[str, typer.Option(help="ssh: the hosts, as [user@]name[:cpus], with commas; the head first.")] = ""
    use_head: Annotated[bool, typer.Option("--use-head", help="Let trials run on the first node of several too.")] = (
        False
    )
    name: Annotated[str, typer.Option(help="Name of the study; by default that of the space.")] = ""
    out: Annotated[str, typer.Option(help="Folder that holds the studies, on the nodes.")] = "studies"
    workdir: Annotated[
        str, typer.Option(help="Folder in which everything runs, on every node; by default this one.")
    ] = ""
    python: Annotated[str, typer.Option(help="Interpreter on every node; by default this one.")] = sys.executable
    activate: Annotated[str, typer.Option(help="Shell line before it, e.g. 'module load python'.")] = ""

    @property
    def study(self) -> str:
        """Folder of the study, as the first host sees it."""
        return str(Path(self.out, self.name))

    @property
    def walltime_s(self) -> int:
        """What is asked of the scheduler."""
        return int(seconds(self.walltime, "--walltime"))

    @classmethod
    def read(cls, file: Path) -> "Job":
        """Read the file of a job's folder.

        Raises:
            ClusterError: It is missing, damaged, or another user could have written it.
        """
        again = "Launch the study again."
        try:
            status = file.stat()
            if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
                raise ClusterError(where=str(file), rule="must belong to you, and nobody else may write it", fix=again)
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            rule = "must be a launch of this version"
            raise ClusterError(where=str(file), rule=rule, got=error, fix=again) from error


class Host(msgspec.Struct, frozen=True):
    """A machine of a job, by the name that remote commands know, and its CPUs; None: the host counts its own cores."""

    name: str
    num_cpus: int | None = None


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of `[user@]name[:cpus]`, with commas between them: no option of ssh, and no more than a name.

    Raises:
        SpaceError: One has another form, or none is given, or one is given twice.
    """
    hosts: list[Host] = []
    for each in [part.strip() for part in text.split(",")]:
        match = re.fullmatch(r"((?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]*)(?::(\d+))?", each, flags=re.ASCII)
        if match is None or match[2] == "0" or match[1] in [host.name for host in hosts]:
            rule, fix = "must be [user@]name[:cpus] each, and each once", "Write them like lab-1:16,lab-2:16."
            raise wrong_option("--hosts", rule=rule, got=each, fix=fix)
        hosts.append(Host(match[1], None if match[2] is None else int(match[2])))
    return tuple(hosts)
