"""Where and with what a driver ran: commit, versions, machine, job; no secrets. JSON values."""

import platform
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from study.machine.host import cpu_model, current_job, usable_cpus
from study.text import mask_credentials

_PACKAGES = (
    *("runner-scaling-study", "ray", "torch", "gymnasium", "optuna", "mlflow", "numpy", "jax", "jaxlib", "envpool"),
)
_CHECKOUT = Path(__file__).resolve().parents[2]


def provenance(own_modules: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what a reader needs to know about this driver, years later.

    `usable_cpus` are the logical CPUs that a scheduler or a container lets it use; `own_modules` are the user's own
    that the environment consists of, with their digests where these were taken.
    """
    job, versions = current_job(), dict[str, str | None].fromkeys(_PACKAGES)
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    words = [mask_credentials(shlex.join(sys.argv))]
    with suppress(ValueError):  # the mask has taken a quote
        words = shlex.split(words[0])
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_state(_CHECKOUT),
        "versions": {"python": platform.python_version(), **versions},
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "cpu_model": cpu_model(),
        "physical_cpus": psutil.cpu_count(logical=False),
        "logical_cpus": psutil.cpu_count(),
        "usable_cpus": len(usable_cpus()),
        "memory_mb": psutil.virtual_memory().total // 10**6,
        "command": words,
        "scheduler": None if job is None else {"name": job.scheduler, "job": job.id},
        "own_modules": dict(own_modules or {}),
    }


def git_state(checkout: Path) -> dict[str, Any] | None:
    """Return commit and dirty flag of a checkout; None where there is none, as after an installation."""
    words = ["git", "--no-optional-locks", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*"]
    if (checkout / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([*words, "--dirty"], capture_output=True, timeout=5.0, check=True)
            commit, dash, _ = done.stdout.decode().strip().partition("-")
            return {"commit": commit, "dirty": bool(dash)}
    return None
