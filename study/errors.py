"""The exceptions a person may see. Imports nothing.

    StudyError
    ├── SpaceError(ValueError)      the space file, or an option, is wrong: nothing was started
    ├── ClusterError(RuntimeError)  Ray cannot be reached, or the plan does not fit it
    ├── LaunchError(RuntimeError)   a job cannot be submitted, or Ray does not start on its hosts
    ├── TrackingError(RuntimeError) MLflow cannot be reached at a first start
    ├── RecordError(ValueError)     the records of a study cannot be trusted
    ├── TrialError(RuntimeError)    one trial went wrong: it becomes a FAILED row
    │   └── TrialLostError          a node or process died under it: it is run again
    └── AnalysisError(ValueError)   the data do not allow the conclusion that was asked for

Whoever can go on without the failed part catches `StudyError` (a mirror, a table, a doctor's check); the rest ends
at the command line. A message reads `where: law, got value. Fix: action.`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What the command's exit code says."""

    FINISHED = 0
    """All trials ended well."""
    SOME_FAILED = 1
    """The plan is complete; some trials failed."""
    MISTAKE = 2
    """The call, the space or the surroundings are wrong; nothing was started."""
    NO_CLUSTER = 69
    """Ray did not start on the hosts of a job (EX_UNAVAILABLE)."""
    UNEXPECTED = 70
    """A fault of this program (EX_SOFTWARE)."""
    STOPPED = 75
    """Stopped and resumable (EX_TEMPFAIL)."""


class StudyError(Exception):
    """Base of every error that this project raises on purpose."""


class ClusterError(StudyError, RuntimeError):
    """Ray cannot be reached, or the plan does not fit the cluster."""


class LaunchError(StudyError, RuntimeError):
    """A job cannot be submitted, or Ray does not start on its hosts."""


class TrackingError(StudyError, RuntimeError):
    """The MLflow tracking URI does not answer."""


class RecordError(StudyError, ValueError):
    """A study folder's records are missing, damaged, or belong to something else."""


class TrialError(StudyError, RuntimeError):
    """A trial cannot go on; its row says why."""


class TrialLostError(TrialError):
    """A node or a process died under a trial, which may have had no part in it."""


class AnalysisError(StudyError, ValueError):
    """The data do not allow the conclusion that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing wrong in a space: its place, the law with the value that broke it, and the way out."""

    place: str
    law: str
    fix: str
    line: int | None = None

    def __str__(self) -> str:
        line = f" (line {self.line})" if self.line is not None else ""
        return f"{self.place}{line}: {self.law} Fix: {self.fix}"


class SpaceError(StudyError, ValueError):
    """A space file, or an option that changes it, is wrong. Carries every fault found."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        count = "1 problem" if len(self.faults) == 1 else f"{len(self.faults)} problems"
        super().__init__("\n".join([f"{source}: {count}", *(f"  {fault}" for fault in self.faults)]))

    def __reduce__(self) -> tuple[type["SpaceError"], tuple[str, tuple[Fault, ...]]]:
        """Pickle by source and faults: a trial's process raises it too."""
        return SpaceError, (self.source, self.faults)
