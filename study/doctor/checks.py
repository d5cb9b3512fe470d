"""How a check is run: alone or for every node, for a limited time, and what is said when it crashes."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from study.doctor.results import CheckResult, fail, failed, merged, warn
from study.doctor.surroundings import NodeReport, Surroundings
from study.errors import StudyError
from study.planning.shape import LOCAL
from study.trial.deadline import within

TIMEOUT_S = 60.0
"""How long one check may take: a network file system that is away never answers."""

Judge = Callable[[Surroundings], CheckResult | None]
"""Judges the surroundings; None where the question does not arise."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One question, and how it is answered."""

    theme: str
    name: str
    judge: Judge

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


def on_every_node(judge: Callable[[NodeReport, Surroundings], CheckResult | None]) -> Judge:
    """Make one result of what `judge` says of each node."""

    def judged(node: NodeReport, around: Surroundings) -> CheckResult | None:
        try:
            return judge(node, around)
        except Exception as error:  # noqa: BLE001 (a check that crashes is a result)
            return crashed(error, node)

    @functools.wraps(judge)
    def judge_all(around: Surroundings) -> CheckResult | None:
        results = {node.address: judged(node, around) for node in around.nodes}
        return merged({address: result for address, result in results.items() if result is not None}, here=LOCAL)

    return judge_all


def crashed(error: Exception, *nodes: NodeReport) -> CheckResult:
    """Return the result of a check that could not be made, because of a fact that could not be read or a fault."""
    missing = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
    for node in nodes:
        if missing in node.faults:
            return warn(f"cannot be read: {node.faults[missing]}", "Look at it on the node by hand.")
    got = " ".join(str(error).split())[:200]
    return fail(f"this check itself failed, {type(error).__name__}: {got}", "Look at it by hand, and report this line.")
