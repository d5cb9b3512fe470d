"""Why a trial ended, by the classes of what was raised: an error of its own, or a node or process that died under it.

A setting is not to blame for the machine it ran on. So a trial that was lost is taken back and runs again, as a new
attempt of the same number, setting and seed (`study.driver.conductor`). Imports Ray.
"""

from typing import NamedTuple

from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from study.driver.conductor import Loss
from study.errors import TrialError, TrialLostError
from study.ray_private import died_alone

_LONGEST = 500
"""Characters of a reason."""


class Fault(NamedTuple):
    """How a trial ended that did not finish."""

    reason: str
    """In one line, as near to the cause as Ray tells."""
    loss: Loss | None
    """What died under it; None where it failed by itself."""


def fault_of(error: BaseException | None, *, said: str = "", address: str = "") -> Fault:
    """Return why a trial ended.

    Args:
        error: What Ray raised in place of the trial's result; None where there is no more than words.
        said: What Tune wrote about the failure.
        address: The node of the trial's main process, as far as it is known.
    """
    if isinstance(error, RayActorError):
        return _main_process_gone(error, address)
    cause = getattr(error, "cause", None) if isinstance(error, RayTaskError) else error
    if isinstance(cause, TrialError):  # written for people
        loss: Loss | None = None
        if isinstance(cause, TrialLostError):
            loss = "node" if cause.node else "process"
        return Fault(str(cause)[:_LONGEST], loss)
    lines = [line.strip() for line in (said if cause is None else str(cause)).splitlines() if line.strip()]
    name = "" if cause is None or isinstance(cause, RayTaskError) else f"{type(cause).__name__}: "
    last = lines[-1] if lines else "a process of the trial ended without a word"
    return Fault(f"{name}{last}"[:_LONGEST], None)


def _main_process_gone(error: RayActorError, address: str) -> Fault:
    """Return the loss of a trial whose main process is not there any more; what Ray says of it is for people alone."""
    # A node reports a process that dies alone; where nobody reports, the node has died too, or the network.
    process = not isinstance(error, ActorUnavailableError) and died_alone(error.actor_id)
    rule = "its main process must stay alive" if process else "the node of its main process must stay in reach"
    said = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    where, got = f" ({address})" if address else "", said[-1] if said else type(error).__name__
    return Fault(f"trial: {rule}{where}, got: {got}"[:_LONGEST], "process" if process else "node")
