"""What this machine can really give a study, and its identity. Standard library and psutil.

A joined Ray runs this on every node of its cluster.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from study.hosts.control_groups import read_text
from study.hosts.cpus import count_gpus, num_cores
from study.hosts.memory import read_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What processes here can really have."""

    num_cores: int
    memory_mb: int
    num_gpus: int
    niceness: int = 0
    """Nice value of the process that looked: a worker of Ray's, or the driver of a private one."""


def machine() -> Machine:
    """Return what this process may use of its machine: cores (`cpus.num_cores`), memory in MB, GPUs."""
    return Machine(
        num_cores=num_cores(),
        memory_mb=read_memory()["total_mb"],
        num_gpus=count_gpus(),
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
    )


def boot_id() -> str:
    """Return the identity of the running kernel, new at every start; containers have that of their host."""
    return read_text(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()


def machine_key() -> str:
    """Return what tells this machine from all others: its host name, which another one may have too, and its boot."""
    return f"{os.uname().nodename}/{boot_id()}"


def machine_id() -> str:
    """Return the identity of the installed system, which the machines of a cluster may share; empty when unknown."""
    return read_text(Path("/etc/machine-id"))
