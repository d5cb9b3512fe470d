"""One description of a launch, which every launcher, template and program of a job reads; its hosts and its files."""

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from study.errors import LaunchError
from study.options import wrong_option
from study.records.files import write_atomically

JOB_FILE, SCRIPT = "launch.json", "job.sh"


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which study, and how it gets its hosts. What has no word here is said by the help of the option of its name."""

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
    python: str = "python"
    """In the environment that has this project; with `ssh` also `apptainer exec …`."""
    activate: str = ""
    hosts: str = ""
    ssh_options: tuple[str, ...] = ()
    nodes: int = 1
    cpus_per_node: int | None = None
    scheduler_options: tuple[str, ...] = ()
    """Options of the scheduler's own, as words of a command line."""
    use_head: bool = False
    interface: str = ""
    """Empty: the one by which the hosts reach the head."""
    port_base: int | None = None
    """By default the job's name decides."""
    temp_root: str = "/tmp"
    wait_s: float = 300.0
    walltime_s: int | None = None
    """What is asked of the scheduler; None: there is no limit."""
    resubmit: bool = False
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


class Host(msgspec.Struct, frozen=True):
    """One machine of a job."""

    name: str
    """As remote commands know it."""
    num_cpus: int | None = None
    """CPUs of the job there; None if unknown: then the host counts its own cores."""


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of `[user@]name[:cpus]`, with commas between them: no option of ssh, and no more than a name.

    Raises:
        SpaceError: One has another form, or none is given, or one is given twice.
    """
    hosts = []
    for each in [part.strip() for part in text.split(",")]:
        match = re.fullmatch(r"((?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]*)(?::(\d+))?", each, flags=re.ASCII)
        if match is None or match[2] == "0":
            rule, fix = "must be [user@]name[:cpus] each", "Write them like lab-1:16,lab-2:16."
            raise wrong_option("--hosts", rule=rule, got=each, fix=fix)
        hosts.append(Host(match[1], None if match[2] is None else int(match[2])))
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise wrong_option("--hosts", rule="must be different hosts", got=", ".join(names), fix="List each once.")
    return tuple(hosts)


@contextlib.contextmanager
def written(folder: Path, texts: Mapping[str, str]) -> Iterator[None]:
    """Write the files of a launch, for nobody else to read; an error in the body removes a folder that is new.

    Args:
        folder: Made where it is missing, with those above it.
        texts: Name -> content.

    Raises:
        LaunchError: The folder cannot be written.
    """
    is_new = not folder.exists()
    try:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, text in texts.items():
                write_atomically(folder / name, text)
        except OSError as error:
            rule, fix = "must be writable", "Choose another --out."
            raise LaunchError(where=str(folder), rule=rule, got=error.strerror, fix=fix) from error
        yield
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
