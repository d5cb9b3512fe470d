"""How trials with stock runners, or for the clock alone, fit on a cluster. Pure."""

from study.designs.holdup.phases import holdup_of
from study.errors import ClusterError
from study.planning.needs import check_fit, execution_of, label_at_start
from study.planning.shape import ClusterShape
from study.space.spec import StudySpec
from study.space.variants import spec_of


def runners_of(spec: StudySpec, variant: str, num_env_runners: int, cluster: ClusterShape) -> int:
    """Return the runner processes that stand for `num_env_runners`.

    RLlib's own runner cannot be emulated. Where the cluster has no core for each, one stock runner steps the lanes of
    all of them: the same number of environments, the same fragments, the same batch.
    """
    if variant != "stock":
        return num_env_runners
    real = spec.model_copy(update={"execution": "auto"})
    return num_env_runners if execution_of(real, num_env_runners, cluster) == "real" else 1


def why_not_measured(spec: StudySpec, cluster: ClusterShape) -> str:
    """Return why the clock cannot be measured on this cluster; empty when it can."""
    measure = holdup_of(spec).measure
    if measure is None:
        return "the space has no holdup.measure"
    real, largest = spec_of(spec, "measured"), max(measure.scales)
    try:
        check_fit(real, largest, cluster)
    except ClusterError as error:
        return str(error)
    label = label_at_start(real, cluster, num_env_runners=largest, execution="real")
    return "" if label.timing == "measured" else label.reason
