"""What a trial's times are worth: the label of a row, and how it changes at the end. Pure.

Every timing is `measured`, `oversubscribed`, `emulated` or `tainted`, with the reason. Only `measured` ones say
anything about scaling.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from study.records.records import Timing
from study.text import count

PRESSURE_LIMIT = 0.05
"""Share of the training time in which some task waited for a CPU: from here on, processes that share cores disturb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a trial's times are worth, and how that is known."""

    timing: Timing
    reason: str
    provisional: bool = False
    """Whether the CPU pressure of the whole trial has yet to decide between `measured` and `oversubscribed`."""


def label_with_lanes_in(num_env_runners: int, stands_for: int) -> Label:
    """Return the label of a trial whose few runner processes step the lanes of `stands_for` runners."""
    inside = count(num_env_runners, "stock runner")
    return Label(timing="emulated", reason=f"lanes of {count(stands_for, 'runner')} stepped in {inside}")


def label_at_end(
    label: Label,
    *,
    failed: bool,
    num_dropped_samples: int,
    num_lost_runners: int,
    cpu_pressure: float | None,
    lost: str = "",
    num_restarts: int = 0,
    disturbances: Sequence[str] = (),
) -> Label:
    """Return the label that a trial ends with.

    Args:
        label: What it began with. Only `measured` is in question.
        failed: Whether the trial failed, for instance because a runner died or did not answer.
        num_dropped_samples: Samples that were lost or came too late, over the whole trial.
        num_lost_runners: Runners that were missing in the worst iteration.
        cpu_pressure: Mean share of the training time in which some task waited for a CPU; None when unknown.
        lost: `node` or `process`: what died under the trial; empty when nothing did.
        num_restarts: Runner processes that were started anew.
        disturbances: What others did on its nodes beyond the limits, by `study.records.node_load.disturbances`.
    """
    if label.timing != "measured":
        return label
    losses = ["the trial failed"] if failed else []
    losses += [f"a {lost} of the trial died"] if lost else []
    losses += [f"{count(num_lost_runners, 'runner')} lost"] if num_lost_runners > 0 else []
    losses += [f"{count(num_restarts, 'runner')} restarted"] if num_restarts > 0 else []
    losses += [f"{count(num_dropped_samples, 'sample')} dropped"] if num_dropped_samples > 0 else []
    # Where processes share cores because their environments wait, the pressure tells whether any of them had to wait
    # for one, whoever held it.
    calm = label.provisional and cpu_pressure is not None and cpu_pressure < PRESSURE_LIMIT
    losses += [] if calm else disturbances
    if losses:
        return Label(timing="tainted", reason=", ".join(losses))
    if not label.provisional:
        return label
    if cpu_pressure is None:
        return Label(timing="oversubscribed", reason=f"{label.reason}; CPU pressure unknown")
    timing: Timing = "measured" if cpu_pressure < PRESSURE_LIMIT else "oversubscribed"
    return Label(timing=timing, reason=f"{label.reason}; CPU pressure {cpu_pressure:.1%}")
