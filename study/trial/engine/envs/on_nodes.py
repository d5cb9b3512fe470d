"""Why an environment that works on the driver's machine does not on another node, in one line. No Ray, no torch."""

from dataclasses import dataclass

from gymnasium import error as gymnasium_error

from study.errors import SpaceError
from study.trial.engine.envs.observations import Unusable
from study.trial.failures import described, original


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """What an environment lacks on a node, and what to do about it."""

    law: str
    fix: str

    def __str__(self) -> str:
        return f"{self.law} Fix: {self.fix}"


def why_not_here(error: BaseException, env_id: str) -> Reason:
    """Return why an environment cannot be made where `error` was raised.

    Args:
        error: What making it raised: of the environment itself, of `make_env` or of `probe`.
        env_id: `environment.id` of the space.
    """
    module, colon, _ = env_id.partition(":")
    absent = _missing_module(error)
    if colon and absent and (module == absent or module.startswith(f"{absent}.")):
        return Reason(law=f"module '{absent}' is not installed there.", fix=f"install {absent} on every node.")
    if absent:
        what = f"module '{module}'" if colon else f"'{env_id}'"
        return Reason(law=f"{what} needs '{absent}', which is not installed.", fix=f"install {absent} on every node.")
    if _caused_by(error, gymnasium_error.UnregisteredEnv):
        fix = "install the package that registers it on every node."
        return Reason(law=f"no environment '{env_id}' is known there.", fix=fix)
    if isinstance(error, Unusable):
        return Reason(law=error.fault.problem, fix=error.fault.fix)
    if isinstance(error, SpaceError):
        return Reason(law=" ".join(fault.problem for fault in error.faults), fix=error.faults[0].fix)
    return Reason(law=f"{described(original(error))}.", fix="make the environment work on every node.")


def _missing_module(error: BaseException) -> str | None:
    found = _caused_by(error, ModuleNotFoundError)
    return found.name if isinstance(found, ModuleNotFoundError) else None


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error
