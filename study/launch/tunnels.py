"""The `ssh -L` line by which a person at a laptop sees Ray's dashboard, which listens on loopback on the head. Pure."""

import re
import shlex

from study.errors import LaunchError

TARGET = r"(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.:-]*"
"""A host as ssh takes it, `[user@]name`: no option and no more than a name. ASCII."""
DASHBOARD_PORT = 8265
"""Ray's usual port, used on the laptop."""


def dashboard_line(head: str, port: int, *, jump: str | None = None, user: str | None = None) -> str:
    """Return the `ssh -L` line for the dashboard, with the page it opens.

    Args:
        head: Host on which it listens, as the laptop or the front-end knows it; may begin with `user@`.
        port: Where it listens there.
        jump: Front-end through which the host is reached; may begin with `user@`.
        user: Name on both, where it is not that of the laptop.

    Raises:
        LaunchError: A host or a user would be read as an option or as more than a name.
    """
    way = ["-J", _target(jump, user, "--jump")] if jump else []
    target = _target(head, user, "head host")
    line = shlex.join(["ssh", "-N", "-L", f"{DASHBOARD_PORT}:127.0.0.1:{port}", *way, target])
    return f"{line}  # Ray dashboard: http://127.0.0.1:{DASHBOARD_PORT}"


def _target(host: str, user: str | None, place: str) -> str:
    target = host if user is None or "@" in host else f"{user}@{host}"
    if not re.fullmatch(TARGET, target, flags=re.ASCII):
        raise LaunchError(f"{place}: must be [user@]name, got {target!r}. Fix: for instance me@front-end.")
    return target
