"""What a launch is made of: the job as JSON and its files, its hosts, and the tasks of the agents on them."""

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from study.errors import LaunchError
from study.hosts.jobs import cpus_of_hosts
from study.records.files import write_atomically

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
    """The machines of a job; the first one is that of Ray's head and of the study's driver."""

    hosts: tuple[Host, ...]
    job: str
    """The scheduler's name for the job, short enough for a folder."""
    ends_at: float | None
    """When the scheduler ends it, seconds since the epoch; None without a limit."""


def hosts_of_file(node_file: Path) -> tuple[Host, ...]:
    """Return the hosts of a node file that has one line for each CPU, in its order."""
    return tuple(Host(name=name, num_cpus=count) for name, count in cpus_of_hosts(node_file).items())


class LaunchJob(pydantic.BaseModel):
    """Everything that the programs inside an allocation have to know."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    launcher: str
    """Name of the launcher, as in `study.launch.schedulers`."""
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
            rule, got = "must be a launch of this version", str(error).splitlines()[0]
            raise LaunchError(where=str(file), rule=rule, got=got, fix=again) from error


class _Task(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    job: str
    """Name of the job, for folders and ports."""
    temp_root: str
    environment: dict[str, str]
    """Secrets too: what goes over standard input is on no command line and in no file."""


class RayTask(_Task):
    """Run one node of Ray until the supervisor orders its end."""

    kind: Literal["ray"] = "ray"
    address: str = ""
    """Of the head; empty: be the head."""
    num_cpus: int | None
    """CPUs that Ray hands out; None: the cores that this process may use."""
    granted: int | None = None
    """CPUs that the scheduler gave, perhaps hyper-threads: the most that Ray hands out where `num_cpus` is None."""
    interface: str = ""
    peer: str = ""
    """A host that must be reached from here; empty: there is none, and Ray stays on loopback."""
    port_base: int | None = None
    dashboard: bool = False


class CommandTask(_Task):
    """Run a command, pass on what it prints, report its exit code."""

    kind: Literal["command"] = "command"
    command: tuple[str, ...]
    """`{python}` stands for the interpreter on that host, `{folder}` for a folder with the files."""
    files: dict[str, str] = {}
    """Name -> content."""


TASK: pydantic.TypeAdapter[RayTask | CommandTask] = pydantic.TypeAdapter(
    Annotated[RayTask | CommandTask, pydantic.Field(discriminator="kind")]
)
TERMINATE = {"do": "terminate"}
"""The order to send SIGTERM to an agent's child."""


@contextlib.contextmanager
def written(folder: Path, texts: Mapping[str, str]) -> Iterator[None]:
    """Write the files of a launch, for nobody else to read; an error in the body puts back what was there before.

    Args:
        folder: Made where it is missing, with those above it.
        texts: Name -> content.

    Raises:
        LaunchError: The folder cannot be written; it is as it was before.
    """
    before: dict[Path, bytes | None] = {}
    made: list[Path] = []
    try:
        try:
            made = [place for place in (folder, *folder.parents) if not place.exists()]
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for file in (folder / name for name in texts):
                before[file] = file.read_bytes() if file.exists() else None
                write_atomically(file, texts[file.name])
        except OSError as error:
            rule, fix = "must be writable", "Choose another --out."
            raise LaunchError(where=str(folder), rule=rule, got=error.strerror, fix=fix) from error
        yield
    except BaseException:
        for file, content in before.items():
            with contextlib.suppress(OSError):
                file.unlink() if content is None else write_atomically(file, content)
        for place in made:
            with contextlib.suppress(OSError):  # another program has put something there
                place.rmdir()
        raise
