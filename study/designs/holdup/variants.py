"""How a variant of a trial runs: under RLlib's own parts, or with real runners for the clock. Pure."""

from study.designs.holdup.stages import Variant
from study.errors import ClusterError
from study.planning.needs import check_fit, execution_of
from study.planning.shape import ClusterShape
from study.records.timing import label_at_start
from study.space.parameters import SCALE, Value
from study.space.spec import StudySpec
from study.space.throughput import LEARNERS


def spec_of(spec: StudySpec, variant: Variant, *, num_learners: int | None = None) -> StudySpec:
    """Return the space that a trial of this variant runs under, with so many learners where they are varied."""
    if num_learners is not None:
        return spec.model_copy(update={"resources": spec.resources.model_copy(update={LEARNERS: num_learners})})
    match variant:
        case "stock":
            return spec.model_copy(
                update={"runner": "stock", "learner": "rllib", "standardization": None, "execution": "real"}
            )
        case "measured":
            wait = spec.holdup.measure.step_wait_ms if spec.holdup and spec.holdup.measure else 0.0
            environment = spec.environment.model_copy(update={"step_wait_ms": wait})
            evaluation = spec.evaluation.model_copy(update={"num_evaluations": 1, "episodes": 1})
            return spec.model_copy(update={"execution": "real", "environment": environment, "evaluation": evaluation})
        case _:
            return spec


def runners_of(spec: StudySpec, variant: Variant, num_env_runners: int, cluster: ClusterShape) -> int:
    """Return the runner processes that stand for `num_env_runners`.

    RLlib's own runner cannot be emulated. Where the cluster has no core for each, one stock runner steps the lanes of
    all of them: the same number of environments, the same fragments, the same batch.
    """
    if variant != "stock":
        return num_env_runners
    real = spec.model_copy(update={"execution": "auto"})
    return num_env_runners if execution_of(real, num_env_runners, cluster) == "real" else 1


def folded(setting: dict[str, Value], num_env_runners: int) -> dict[str, Value]:
    """Return the setting with the lanes of all runners in `num_env_runners` of them; nothing else changes."""
    lanes = int(setting[SCALE]) * int(setting["num_envs_per_env_runner"])
    return {**setting, SCALE: num_env_runners, "num_envs_per_env_runner": lanes // num_env_runners}


def why_not_measured(spec: StudySpec, cluster: ClusterShape) -> str:
    """Return why the clock cannot be measured on this cluster; empty when it can."""
    if spec.holdup is None or spec.holdup.measure is None:
        return "the space has no holdup.measure"
    real, largest = spec_of(spec, "measured"), max(spec.holdup.measure.scales)
    try:
        check_fit(real, largest, cluster)
    except ClusterError as error:
        return str(error)
    label = label_at_start(real, cluster, num_env_runners=largest, execution="real")
    return "" if label.timing == "measured" else label.reason
