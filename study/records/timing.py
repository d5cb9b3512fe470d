"""What a trial's times are worth: the label of a row, how it changes at the end, and what disturbed its nodes.

A trial begins with the label of `study.planning.label_at_start`. Only `measured` times say anything about
scaling. A trial's times are its own while every process of it has a core: cores that the study has not reserved on a
node are free for others, and nothing but a small rest may be done on the others (`study.machine.load` measures it).
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from study.machine.load import NodeLoad
from study.records.ledger import TrialRow
from study.records.records import Timing
from study.space.parameters import SCALE
from study.text import count

PRESSURE_LIMIT = 0.05
"""Share of the training time in which some task waited for a CPU: from here on, processes that share cores disturb."""
FOREIGN_LIMIT = 0.1
"""Cores that others may keep busy on a node beyond those that the study leaves free there.

Sampling waits for its slowest runner, so that on a node of any size one core with a tenth of its time lost makes the
phase up to a tenth longer. A node's own services stay far below.
"""
STOLEN_SHARE = 0.02
"""Share of a virtual machine's cores that its hypervisor may withhold, where that is more than `FOREIGN_LIMIT`: it
takes a little from every core, and what it takes from all, all phases lose."""


class Label(Struct, frozen=True, kw_only=True):
    """What a trial's times are worth, and how that is known."""

    timing: Timing
    reason: str
    provisional: bool = False
    """Whether the CPU pressure of the whole trial has yet to decide between `measured` and `oversubscribed`."""


def label_at_end(row: TrialRow, *, failed: bool, lost: str = "", beside: Iterable[TrialRow] = ()) -> Label | None:
    """Return the label that an attempt ends with; None for one that was never built. Only `measured` is in question.

    It may have `failed`, or have `lost` a `node` or a `process`; others ran `beside` it at some time.
    """
    if row.timing != "measured":
        return None if row.timing is None else Label(timing=row.timing, reason=row.timing_reason)
    runners, combined = int(row.setting[SCALE]), row.combined
    losses = ["the trial failed"] if failed else []
    losses += [f"a {lost} of the trial died"] if lost else []
    for number, what, became in (
        (runners - int(combined.get("num_healthy_env_runners", runners)), "runner", "lost"),
        (int(combined.get("num_env_runner_restarts", 0)), "runner", "restarted"),
        (int(combined.get("num_dropped_samples", 0)), "sample", "dropped"),
    ):
        losses += [f"{count(number, what)} {became}"] if number > 0 else []
    # Where processes share cores because their environments wait, the pressure tells whether any of them had to wait
    # for one, whoever held it.
    pressure = row.weighted_mean("cpu_pressure")
    calm = row.provisional and pressure is not None and pressure < PRESSURE_LIMIT
    losses += [] if calm else disturbances(row.node_loads, reserved(row, beside))
    if losses:
        return Label(timing="tainted", reason=", ".join(losses))
    if not row.provisional:
        return Label(timing="measured", reason=row.timing_reason)
    shown = "unknown" if pressure is None else f"{pressure:.1%}"
    return Label(timing="measured" if calm else "oversubscribed", reason=f"{row.timing_reason}; CPU pressure {shown}")


def reserved(row: TrialRow, others: Iterable[TrialRow]) -> dict[str, tuple[float, float]]:
    """Return what a study held on the machines of a trial in its timed part, as means, with others that ran beside it.

    Machine -> CPUs of all trials, and CPUs of those that ended meanwhile, whose time cannot be distinguished from that
    of strangers any more.
    """
    begin, end = row.timed_from, row.timed_to
    if begin is None or end is None or end <= begin:
        return {}
    result = {machine: (float(own), 0.0) for machine, own in row.cpus_per_machine.items()}
    for other in others:
        until = math.inf if other.ended_at is None else other.ended_at
        share = max(min(until, end) - max(other.started, begin), 0.0) / (end - begin)
        for machine, (held, ended) in result.items():
            # One whose processes never came up may have begun them anywhere.
            here = other.cpus_per_machine.get(machine, 0) if other.cpus_per_machine else other.num_cpus
            result[machine] = (held + here * share, ended + here * share * (until < end))
    return result


def disturbances(loads: Sequence[NodeLoad], reserved: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return in words what disturbed a trial on its nodes, of which `reserved` was held; nothing when it was alone."""
    found = []
    for load in loads:
        held, ended = reserved.get(load.machine or load.host, (load.num_cores, 0.0))
        if load.foreign_cores > max(load.num_cores - held, 0.0) + FOREIGN_LIMIT + ended:
            most, busy = f" (most by {load.largest})" if load.largest else "", f"{load.foreign_cores:.1f} of"
            found.append(f"foreign load on {load.host}: {busy} {load.num_cores} cores busy with other processes{most}")
        if load.stolen_cores > max(FOREIGN_LIMIT, STOLEN_SHARE * load.num_cores):
            lost = f"{load.stolen_cores:.1f} of {load.num_cores} cores"
            found.append(f"stolen time on {load.host}: its hypervisor withheld {lost}")
    return found
