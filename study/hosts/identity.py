"""What tells this machine from others. Standard library: the lock and the records need it, and not psutil.

Nothing is kept from one call to the next: these functions travel by value, and would take this machine's answer along.
"""

import os
import socket
from pathlib import Path

from study.hosts.control_groups import read_text


def boot_id() -> str:
    """Return the identity of the running kernel, new at every start; containers have that of their host."""
    return read_text(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()


def machine_key() -> str:
    """Return what tells this machine from all others: its host name, which another one may have too, and its boot."""
    return f"{os.uname().nodename}/{boot_id()}"


def machine_id() -> str:
    """Return the identity of the installed system, which the machines of a cluster may share; empty when unknown."""
    return read_text(Path("/etc/machine-id"))
