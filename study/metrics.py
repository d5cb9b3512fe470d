"""The one list of recorded quantities, each declared once. Pure; records, MLflow and tables use these names.

Every quantity is raw: nothing here is smoothed, and a rate is a total over a total. Times are wall clock, by the
monotonic clock of the trial's main process.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from study.records.ledger import TrialRow
    from study.space.spec import StudySpec
    from study.trial.measure import StepMeasurement as Step

Of = TypeVar("Of", bound=Callable[..., float | None])
Grain = Literal["iteration", "evaluation", "trial", "row"]
Sum = Literal["mean", "weighted mean", "total", "largest", "smallest"]

CUSTOM = "custom/"
"""Before the name of a metric that a person's own script logs: recorded with each iteration, in no table."""
WARMUP_ITERATIONS = 1
"""Left out of a trial's env_steps_per_s: the first iteration pays for lazy initialisation."""
FINAL_SHARE = 0.1
"""Evaluations in this last share of the budget make up `final_return`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A recorded quantity.

    Attributes:
        grain: What one value describes: a training iteration, an evaluation, a whole trial; or `row`: a trial too, but
            added up from the other records whenever a table is made, so that no record of its own holds it.
        name: The key in records, MLflow and tables.
        unit: SI-like unit; `1` for pure numbers.
        meaning: One line.
        section: Where TensorBoard shows it, such as `speed`; empty where no mirror gets it.
        of_trial: What the column of this name in a table of trials holds: the `mean` over the timed iterations (those
            after the warm-up), the `weighted mean` by their time, or the `total`, `largest` or `smallest` value of all
            iterations or evaluations; None: a table of trials has no such column.
        counted: Whether its values are whole numbers.
        of: Its value, of what was measured in an iteration, or of a trial that ended and its space; None where it is
            absent.
        rllib: Of what the learner reports: its keys in RLlib's results, of which the first that is logged counts.
    """

    grain: Grain
    name: str
    unit: str
    meaning: str
    section: str = ""
    of_trial: Sum | None = None
    counted: bool = False
    of: Callable[..., float | None] | None = None
    rllib: tuple[str, ...] = ()

    @property
    def mirrored(self) -> bool:
        """Whether MLflow and TensorBoard get it too."""
        return bool(self.section)

    @property
    def whole(self) -> bool:
        """Whether its column in a table of trials holds whole numbers."""
        return self.counted and self.of_trial not in ("mean", "weighted mean")


_ALL: list[Metric] = []


def _declared(grain: Grain, unit: str, **others: Any) -> Callable[[Of], Of]:
    """Declare a metric: its name, its meaning and its value are those of a function."""

    def declare(of: Of) -> Of:
        meaning = " ".join(str(of.__doc__).split())
        _ALL.append(Metric(grain=grain, name=of.__name__, unit=unit, meaning=meaning, of=of, **others))
        return of

    return declare


_of_iteration = functools.partial(_declared, "iteration")
_of_trial = functools.partial(_declared, "trial")


def _of_learner(name: str, *keys: str, **others: Any) -> None:
    """Declare a metric that the learner computes; of the keys in RLlib's results the first that is logged counts."""

    def of(step: "Step") -> float | None:
        # Explained variance is undefined for constant targets; everything else was checked.
        value = step.learner.get(name)
        return value if value is not None and math.isfinite(value) else None

    _ALL.append(Metric(grain="iteration", name=name, of=of, rllib=keys, **others))


def _of_records(grain: Grain, name: str, unit: str, meaning: str, **others: Any) -> None:
    """Declare a metric that `study.records` makes of the records of a trial."""
    _ALL.append(Metric(grain=grain, name=name, unit=unit, meaning=meaning, **others))


# --- of an iteration --------------------------------------------------------------------------------------------------


@_of_iteration("s", of_trial="mean", section="time")
def iteration_time_s(step: "Step") -> float | None:
    """The whole iteration: sampling, learning, synchronisation and the rest; no evaluation.

    Of APPO and IMPALA, at least a second and one train batch; before an evaluation, until all that was begun is done.
    """
    return step.main.wall_time_s


@_of_iteration("s", of_trial="mean", section="time")
def sampling_time_s(step: "Step") -> float | None:
    """From asking the runners for samples until the last one has answered."""
    return step.sampling_time_s


@_of_iteration("s", of_trial="mean", section="time")
def slowest_runner_time_s(step: "Step") -> float | None:
    """Largest time that one runner process spent in its own sampling, by its own clock."""
    return max(step.time_by_runner.values())


