"""The table of checks, and how each is run: for a limited time, and with a result when it crashes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from study.doctor import fit, nodes, packages, ray, storage, tracking
from study.doctor.results import CheckResult, crashed, failed
from study.doctor.surroundings import Surroundings
from study.errors import StudyError
from study.trial.deadline import within

TIMEOUT_S = 60.0
"""How long one check may take: a network file system that is away never answers."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One question, and how it is answered."""

    theme: str
    name: str
    judge: Callable[[Surroundings], CheckResult | None]
    """Judges the surroundings; None where the question does not arise."""

    def run(self, around: Surroundings) -> CheckResult | None:
        """Return the result; whatever happens becomes one."""
        rule, fix = f"no answer within {TIMEOUT_S:.0f} s", "Try again, or look at the machine."
        slow = StudyError(rule=rule, fix=fix, code="check-too-slow")
        try:
            result = within(TIMEOUT_S, lambda: self.judge(around), otherwise=slow)
        except StudyError as error:
            result = failed(error)
        except Exception as error:  # noqa: BLE001 (a check that crashes is a result)
            result = crashed(error, around.here, *around.nodes)
        return None if result is None else replace(result, theme=self.theme, check=self.name)


CHECKS = (
    DoctorCheck("ray", "connection", ray.connection),
    DoctorCheck("ray", "nodes", ray.nodes),
    DoctorCheck("ray", "token", ray.token),
    DoctorCheck("ray", "workers", ray.workers),
    DoctorCheck("packages", "requirements", packages.requirements),
    DoctorCheck("packages", "same as the driver", packages.same_as_driver),
    DoctorCheck("nodes", "CPUs", nodes.cpus),
    DoctorCheck("nodes", "machines", nodes.machines),
    DoctorCheck("nodes", "memory", nodes.memory),
    DoctorCheck("nodes", "limits", nodes.limits),
    DoctorCheck("nodes", "shared memory", nodes.shared_memory),
    DoctorCheck("nodes", "temporary folder", nodes.temporary),
    DoctorCheck("nodes", "other work", nodes.other_work),
    DoctorCheck("nodes", "frequency", nodes.frequency),
    DoctorCheck("storage", "folder", storage.folder),
    DoctorCheck("storage", "free space", storage.free_space),
    DoctorCheck("mlflow", "answers", tracking.answers),
    DoctorCheck("mlflow", "file system", tracking.filesystem),
    DoctorCheck("space", "largest trial", fit.plan),
    DoctorCheck("space", "environment", fit.environment),
)
"""In the order in which they are shown."""


def judge(around: Surroundings) -> Iterator[CheckResult]:
    """Yield one result for each check that applies, as soon as it is known."""
    for check in CHECKS:
        if (result := check.run(around)) is not None:
            yield result
