"""What a trial's times are worth: the label of a row, how it changes at the end, and what disturbed its nodes.

A trial begins with the label of `study.planning.needs.label_at_start`.
Every timing is `measured`, `oversubscribed`, `emulated` or `tainted`, with the reason. Only `measured` ones say
anything about scaling. A trial's times are its own while every process of it has a core: cores that the study has not
reserved on a node are free for others, and nothing but a small rest may be done on the others (`study.machine.load`
measures it).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from study.machine.load import NodeLoad
from study.records.ledger import TrialRow
from study.records.records import Timing
from study.text import count as counted

_count = partial(counted, form="d")
"""Without commas: certificates compare labels with those on record."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a trial's times are worth, and how that is known."""

    timing: Timing
    reason: str
    provisional: bool = False
    """Whether the CPU pressure of the whole trial has yet to decide between `measured` and `oversubscribed`."""


def label_at_end(row: TrialRow, *, failed: bool, lost: str = "", beside: Iterable[TrialRow] = ()) -> Label | None:
    """Return the label that an attempt ends with; None for one that was never built.

    Args:
        row: The trial as far as it has come. Only `measured` is in question.
        failed: Whether it failed, for instance because a runner died or did not answer.
        lost: `node` or `process`: what died under it; empty when nothing did.
        beside: Trials that ran beside it at some time.
    """
    if row.timing is None:
        return None
    label = Label(timing=row.timing, reason=row.timing_reason, provisional=row.provisional)
    if label.timing != "measured":
        return label
    losses = ["the trial failed"] if failed else []
    losses += [f"a {lost} of the trial died"] if lost else []
    for number, what, became in (
        (row.num_lost_runners, "runner", "lost"),
        (int(row.sums.worst("num_env_runner_restarts")), "runner", "restarted"),
        (int(row.sums.worst("num_dropped_samples")), "sample", "dropped"),
    ):
        losses += [f"{_count(number, what)} {became}"] if number > 0 else []
    # Where processes share cores because their environments wait, the pressure tells whether any of them had to wait
    # for one, whoever held it.
    pressure = row.sums.weighted_mean("cpu_pressure")
    calm = label.provisional and pressure is not None and pressure < PRESSURE_LIMIT
    losses += [] if calm else disturbances(row.node_loads, reserved(row, beside))
    if losses:
        return Label(timing="tainted", reason=", ".join(losses))
    if not label.provisional:
        return label
    shown = "unknown" if pressure is None else f"{pressure:.1%}"
    return Label(timing="measured" if calm else "oversubscribed", reason=f"{label.reason}; CPU pressure {shown}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """CPUs that the study held on a machine during the timed part of a trial, as means over that time."""

    num_cpus: float
    """Of this trial and of others beside it."""
    ended: float = 0.0
    """Of others that ended meanwhile, whose CPU time cannot be distinguished from that of strangers any more."""


def reserved(row: TrialRow, others: Iterable[TrialRow]) -> Mapping[str, Reserved]:
    """Return, for every machine of a trial, what the study held there during the trial's timed part.

    What the study's own trials use is not foreign.

    Args:
        row: The trial.
        others: Those that ran beside it at some time.
    """
    begin, end = row.timed_from, row.timed_to
    if begin is None or end is None or end <= begin:
        return {}
    result = {machine: Reserved(num_cpus=own) for machine, own in row.cpus_per_machine.items()}
    for other in others:
        until = math.inf if other.ended_at is None else other.ended_at
        share = max(min(until, end) - max(other.started, begin), 0.0) / (end - begin)
        for machine, held in result.items():
            # One whose processes never came up may have begun them anywhere.
            here = other.cpus_per_machine.get(machine, 0) if other.cpus_per_machine else other.num_cpus
            ended = held.ended + here * share if until < end else held.ended
            result[machine] = Reserved(num_cpus=held.num_cpus + here * share, ended=ended)
    return result


def disturbances(loads: Sequence[NodeLoad], reserved: Mapping[str, Reserved]) -> list[str]:
    """Return in words what disturbed a trial on its nodes; nothing when its times are its own.

    Args:
        loads: What its nodes did.
        reserved: Machine -> CPUs that the study held there.
    """
    found = []
    for load in loads:
        held = reserved.get(load.machine or load.host, Reserved(num_cpus=load.num_cores))
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