@_of_iteration("s", of_trial="mean")
def mean_runner_time_s(step: "Step") -> float | None:
    """Mean over runner processes of the time spent in their own sampling.

    Of APPO and IMPALA, over those that delivered, and a sample counts where it ends.
    """
    return fmean(step.time_by_runner.values())


@_of_iteration("s", of_trial="mean", section="time")
def learning_time_s(step: "Step") -> float | None:
    """The update: connectors, advantages, all epochs."""
    return step.learning_time_s


@_of_iteration("s", of_trial="mean", section="time")
def sync_time_s(step: "Step") -> float | None:
    """Sending the new weights to the runners."""
    return step.sync_time_s


@_of_iteration("s", of_trial="mean")
def rest_time_s(step: "Step") -> float | None:
    """The iteration less sampling, learning and synchronisation."""
    return None if step.phases_s is None else step.main.wall_time_s - step.phases_s


@_of_iteration("s", of_trial="mean", section="time")
def learner_busy_time_s(step: "Step") -> float | None:
    """Time that the learner spent on updates, by its own clock, mean over learners.

    An update counts in the iteration in which it ends. Only where sampling and learning overlap (APPO, IMPALA).
    """
    return step.learner_busy_time_s


@_of_iteration("s", of_trial="mean", section="time")
def overlap_time_s(step: "Step") -> float | None:
    """Time for which, at the least, runners sampled while the learner learnt.

    mean_runner_time_s + learner_busy_time_s - iteration_time_s, at least 0, no runner and no learner at work for more
    than the iteration.
    """
    if step.learner_busy_time_s is None:
        return None
    # A sample or an update counts where it ends, with all of its time: what began before the iteration must not make
    # it longer than it was.
    wall_time_s = step.main.wall_time_s
    sampled_s = fmean(min(time_s, wall_time_s) for time_s in step.time_by_runner.values())
    return max(sampled_s + min(step.learner_busy_time_s, wall_time_s) - wall_time_s, 0.0)


@_of_iteration("1", of_trial="mean", section="runners", counted=True)
def policy_lag(step: "Step") -> float | None:
    """Updates between the policy that sampled and the one that learnt from it (APPO, IMPALA)."""
    return step.policy_lag


@_of_iteration("env steps", of_trial="mean", section="runners", counted=True)
def train_batch_size_actual(step: "Step") -> float | None:
    """Environment steps that this iteration trained on; of APPO and IMPALA, that arrived for training."""
    return step.env_steps


@_of_iteration("1", of_trial="largest", counted=True)
def num_sampling_rounds(step: "Step") -> float | None:
    """Rounds of sampling until the batch was full; 1 unless a runner fell short."""
    return None if step.phases_s is None else len(step.rounds)


@_of_iteration("1", of_trial="smallest", section="runners", counted=True)
def num_healthy_env_runners(step: "Step") -> float | None:
    """Runners that delivered samples in this iteration; of APPO and IMPALA, where not all need to, that are alive."""
    if step.num_env_runners is not None:
        return step.num_env_runners
    return sum(sample.num_runners for sample in step.last_of_runners)


@_of_iteration("1", of_trial="largest", counted=True)
def num_dropped_samples(step: "Step") -> float | None:
    """Answers of runners that were lost or came too late, since the start of the trial.

    Of APPO and IMPALA, also those that RLlib discarded because a learner process was behind.
    """
    return step.num_dropped_samples


@_of_iteration("1", of_trial="largest", counted=True)
def num_env_runner_restarts(step: "Step") -> float | None:
    """Runner processes that were started anew, since the start of the trial."""
    return step.num_restarts


@_of_iteration("return", counted=True)
def episode_return_sum(step: "Step") -> float:
    """Sum of the returns of the training episodes that ended in this iteration; 0 when none did."""
    return math.fsum(sample.episode_return_sum for sample in step.samples)


@_of_iteration("1", of_trial="total", section="runners", counted=True)
def num_episodes(step: "Step") -> float:
    """Training episodes that ended in this iteration."""
    return sum(sample.num_episodes for sample in step.samples)


@_of_iteration("env steps", counted=True)
def episode_len_sum(step: "Step") -> float | None:
    """Sum of the lengths of those episodes."""
    return sum(sample.episode_len_sum for sample in step.samples)


@_of_iteration("1", of_trial="total", section="learner", counted=True)
def num_gradient_updates(step: "Step") -> float | None:
    """Minibatch updates that ended in this iteration; of APPO and IMPALA perhaps none, and then no loss."""
    return step.num_gradient_updates


