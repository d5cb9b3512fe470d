"""What the trials of one scale need, and what their times will be worth. Pure."""

from dataclasses import dataclass

from study.planning.guess import guess_seconds
from study.planning.needs import check_fit, execution_of, memory_mb, num_cpus, processes
from study.planning.shape import ClusterShape
from study.records.timing import Label, label_at_start
from study.space.spec import Execution, StudySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """What the trials of one scale need."""

    num_env_runners: int
    num_trials: int
    execution: Execution
    num_processes: int
    num_cpus: int
    """CPUs that one trial reserves."""
    memory_mb: int
    """Memory that one trial needs, over all nodes."""
    hours: float
    """Guess of one trial's duration."""
    label: Label
    """What its rows will say of their times."""
    alone: bool = False
    """Whether its trials take the whole cluster while they run."""


def scale_plan(
    spec: StudySpec, num_env_runners: int, cluster: ClusterShape, *, num_trials: int, iterations: int | None = None
) -> ScalePlan:
    """Return what trials of a scale need.

    Raises:
        ClusterError: They can never fit.
    """
    check_fit(spec, num_env_runners, cluster)
    execution = execution_of(spec, num_env_runners, cluster)
    label = label_at_start(spec, cluster, num_env_runners=num_env_runners, execution=execution)
    return ScalePlan(
        num_env_runners=num_env_runners,
        num_trials=num_trials,
        execution=execution,
        num_processes=len(processes(spec, num_env_runners, execution)),
        num_cpus=num_cpus(spec, num_env_runners, execution),
        memory_mb=memory_mb(spec, num_env_runners, execution),
        hours=guess_seconds(spec, num_env_runners, cluster, execution=execution, iterations=iterations) / 3600,
        label=label,
        alone=spec.exclusive and execution == "real",
    )
