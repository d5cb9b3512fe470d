"""The cause of an error in one line: RLlib and Ray wrap what an environment raises. Pure."""

LOST = (
    "ActorDiedError",
    "ActorUnavailableError",
    "LocalRayletDiedError",
    "NodeDiedError",
    "ObjectLostError",
    "OwnerDiedError",
    "RayActorError",
    "WorkerCrashedError",
)
"""Names of Ray's exceptions for a process or node that is gone; what Ray calls an actor is a process."""

_LONGEST = 300
"""Characters of a message that are shown; the traceback has them all."""


class RunnerStartError(Exception):
    """The constructor of a runner failed: `runner and place: rule, got value. Fix: action.`, on one line."""


def of_runner(error: BaseException) -> str | None:
    """Return the message of a `RunnerStartError`; None where there is none.

    Ray (2.60) hands it over as it is, or as the last line of a traceback in a message of its own.
    """
    for line in reversed(str(error).splitlines()):
        _, found, message = line.partition(f"{RunnerStartError.__name__}: ")
        if found:
            return message.strip()
    return str(error) if isinstance(error, RunnerStartError) else None


def original(error: BaseException) -> BaseException:
    """Return the exception that says what happened.

    RLlib raises an empty `RuntimeError` from what an environment's `step` raised.
    """
    while not str(error) and error.__cause__ is not None:
        error = error.__cause__
    return error


def was_lost(error: BaseException | None) -> bool:
    """Return whether an error comes from a process or node that died, other than by an exception in a constructor."""
    while error is not None:
        if {kind.__name__ for kind in type(error).__mro__} & {*LOST} and not getattr(error, "actor_init_failed", False):
            return True
        error = error.__cause__
    return False


def described(error: BaseException) -> str:
    """Return `Type: message` on one line of bounded length, without a full stop.

    A remote traceback says what happened in its last line, any other message in its first ones.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    remote = any(line.startswith("File ") for line in lines)
    message = lines[-1] if remote else " ".join(lines)
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST]} …"
    return f"{type(error).__name__}: {message}".rstrip(".: ")
