"""The exceptions a person may see. Imports nothing.

    StudyError
    ├── SpaceError(ValueError)      the space file, or an option, is wrong: nothing was started
    ├── ClusterError(RuntimeError)  Ray, MLflow or a scheduler does not answer or refuses, or the plan does not fit
    ├── RecordError(ValueError)     the records of a study cannot be trusted
    ├── TrialError(RuntimeError)    one trial went wrong: it becomes a FAILED row
    │   └── TrialLostError          a node or process died under it: it is run again
    └── AnalysisError(ValueError)   the data do not allow the conclusion that was asked for

Whoever can go on without the failed part catches `StudyError` (a mirror, a table, a doctor's check); the rest ends
at the command line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self


class ExitCode(IntEnum):
    """What the command's exit code says."""

    FINISHED = 0
    """All trials ended well."""
    SOME_FAILED = 1
    """The plan is complete; some trials failed."""
    MISTAKE = 2
    """The call, the space or the surroundings are wrong; nothing was started."""
    NO_CLUSTER = 69
    """The job of a launch failed before or beside the study, as where Ray did not start (EX_UNAVAILABLE)."""
    UNEXPECTED = 70
    """A fault of this program (EX_SOFTWARE)."""
    STOPPED = 75
    """Stopped and resumable (EX_TEMPFAIL)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One problem, as text `where (line 3): rule, got value. Fix: action.`, without the parts that are empty."""

    where: str = ""
    """Field, option or file that is wrong: "parameters.lr"."""
    rule: str
    """What must hold: "`low < high` must hold"."""
    got: str = ""
    """What was found instead; empty where the rule says it already."""
    fix: str = ""
    """What to do, as a sentence."""
    line: int | None = None
    """None where the problem is in no line of a file."""

    @property
    def problem(self) -> str:
        """The rule and what was found, without place and fix."""
        text = f"{self.rule}, got {self.got}" if self.got else self.rule
        return text if text.endswith((".", "!", "?", "\n")) else f"{text}."

    def __str__(self) -> str:
        line = f" (line {self.line})" if self.line is not None else ""
        text = f"{self.where}{line}: {self.problem}" if self.where else self.problem
        return f"{text}{'' if text.endswith(chr(10)) else ' '}Fix: {self.fix}" if self.fix else text


class StudyError(Exception):
    """Base of every error that this project raises on purpose; its parts are those of a `Fault`.

    The text is made of the parts, and is never read back by a program.
    """

    def __init__(self, message: str = "", *, where: str = "", rule: str = "", got: object = "", fix: str = "") -> None:
        self.where, self.rule, self.got, self.fix = where, rule or message, str(got), fix
        self.fault = Fault(where=where, rule=self.rule, got=self.got, fix=fix)
        super().__init__(message or str(self.fault))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with all parts, whatever a subclass is made of: errors of a trial come from another process."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ClusterError(StudyError, RuntimeError):
    """Ray, MLflow or a scheduler does not answer or refuses, or the plan does not fit the cluster."""


class RecordError(StudyError, ValueError):
    """A study folder's records are missing, damaged, or belong to something else."""


class TrialError(StudyError, RuntimeError):
    """A trial cannot go on; its row says why."""

    place = ""
    """The last line of a person's own code that the error came through; empty where there is none."""


class TrialLostError(TrialError):
    """A node or a process died under a trial, which may have had no part in it."""

    node = False
    """Whether the node died, or is out of reach, and not a process alone."""


class AnalysisError(StudyError, ValueError):
    """The data do not allow the conclusion that was asked for."""


class SpaceError(StudyError, ValueError):
    """A space file, or an option that changes it, is wrong. Carries every fault found."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        count = "1 problem" if len(faults) == 1 else f"{len(faults)} problems"
        super().__init__("\n".join([f"{source}: {count}", *(f"  {fault}" for fault in faults)]))
        self.source = source
        self.faults = tuple(faults)

    @classmethod
    def of(cls, source: str, *, where: str, rule: str, got: object = "", fix: str, line: int | None = None) -> Self:
        """Return the error of one fault; arguments as of `Fault`."""
        return cls(source, [Fault(where=where, rule=rule, got=str(got), fix=fix, line=line)])


def wrong_option(option: str, rule: str, *, got: object = "", fix: str) -> SpaceError:
    """Return the error of one option or argument of a command."""
    return SpaceError.of("command line", where=option, rule=rule, got=str(got), fix=fix)
