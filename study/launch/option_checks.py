"""What the options of `python -m study launch` must be, told before anything is written. Imports no engine."""

import getpass
import os
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from study.errors import Fault, SpaceError
from study.launch.tunnels import TARGET

BATCH = ("slurm", "oar", "pbs")
_JOBS = (*BATCH, "ssh")
_OF_KINDS: dict[str, tuple[str, ...]] = {
    "--nodes": (*BATCH, "kuberay"),
    "--walltime": (*BATCH, "kuberay"),
    "--besteffort": ("oar",),
    "--hosts": ("ssh", "ray-up"),
    "--ssh-option": ("ssh", "pbs"),
    "--ssh-key": ("ray-up",),
    "--head-ip": ("ray-up",),
    "--image": ("kuberay",),
    "--memory-gb": ("kuberay",),
    "--min-nodes": _JOBS,
    "--workdir": _JOBS,
    "--stage": _JOBS,
    "--temp-root": _JOBS,
}
"""Options that only some kinds have."""
_NEEDED = {
    "pbs": ("--cpus-per-node",),
    "ssh": ("--hosts",),
    "ray-up": ("--hosts",),
    "kuberay": ("--image", "--cpus-per-node"),
}
_EXAMPLES = {
    "--hosts": "--hosts lab-1:16,lab-2:16",
    "--image": "--image registry.example.org/me/study:1",
    "--cpus-per-node": "--cpus-per-node 16",
}
_LEAST_KUBERAY_S = 60
_PASSWORD = re.compile(r"://.*:.*@|[?&;]\w*(password|passwd|pwd|token|secret)\w*=", re.IGNORECASE | re.DOTALL)
"""What looks like one in a URI, well-formed or not."""


def check_kind(kind: str, given: dict[str, Any], passed_on: tuple[str, ...]) -> None:
    """Refuse options that this kind does not have, and miss those that it needs.

    Raises:
        SpaceError: Names the first.
    """
    for option in given:
        if option in _OF_KINDS and kind not in _OF_KINDS[option]:
            kinds = " and ".join(_OF_KINDS[option])
            raise mistake(option, f"only for {kinds}, got `launch {kind}`.", "Drop it.")
    if passed_on and kind not in BATCH:
        raise mistake("after --", f"options of a scheduler, got `launch {kind}`.", "Drop them.")
    for option in _NEEDED.get(kind, ()):
        if option not in given:
            raise mistake(option, f"needed by `launch {kind}`.", f"For instance {_EXAMPLES[option]}.")


def check_text(values: dict[str, Any]) -> None:
    """Refuse characters that would begin another line of a job script, a shell line or a printed command.

    Args:
        values: Option -> what it will be: text, several texts, or None.

    Raises:
        SpaceError: Names the first.
    """
    for option, value in values.items():
        for text in value if isinstance(value, (list, tuple)) else [str(value or "")]:
            if not text.isprintable():
                law = f"one line without control characters, got {text!r}."
                raise mistake(option, law, "Remove them; commands in one line are joined by &&.")


def check_temp_root(folder: str) -> None:
    """Refuse a folder below which Ray's sockets have too long a path (107 bytes at most), or none that is the same.

    Raises:
        SpaceError: It is too long, or relative.
    """
    from study.launch.job import LONGEST_TEMP_ROOT

    if not folder.startswith("/") or len(os.fsencode(folder)) > LONGEST_TEMP_ROOT:
        law = f"an absolute path of at most {LONGEST_TEMP_ROOT} bytes (paths of sockets are limited), got '{folder}'."
        raise mistake("--temp-root", law, "For instance /tmp, or a short folder on each node's own disk.")


def check_jump(jump: str) -> None:
    """Refuse a front-end that ssh would read as an option.

    Raises:
        SpaceError: It is not `[user@]name`.
    """
    if not re.fullmatch(TARGET, jump, flags=re.ASCII):
        raise mistake("--jump", f"[user@]name, got '{jump}'.", "For instance me@front-end.")


def check_no_password(kind: str, uris: dict[str, str | None]) -> None:
    """Refuse a password in what is printed, and in what others read: a RayJob, the command line of `ray exec`.

    Raises:
        SpaceError: Names the option.
    """
    for option, uri in uris.items():
        if uri is not None and _PASSWORD.search(unquote(uri)):
            law = f"a URI without a password, which `launch {kind}` would print and write for others to read."
            fix = (
                "Leave it out; MLflow reads MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, PostgreSQL "
                "PGPASSWORD, from the environment of Ray's head (--activate, or a Secret that you add to rayjob.yaml)."
            )
            raise mistake(option, law, fix)


def check_walltime(kind: str, seconds: int) -> None:
    """Refuse a job that would be told of its end as it begins.

    Raises:
        SpaceError: It is too short.
    """
    from study.launch.batch import LEAST_WALLTIME_S, clock

    least = LEAST_WALLTIME_S if kind in BATCH else _LEAST_KUBERAY_S
    if seconds < least:
        law = f"{clock(least)} or more, to start Ray and to end cleanly in, got {clock(seconds)}."
        raise mistake("--walltime", law, "Raise it.")


def check_min_nodes(least: int | None, *, nodes: int) -> None:
    """Refuse to wait for nodes that were not asked for.

    Raises:
        SpaceError: There are fewer.
    """
    if least is not None and least > nodes:
        raise mistake("--min-nodes", f"at most the {nodes} that are asked for, got {least}.", "Lower it, or add nodes.")


def check_python(kind: str, python: str) -> None:
    """Refuse a container where the job itself must reach the scheduler.

    Raises:
        SpaceError: It is more than one word of a shell.
    """
    try:
        words = shlex.split(python)
    except ValueError:  # an open quote
        words = []
    if not words or (kind in BATCH and len(words) > 1):
        law = "one program, as the job calls the scheduler's own commands, which a container has not"
        fix = "Name an interpreter that all nodes see, with --activate for what comes before it, or use `launch ssh`."
        raise mistake("--python", f"{law if words else 'words of a shell'}, got '{python}'.", fix)


def staged(kind: str, python: str) -> str:
    """Return the folder of an interpreter's environment, all of which is copied: never /usr, or this folder.

    Raises:
        SpaceError: It is no environment of its own.
    """
    program = shlex.split(python)[0]
    folder = Path(program).parent.parent
    is_one = any((folder / mark).exists() for mark in ("pyvenv.cfg", "conda-meta"))
    only_there = kind == "ssh" and not folder.exists()
    if not (program.startswith("/") and Path(program).parent.name == "bin" and (is_one or only_there)):
        law = f"copies an environment of venv or conda, got '{python}', which is not the /…/bin/python of one."
        raise mistake("--stage", law, "Name that with --python, or drop --stage.")
    return str(folder)


def login() -> str:
    """Return this person's name, where one can write it before a host, else nothing."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may have none
        return ""
    return name if re.fullmatch(r"\w[\w.-]*", name, flags=re.ASCII) else ""


def mistake(place: str, law: str, fix: str) -> SpaceError:
    """Return an error of the command line."""
    return SpaceError("command line", [Fault(where=place, rule=law, fix=fix)])
