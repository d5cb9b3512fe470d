"""Where and with what a driver ran: commit, versions, machine, job; no secrets. Imports no engine.

The result goes into the records and into MLflow, so it holds JSON values only.
"""

import functools
import hashlib
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from study.harmless import mask_credentials
from study.machine.host import cpu_model, usable_cpus
from study.machine.jobs import current_job

_PACKAGES = (
    *("runner-scaling-study", "ray", "torch", "gymnasium", "optuna", "mlflow", "numpy", "jax", "jaxlib", "envpool"),
)
_CHECKOUT = Path(__file__).resolve().parents[2]
_GIT_TIMEOUT_S = 5.0
_VARIABLES = re.compile(r"OMP_NUM_THREADS|(RAY|TUNE)_\w+")
_SECRET = re.compile(r"TOKEN|PASS|SECRET|CREDENTIAL|KEY", re.IGNORECASE)
_MASK = "***"


def provenance(
    own_modules: Mapping[str, str | None] | None = None, variables: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Return what a reader needs to know about this driver, years later.

    `memory_mb` is the machine's memory in MB; `usable_cpus` are the logical CPUs that this process may use,
    which a scheduler or a container can make fewer than `logical_cpus`.

    Args:
        own_modules: Name -> digest of the modules of the user's own that the environment consists of, as this driver
            has them and as they travel to the nodes of a cluster; the digest is None where it was not taken.
        variables: Environment variables that a script of the user's own sets, each None where it removes one.
    """
    job = current_job()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": _git(_CHECKOUT),
        "constraints": _constraints(_CHECKOUT / "constraints.txt"),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "cpu_model": cpu_model(),
        "physical_cpus": psutil.cpu_count(logical=False),
        "logical_cpus": psutil.cpu_count(),
        "usable_cpus": len(usable_cpus()),
        "memory_mb": psutil.virtual_memory().total // 10**6,
        "command": _command(sys.argv),
        "scheduler": None if job is None else {"name": job.scheduler, "job": job.id},
        "environment": {**_environment(), **_of_script(variables or {})},
        "own_modules": dict(own_modules or {}),
    }


def _git(checkout: Path) -> dict[str, Any] | None:
    """Return commit and dirty flag of the project's own checkout; None when it was installed without one."""
    if not (checkout / ".git").exists():
        return None
    commit, changes = _run_git(checkout, "rev-parse", "HEAD"), _run_git(checkout, "status", "--porcelain")
    return {"commit": commit, "dirty": bool(changes) if changes is not None else None} if commit else None


def _run_git(checkout: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(checkout), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _constraints(file: Path) -> dict[str, Any] | None:
    """Return the digest of the tested set and what is installed in other versions; None without the file.

    `installed` says whether every package of the set that is installed has the version of the set; a package of the
    set that is not installed, such as one of the tests, is no difference.
    """
    try:
        content = file.read_bytes()
    except OSError:
        return None
    pinned = dict(line.split("==", 1) for line in content.decode().splitlines() if "==" in line and line[0] != "#")
    found = {name: _version(name) for name in pinned}
    # A build's own label, as in 2.13.0+cpu, is no other version.
    others = {name: has for name, has in found.items() if has is not None and has.partition("+")[0] != pinned[name]}
    return {"sha256": hashlib.sha256(content).hexdigest(), "installed": not others, "others": others}


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _command(arguments: Iterable[str]) -> list[str]:
    """Return the command line without passwords: those in URLs, and those after a telling option."""
    shown: list[str] = []
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        before = shown[-1] if shown else ""
        if option.startswith("-") and equals and _SECRET.search(option):
            shown.append(f"{option}={_MASK}")
        elif before.startswith("-") and "=" not in before and _SECRET.search(before):
            shown.append(_MASK)
        else:
            shown.append(mask_credentials(argument))
    return shown


def _environment() -> dict[str, str]:
    """Return the variables that change how Ray and Tune behave; JSON may hide anything and is masked."""
    return {
        name: _masked(value)
        for name, value in sorted(os.environ.items())
        if _VARIABLES.fullmatch(name) and not _SECRET.search(name)
    }


def _of_script(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    return {
        name: _MASK if _SECRET.search(name) else value if value is None else _masked(value)
        for name, value in sorted(variables.items())
    }


def _masked(value: str) -> str:
    return _MASK if value.lstrip().startswith(("{", "[")) else mask_credentials(value)
