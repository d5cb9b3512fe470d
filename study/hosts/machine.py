"""What this machine can really give a study. Standard library and psutil.

A joined Ray runs this on every node of its cluster.
"""

import os
from dataclasses import dataclass

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
