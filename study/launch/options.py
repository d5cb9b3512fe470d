"""The options of `python -m study launch`: a field of a class is an option, and the class refuses what cannot work.

`LaunchOptions` is what all launches share, `HostOptions` what is needed where Ray starts on hosts of ours, `JobOptions`
what the supervisor needs, `BatchOptions` what a scheduler needs; each launcher adds its own in its file. Imports no
engine.
"""

import getpass
import os
import re
import shlex
import sys
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from study.launch.job import LONGEST_TEMP_ROOT, LaunchJob
from study.mirrors.tracking_uri import asked_uri
from study.options import (
    Replicate,
    Set,
    Space,
    SpaceArgument,
    Trials,
    checked_name,
    checked_stage,
    load,
    one_space,
    seconds,
    wrong_option,
)
from study.space.space_file import find_space
from study.space.spec import StudySpec

LEAST_WALLTIME_S = 180
"""A shorter job would get the signal of its end as it begins: `BatchScheduler.notice_s` and `early_s` before it."""
TARGET = r"(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.:-]*"
"""A host as ssh takes it, `[user@]name`: no option and no more than a name. ASCII."""

Hosts = Annotated[str, typer.Option(help="Hosts, as [user@]name[:cpus], with commas; the head first.")]
SshOption = Annotated[
    list[str] | None, typer.Option("--ssh-option", help="An option for ssh, e.g. -p2222. May be repeated.")
]
Nodes = Annotated[int, typer.Option(min=1, help="Number of nodes.")]
Walltime = Annotated[str, typer.Option(help="Longest duration of one job: 2:00:00, 90m.")]


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of every launch: which study, and whether it is only shown."""

    example: ClassVar[str]
    """How the subcommand may be typed."""

    space_argument: SpaceArgument = None
    space: Space = None
    print_: Annotated[bool, typer.Option("--print", help="Show what would be written, and do nothing.")] = False
    name: Annotated[str | None, typer.Option(help="Name of the study; by default that of the space.")] = None
    out: Annotated[Path, typer.Option(help="Folder that holds the studies, on the nodes.")] = Path("studies")
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow, as the first node reaches it.")] = None
    optuna_storage: Annotated[str | None, typer.Option(help="The same as of `python -m study run`.")] = None
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The same as of `python -m study run`.")] = False
    until: Annotated[str | None, typer.Option(help="Last stage of a hold-up study, such as race.")] = None
    replicate: Replicate = None
    trials: Trials = None
    set_: Set = None
    use_head: Annotated[bool, typer.Option("--use-head", help="Let trials run on the first node of several too.")] = (
        False
    )

    def __post_init__(self) -> None:
        """Refuse a wrong space, and characters that would begin another line of a script or of a printed command."""
        for field in fields(self):
            value = getattr(self, field.name)
            for text in value if isinstance(value, (list, tuple)) else [str(value or "")]:
                self.check_one_line(_option_of(field.name), text)
        _ = self.spec, self.study_name  # read now, so that a mistake in them is refused before anything is written

    @staticmethod
    def check_one_line(option: str, text: object) -> None:
        """Refuse control characters in a text of one line."""
        if not str(text).isprintable():
            rule, fix = "must be one line without control characters", "Remove them; join commands by &&."
            raise wrong_option(option, rule=rule, got=repr(str(text)), fix=fix)

    @cached_property
    def space_file(self) -> Path:
        """The space file."""
        file = find_space(one_space(self.space_argument, self.space))
        self.check_one_line("--space", file)
        return file

    @cached_property
    def spec(self) -> StudySpec:
        """The space, with the changes of the command line."""
        spec = load(str(self.space_file), self.set_, self.replicate, self.trials)
        if self.until is not None:
            checked_stage(self.until, spec)
        return spec

    @property
    def study_name(self) -> str:
        """Name of the study."""
        return checked_name(self.name or self.space_file.stem)

    @property
    def studies(self) -> Path:
        """Folder of the studies, as the first node sees it."""
        return self.out

    @property
    def folder(self) -> Path:
        """Folder of the launch, on this machine: beside that of the study, which a study makes itself."""
        folder = self.studies.resolve() / f"{self.study_name}.launch"
        self.check_one_line("--out", folder)  # where links lead
        return folder

    def run_arguments(self) -> list[str]:
        """Return the arguments of `python -m study run` that stand for these options."""
        given = {
            "--tracking-uri": asked_uri(self.tracking_uri),
            "--optuna-storage": self.optuna_storage,
            "--until": self.until,
            "--replicate": self.replicate,
            "--trials": self.trials,
        }
        words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
        words += ["--tensorboard"] if self.tensorboard else []
        return [*words, *(word for change in self.set_ or [] for word in ("--set", change))]


@dataclass(frozen=True, kw_only=True)
class HostOptions(LaunchOptions):
    """Options where Ray starts on hosts with a Python of their own."""

    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="CPUs of each node for Ray; by default all of the node that the job has.")
    ] = None
    python: Annotated[str, typer.Option(help="Interpreter on every node; by default this one.")] = shlex.quote(
        sys.executable
    )
    activate: Annotated[str, typer.Option(help="Shell line before it, e.g. 'module load python'.")] = ""
    interface: Annotated[str, typer.Option(help="Network interface for Ray, e.g. ib0.")] = ""
    port_base: Annotated[
        int | None, typer.Option(min=1024, max=65000, help="First port that Ray may use, rounded up to thousands.")
    ] = None
    wait: Annotated[str, typer.Option(help="How long Ray may take to start on all nodes.")] = "5m"
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Start Ray's dashboard (needs ray[default]).")] = False
    jump: Annotated[str, typer.Option(help="Front-end to the first node, as [user@]name.")] = ""

    def __post_init__(self) -> None:
        """Refuse a front-end that ssh would read as an option."""
        super().__post_init__()
        if self.jump and not re.fullmatch(TARGET, self.jump, flags=re.ASCII):
            raise wrong_option("--jump", rule="must be [user@]name", got=self.jump, fix="Write it like me@front-end.")

    @property
    def wait_s(self) -> float:
        """How long Ray may take to start."""
        return seconds(self.wait, "--wait")


@dataclass(frozen=True, kw_only=True)
class JobOptions(HostOptions):
    """Options of launches that the supervisor runs."""

    shares_files: ClassVar[bool] = True
    """Whether this machine and the nodes see the same files."""

    workdir: Annotated[
        Path | None, typer.Option(help="Folder in which everything runs, on every node; by default this one.")
    ] = None
    temp_root: Annotated[str, typer.Option(help="Short folder on each node's own disk.")] = "/tmp"

    def __post_init__(self) -> None:
        """Refuse a temporary folder in which Ray's sockets have too long a path, and a Python that is none."""
        super().__post_init__()
        if not self.temp_root.startswith("/") or len(os.fsencode(self.temp_root)) > LONGEST_TEMP_ROOT:
            rule = f"must be an absolute path of at most {LONGEST_TEMP_ROOT} bytes (paths of sockets are limited)"
            fix = "Name /tmp, or a short folder on each node's own disk."
            raise wrong_option("--temp-root", rule=rule, got=self.temp_root, fix=fix)
        if not self.python_words:
            rule, fix = "must be words of a shell", "Name an interpreter that all nodes see."
            raise wrong_option("--python", rule=rule, got=self.python, fix=fix)

    @property
    def python_words(self) -> list[str]:
        """Words of the interpreter's command; none where a quote is open."""
        try:
            return shlex.split(self.python)
        except ValueError:
            return []

    @property
    def working_directory(self) -> Path:
        """Folder in which everything runs; a relative one is below this one, with ssh below each host's home."""
        here = Path.cwd() if self.workdir is None else self.workdir
        here = here.absolute() if self.shares_files else here
        self.check_one_line("--workdir", here)
        return here

    @property
    def studies(self) -> Path:
        """Folder of the studies, which all nodes see."""
        return self.working_directory / self.out

    @property
    def space_on_nodes(self) -> str:
        """The space file, as the first node sees it."""
        return str(self.space_file.resolve())

    @property
    def study(self) -> str:
        """Folder of the study, as the first node sees it."""
        return str(self.studies / self.study_name)

    @property
    def run(self) -> tuple[str, ...]:
        """Arguments of `python -m study run`."""
        where = ("--space", self.space_on_nodes, "--name", self.study_name, "--out", str(self.studies))
        return ("run", *where, *self.run_arguments())

    def job(self, launcher: str) -> LaunchJob:
        """Return the job: each of its fields is the option or property of the same name, where there is one.

        Raises:
            SpaceError: An option or the space is wrong.
        """
        values = {name: getattr(self, name) for name in LaunchJob.model_fields if hasattr(self, name)}
        return LaunchJob(**{**values, "launcher": launcher, "workdir": str(self.working_directory)})


