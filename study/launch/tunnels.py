"""The `ssh -L` lines by which a person at a laptop sees what listens on loopback on a cluster. Pure."""

import re
import shlex
from dataclasses import dataclass

from study.errors import LaunchError

MLFLOW_PORT, DASHBOARD_PORT, JUPYTER_PORT = 5000, 8265, 8888
"""Where the three listen unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where each listens on the head host; None: it does not run, and gets no line."""

    mlflow: int | None = MLFLOW_PORT
    dashboard: int | None = None
    jupyter: int | None = JUPYTER_PORT


def lines(
    head: str, *, jump: str | None = None, user: str | None = None, ports: Ports | None = None
) -> tuple[str, ...]:
    """Return one `ssh -L` line for each server, with the page it opens.

    Args:
        head: Host on which they listen, as the laptop or the front-end knows it; may begin with `user@`.
        jump: Front-end through which it is reached; may begin with `user@`.
        user: Name on both, where it is not that of the laptop.
        ports: Where they listen; by default MLflow at 5000 and Jupyter at 8888. The laptop's side has the usual ports.

    Raises:
        LaunchError: A host or a user would be read as an option or as more than a name.
    """
    chosen = ports or Ports()
    way = ["-J", _target(jump, user, "jump host")] if jump else []
    target = _target(head, user, "head host")
    servers = (
        ("MLflow", MLFLOW_PORT, chosen.mlflow),
        ("Ray dashboard", DASHBOARD_PORT, chosen.dashboard),
        ("Jupyter", JUPYTER_PORT, chosen.jupyter),
    )
    return tuple(
        f"{shlex.join(['ssh', '-N', '-L', f'{here}:127.0.0.1:{there}', *way, target])}  # {name}: http://127.0.0.1:{here}"
        for name, here, there in servers
        if there is not None
    )


def _target(host: str, user: str | None, what: str) -> str:
    target = host if user is None or "@" in host else f"{user}@{host}"
    if not re.fullmatch(r"(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.:-]*", target, flags=re.ASCII):
        raise LaunchError(f"{what}: must be [user@]name, got '{target}'. Fix: for instance me@front-end.")
    return target