_of_learner("kl", "mean_kl_loss", unit="nat", meaning="KL of old to new policy, last minibatch.", section="learner")
_of_learner("entropy", "entropy", unit="nat", meaning="Entropy of the policy, last minibatch.", section="learner")
_of_learner("policy_loss", "policy_loss", "mean_pi_loss", unit="1", meaning="Policy loss, last minibatch.")
_of_learner(
    "vf_loss", "mean_vf_loss", "vf_loss", unit="return^2", meaning="Value loss, last minibatch.", section="learner"
)
_of_learner(
    "vf_explained_var",
    "vf_explained_var",
    unit="1",
    meaning="Explained variance of the value function, last minibatch.",
    section="learner",
)


@_of_iteration("CPU s", of_trial="mean")
def cpu_time_s(step: "Step") -> float | None:
    """CPU time that the trial's processes used in this iteration."""
    runners = math.fsum(sample.cpu_time_s for sample in step.samples)
    return step.main.cpu_time_s + step.learners_cpu_time_s + runners


@_of_iteration("MB", of_trial="largest", section="machine")
def peak_rss_mb(step: "Step") -> float | None:
    """Sum over the trial's processes of their largest resident size so far; shared pages count in each.

    A runner counts from its first sample on.
    """
    runners = math.fsum(sample.peak_rss_mb for sample in step.last_of_runners)
    return step.main.peak_rss_mb + step.learners_peak_rss_mb + runners


@_of_iteration("1", of_trial="weighted mean", section="machine")
def cpu_pressure(step: "Step") -> float | None:
    """Share of time in which some task of the trial's busiest node waited for a CPU (Linux PSI).

    Of the iteration, seen from the main process, or of a runner's sampling in it; the largest.
    """
    # The main process's node is watched over the whole iteration, and every node over each runner's sampling, all its
    # samples together: what disturbs the runners must not be thinned by a long update, and the worst moment is no share
    # of the iteration.
    waits: dict[int | str, tuple[float, float]] = {}
    if step.main.pressure_s is not None:
        waits["main"] = step.main.pressure_s, step.main.wall_time_s
    for sample in step.samples:
        if sample.pressure_s is not None:
            waited_s, sampled_s = waits.get(sample.runner, (0.0, 0.0))
            waits[sample.runner] = waited_s + sample.pressure_s, sampled_s + sample.sampling_time_s
    shares = [waited_s / watched_s for waited_s, watched_s in waits.values() if watched_s > 0]
    return min(max(shares), 1.0) if shares else None


@_of_iteration("return", section="return")
def training_return(step: "Step") -> float | None:
    """episode_return_sum / num_episodes; absent when no episode ended. Exploring: not a score."""
    episodes = num_episodes(step)
    return episode_return_sum(step) / episodes if episodes else None


# --- of an evaluation; `study.records` adds them up -------------------------------------------------------------------

_of_records(
    "evaluation",
    "eval_return",
    "return",
    "Mean return of the evaluation on its fixed seeds; greedy, unless evaluation.stochastic is set.",
    section="return",
)
_of_records("evaluation", "eval_time_s", "s", "Wall time of the evaluation; outside every training time.")
_of_records("evaluation", "num_eval_episodes", "1", "Episodes of the evaluation.", of_trial="total", counted=True)
_of_records(
    "evaluation",
    "num_cut",
    "1",
    "Episodes of the evaluation that did not end and were cut at the limit.",
    of_trial="total",
    counted=True,
)


# --- of a trial -------------------------------------------------------------------------------------------------------


@_of_trial("s", section="speed")
def wall_time_s(end: "TrialRow", spec: "StudySpec") -> float | None:
    """Sum of iteration_time_s: training alone, without start-up and evaluation."""
    return end.last_iteration.wall_time_s if end.last_iteration else 0.0


@_of_trial("env steps", section="speed", counted=True)
def env_steps(end: "TrialRow", spec: "StudySpec") -> float | None:
    """Environment steps that the trial trained on."""
    return end.last_iteration.env_steps if end.last_iteration else 0


@_of_trial("env steps/s", section="speed")
def env_steps_per_s(end: "TrialRow", spec: "StudySpec") -> float | None:
    """Env steps over training seconds so far, total over total, without the first iteration."""
    return end.env_steps_per_s()


@_of_trial("return", section="return")
def final_return(end: "TrialRow", spec: "StudySpec") -> float | None:
    """Mean of eval_return over the evaluations in the last tenth of the budget."""
    return end.final_return if end.status == "finished" else None