@dataclass(frozen=True, kw_only=True)
class BatchOptions(JobOptions):
    """Options of schedulers."""

    nodes: Nodes = 1
    walltime: Walltime = "1h"
    resubmit: Annotated[
        bool, typer.Option("--resubmit/--no-resubmit", help="Queue the job again until the study is complete.")
    ] = True
    scheduler_options: Annotated[tuple[str, ...], "no option: what follows `--`"] = ()

    def __post_init__(self) -> None:
        """Refuse a job that is too short, and a container, in which the job could not call the scheduler."""
        super().__post_init__()
        if self.walltime_s < LEAST_WALLTIME_S:
            rule = f"must be {LEAST_WALLTIME_S} s or more, to start Ray and to end cleanly in"
            raise wrong_option("--walltime", rule=rule, got=self.walltime, fix="Raise it.")
        if len(self.python_words) > 1:
            rule = "must be one program: the job calls the scheduler's own commands, which a container does not have"
            fix = "Name an interpreter that all nodes see, with --activate before it, or use `launch ssh`."
            raise wrong_option("--python", rule=rule, got=self.python, fix=fix)

    @property
    def walltime_s(self) -> int:
        """Longest duration of one job."""
        return int(seconds(self.walltime, "--walltime"))

    @property
    def user(self) -> str:
        """Name of this person, where one can write it before a host, else nothing."""
        try:
            name = getpass.getuser()
        except (KeyError, OSError):  # a container may have none
            return ""
        return name if re.fullmatch(r"\w[\w.-]*", name, flags=re.ASCII) else ""


def _option_of(field: str) -> str:
    if field == "scheduler_options":
        return "after --"
    if field == "ssh_options":
        return "--ssh-option"
    return "--space" if field == "space_argument" else f"--{field.strip('_').replace('_', '-')}"
