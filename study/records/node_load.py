"""What else the nodes of a trial did while it was timed, and what that makes of its times. Pure.

`study.hosts.load` measures; here is the rule. A trial's times are its own while every process of it
has a core. So cores that the study has not reserved on a node are free for others, and nothing but a small rest may be
done on the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.hosts.load import NodeLoad

FOREIGN_LIMIT = 0.1
"""Cores that others may keep busy on a node beyond those that the study leaves free there.

Sampling waits for its slowest runner, so that on a node of any size one core with a tenth of its time lost makes the
phase up to a tenth longer. A node's own services stay far below.
"""
STOLEN_SHARE = 0.02
"""Share of a virtual machine's cores that its hypervisor may withhold, where that is more than `FOREIGN_LIMIT`: it
takes a little from every core, and what it takes from all, all phases lose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """CPUs that the study held on a host during the timed part of a trial, as means over that time."""

    num_cpus: float
    """Of this trial and of others beside it."""
    ended: float = 0.0
    """Of others that ended meanwhile, whose CPU time cannot be distinguished from that of strangers any more."""


def reserved_on(placement: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return host -> CPUs that a trial reserves there, from the `placement` of its record."""
    cpus: dict[str, int] = {}
    for place in placement:
        cpus[place["host"]] = cpus.get(place["host"], 0) + place["num_cpus"]
    return cpus


def disturbances(loads: Sequence[NodeLoad], reserved: Mapping[str, Reserved]) -> list[str]:
    """Return in words what disturbed a trial on its nodes; nothing when its times are its own.

    Args:
        loads: What its nodes did.
        reserved: Host -> CPUs that the study held there.
    """
    found = []
    for load in loads:
        held = reserved.get(load.host, Reserved(num_cpus=load.num_cores))
        free = max(load.num_cores - held.num_cpus, 0.0)
        if load.foreign_cores > free + FOREIGN_LIMIT + held.ended:
            most = f" (most by {load.largest})" if load.largest else ""
            found.append(
                f"foreign load on {load.host}: {load.foreign_cores:.1f} of {load.num_cores} cores busy with other "
                f"processes{most}"
            )
        if load.stolen_cores > max(FOREIGN_LIMIT, STOLEN_SHARE * load.num_cores):
            found.append(
                f"stolen time on {load.host}: its hypervisor withheld {load.stolen_cores:.1f} of {load.num_cores} cores"
            )
    return found