@_of_trial("1", section="return")
def score(end: "TrialRow", spec: "StudySpec") -> float | None:
    """final_return on the scale floor = 0, reference = 1, clipped to [0, 1.2]; 0 for a failed trial."""
    # An interruption has no score, and nothing has one in a throughput study, or without the returns that give it a
    # meaning.
    if end.status == "failed" and spec.learns and spec.is_scored:
        return 0.0
    final = final_return(end, spec)
    return spec.score(final) if final is not None and math.isfinite(final) and spec.is_scored else None


@_of_trial("env steps", section="target", counted=True)
def env_steps_to_target(end: "TrialRow", spec: "StudySpec") -> float | None:
    """Environment steps until the first of two consecutive evaluations at or above the target.

    Absent when there are none within the budget.
    """
    at = end.reached(spec)
    return None if at is None else end.evaluations[at].env_steps


@_of_trial("s", section="target")
def time_to_target_s(end: "TrialRow", spec: "StudySpec") -> float | None:
    """Training seconds until then."""
    at = end.reached(spec)
    return None if at is None else end.evaluations[at].wall_time_s


@_of_trial("CPU s", section="target")
def cpu_s_to_target(end: "TrialRow", spec: "StudySpec") -> float | None:
    """CPU time of the trial's processes in training until then."""
    at = end.reached(spec)
    return None if at is None else end.cpu_s_before[at]


@_of_trial("return", section="return")
def peak_return(end: "TrialRow", spec: "StudySpec") -> float | None:
    """The best evaluation of the trial: against final_return it shows a late collapse. Never a score."""
    return max((each.mean for each in end.evaluations if math.isfinite(each.mean)), default=None)


@_of_trial("s", section="time")
def startup_time_s(end: "TrialRow", spec: "StudySpec") -> float | None:
    """From the start of the trial's main process until every runner was ready."""
    return end.startup_time_s


@_of_trial("s", section="time")
def evaluation_time_s(end: "TrialRow", spec: "StudySpec") -> float | None:
    """Sum of eval_time_s."""
    # One by one, since `sum` rounds otherwise from Python 3.12 on.
    return functools.reduce(operator.add, (each.eval_time_s for each in end.evaluations), 0.0)


@_of_trial("CPU s", section="machine")
def cpu_s_reserved(end: "TrialRow", spec: "StudySpec") -> float | None:
    """From the start of the trial to its end, waiting for CPUs included, x CPUs reserved.

    Of an attempt that a killed driver left, to its last record.
    """
    return (end.duration_s or 0.0) * end.num_cpus


@_of_trial("CPU s", section="machine")
def cpu_s_spent(end: "TrialRow", spec: "StudySpec") -> float | None:
    """CPU time of the trial's processes during training."""
    return end.cpu_s if end.last_iteration else None


@_of_trial("cores", section="machine")
def foreign_cores(end: "TrialRow", spec: "StudySpec") -> float | None:
    """Mean cores that processes of others kept busy in the timed part, on the node where that was most.

    Absent where the system does not tell.
    """
    return max((load.foreign_cores for load in end.node_loads), default=None)


@_of_trial("cores", section="machine")
def stolen_cores(end: "TrialRow", spec: "StudySpec") -> float | None:
    """Mean cores that the hypervisor of a virtual machine withheld in the timed part, where that was most."""
    return max((load.stolen_cores for load in end.node_loads), default=None)


# --- of the row of a trial in a table; added up in `study.records` ----------------------------------------------------

_of_records("row", "iterations", "1", "Training iterations done.", counted=True)
_of_records("row", "timed_iterations", "1", "Those after the warm-up.", counted=True)
_of_records("row", "timed_env_steps", "env steps", "Environment steps of the timed iterations.", counted=True)
_of_records("row", "timed_s", "s", "Training seconds of the timed iterations.")
_of_records("row", "episode_len", "env steps", "Mean length of the training episodes that ended in the timed part.")
_of_records("row", "num_evaluations", "1", "Evaluations done.", counted=True)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
OF_ITERATIONS: Mapping[str, Sum] = MappingProxyType(
    {metric.name: metric.of_trial for metric in _ALL if metric.grain == "iteration" and metric.of_trial is not None}
)
"""What a table of trials says of the iterations of each, and how it is added up."""
OF_TRIALS = tuple(metric.name for metric in _ALL if metric.grain in ("trial", "row") or metric.of_trial is not None)
"""Every recorded quantity that is a column of a table of trials."""
