"""One description of a launch, which every launcher, template and program of a job reads; and its files."""

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from study.errors import LaunchError
from study.records.files import write_atomically

JOB_FILE, SCRIPT = "launch.json", "job.sh"


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which study, and how it gets its hosts."""

    launcher: str
    """Name of the subcommand."""
    name: str
    """Of the study."""
    out: str
    """Folder of the studies, as the first host sees it."""
    space: str
    """The space file, on this machine; absolute."""
    space_text: str = ""
    """Its content, where hosts share no files with this machine."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `python -m study run`."""
    workdir: str = ""
    """Folder on every host in which everything runs."""
    python: str = "python"
    """Interpreter on every host, in the environment that has this project; with `ssh` also `apptainer exec …`."""
    activate: str = ""
    """Shell line before it, for instance `module load python`."""
    hosts: str = ""
    """`ssh` and `ray-up`: the hosts, as `[user@]name[:cpus]`, with commas."""
    ssh_options: tuple[str, ...] = ()
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
    temp_root: str = "/tmp"
    """Folder on each host's own disk, or one that hosts share."""
    wait_s: float = 300.0
    """How long Ray may take to start on all hosts."""
    walltime_s: int | None = None
    """What is asked of the scheduler; None: there is no limit."""
    resubmit: bool = False
    """Whether a study that is not complete is submitted again."""
    dashboard: bool = False
    ssh_key: str = ""
    head_ip: str = ""
    image: str = ""
    memory_gb: int | None = None

    @property
    def study(self) -> str:
        """Folder of the study, as the first host sees it."""
        return str(Path(self.out, self.name))

    @classmethod
    def read(cls, file: Path) -> "Job":
        """Read the file of a job's folder.

        Raises:
            LaunchError: It is missing, damaged, or another user could have written it.
        """
        again = "Launch the study again."
        try:
            status = file.stat()
            if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
                raise LaunchError(where=str(file), rule="must belong to you, and nobody else may write it", fix=again)
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            rule = "must be a launch of this version"
            raise LaunchError(where=str(file), rule=rule, got=error, fix=again) from error


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
