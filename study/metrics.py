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
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from study.records.ledger import End
    from study.trial.measure import StepMeasurement as Step

Of = Callable[[Any], float | None]
Grain = Literal["iteration", "evaluation", "trial", "row"]
Sum = Literal["mean", "weighted mean", "total", "largest", "smallest"]

CUSTOM = "custom/"
"""Before the name of a metric that a person's own script logs: recorded with each iteration, in no table."""
WARMUP_ITERATIONS = 1
"""Left out of a trial's env_steps_per_s: the first iteration pays for lazy initialisation."""
FINAL_SHARE = 0.1
"""Evaluations in this last share of the budget make up `final_return`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A recorded quantity.

    Attributes:
        grain: What one value describes: a training iteration, an evaluation, a whole trial; or `row`: a trial too, but
            added up from the other records whenever a table is made, so that no record of its own holds it.
        name: The key in records, MLflow and tables.
        unit: SI-like unit; `1` for pure numbers.
        meaning: One line.
        of: Its value, of what was measured in an iteration or of a trial that ended; None where it does not exist.
            By default what is measured under its name.
        section: Where TensorBoard shows it, such as `speed`; empty where no mirror gets it.
        of_trial: What the column of this name in a table of trials holds: the `mean` over the timed iterations (those
            after the warm-up), the `weighted mean` by their time, or the `total`, `largest` or `smallest` value of all
            iterations or evaluations; None: a table of trials has no such column.
        counted: Whether its values are whole numbers.
        rllib: Of what the learner reports: its keys in RLlib's results, of which the first that is logged counts.
    """

    grain: Grain
    name: str
    unit: str
    meaning: str
    of: Of | None = None
    section: str = ""
    of_trial: Sum | None = None
    counted: bool = False
    rllib: tuple[str, ...] = ()

    @property
    def mirrored(self) -> bool:
        """Whether MLflow and TensorBoard get it too."""
        return bool(self.section)

    @property
    def whole(self) -> bool:
        """Whether its column in a table of trials holds whole numbers."""
        return self.counted and self.of_trial not in ("mean", "weighted mean")

    def value(self, measured: Any) -> float | None:
        """Return its value, of what was measured in an iteration or of a trial that ended."""
        if self.rllib:  # undefined where the learner's own are, as the explained variance of constant targets
            value = measured.learner.get(self.name)
            return value if value is not None and math.isfinite(value) else None
        found: float | None = self.of(measured) if self.of else getattr(measured, self.name)
        return found


# --- what takes more than a line to compute ---------------------------------------------------------------------------


def _overlap(step: "Step") -> float | None:
    if step.learner_busy_time_s is None:
        return None
    # A sample or an update counts where it ends, with all of its time: what began before the iteration must not make
    # it longer than it was.
    wall_time_s = step.main.wall_time_s
    sampled_s = fmean(min(time_s, wall_time_s) for time_s in step.time_by_runner.values())
    return max(sampled_s + min(step.learner_busy_time_s, wall_time_s) - wall_time_s, 0.0)


def _healthy_runners(step: "Step") -> float:
    if step.num_env_runners is not None:
        return step.num_env_runners
    return sum(sample.num_runners for sample in step.last_of_runners)


def _returns(step: "Step") -> float:
    return math.fsum(sample.episode_return_sum for sample in step.samples)


def _episodes(step: "Step") -> int:
    return sum(sample.num_episodes for sample in step.samples)


def _pressure(step: "Step") -> float | None:
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


def _final(end: "End") -> float | None:
    return end.final_return if end.status == "finished" else None


def _score(end: "End") -> float | None:
    # An interruption has no score, and nothing has one in a throughput study, or without the returns that give it a
    # meaning.
    if end.status == "failed" and end.spec.learns and end.spec.is_scored:
        return 0.0
    final = _final(end)
    return end.spec.score(final) if final is not None and math.isfinite(final) and end.spec.is_scored else None


# --- the list ---------------------------------------------------------------------------------------------------------


def _seconds(name: str, meaning: str, of: Of | None = None, *, section: str = "time") -> Metric:
    return Metric("iteration", name, "s", meaning, of, section=section, of_trial="mean")


def _count(
    name: str, meaning: str, of: Of | None = None, *, unit: str = "1", section: str = "runners", **others: Any
) -> Metric:
    return Metric("iteration", name, unit, meaning, of, section=section, counted=True, **others)


_learner = functools.partial(Metric, "iteration", section="learner")
_iteration, _evaluation = functools.partial(Metric, "iteration"), functools.partial(Metric, "evaluation")
_trial, _row = functools.partial(Metric, "trial"), functools.partial(Metric, "row")
_ALL = (
    _seconds(
        "iteration_time_s",
        "The whole iteration: sampling, learning, synchronisation and the rest; no evaluation. Of APPO and IMPALA, at "
        "least a second and one train batch; before an evaluation, until all that was begun is done.",
        lambda step: step.main.wall_time_s,
    ),
    _seconds("sampling_time_s", "From asking the runners for samples until the last one has answered."),
    _seconds(
        "slowest_runner_time_s",
        "Largest time that one runner process spent in its own sampling, by its own clock.",
        lambda step: max(step.time_by_runner.values()),
    ),
    _seconds(
        "mean_runner_time_s",
        "Mean over runner processes of the time spent in their own sampling. Of APPO and IMPALA, over those that "
        "delivered, and a sample counts where it ends.",
        lambda step: fmean(step.time_by_runner.values()),
        section="",
    ),
    _seconds("learning_time_s", "The update: connectors, advantages, all epochs."),
    _seconds("sync_time_s", "Sending the new weights to the runners."),
    _seconds(
        "rest_time_s",
        "The iteration less sampling, learning and synchronisation.",
        lambda step: None if step.phases_s is None else step.main.wall_time_s - step.phases_s,
        section="",
    ),
    _seconds(
        "learner_busy_time_s",
        "Time that the learner spent on updates, by its own clock, mean over learners. An update counts in the "
        "iteration in which it ends. Only where sampling and learning overlap (APPO, IMPALA).",
    ),
    _seconds(
        "overlap_time_s",
        "Time for which, at the least, runners sampled while the learner learnt. mean_runner_time_s + "
        "learner_busy_time_s - iteration_time_s, at least 0, no runner and no learner at work for more than the "
        "iteration.",
        _overlap,
    ),
    _count(
        "policy_lag",
        "Updates between the policy that sampled and the one that learnt from it (APPO, IMPALA).",
        of_trial="mean",
    ),
    _count(
        "train_batch_size_actual",
        "Environment steps that this iteration trained on; of APPO and IMPALA, that arrived for training.",
        lambda step: step.env_steps,
        unit="env steps",
        of_trial="mean",
    ),
    _count(
        "num_sampling_rounds",
        "Rounds of sampling until the batch was full; 1 unless a runner fell short.",
        lambda step: None if step.phases_s is None else len(step.rounds),
        of_trial="largest",
        section="",
    ),
    _count(
        "num_healthy_env_runners",
        "Runners that delivered samples in this iteration; of APPO and IMPALA, where not all need to, that are alive.",
        _healthy_runners,
        of_trial="smallest",
    ),
    _count(
        "num_dropped_samples",
        "Answers of runners that were lost or came too late, since the start of the trial. Of APPO and IMPALA, also "
        "those that RLlib discarded because a learner process was behind.",
        of_trial="largest",
        section="",
    ),
    _count(
        "num_env_runner_restarts",
        "Runner processes that were started anew, since the start of the trial.",
        lambda step: step.num_restarts,
        of_trial="largest",
        section="",
    ),
    _count(
        "episode_return_sum",
        "Sum of the returns of the training episodes that ended in this iteration; 0 when none did.",
        _returns,
        unit="return",
        section="",
    ),
    _count("num_episodes", "Training episodes that ended in this iteration.", _episodes, of_trial="total"),
    _count(
        "episode_len_sum",
        "Sum of the lengths of those episodes.",
        lambda step: sum(sample.episode_len_sum for sample in step.samples),
        unit="env steps",
        section="",
    ),
    _count(
        "num_gradient_updates",
        "Minibatch updates that ended in this iteration; of APPO and IMPALA perhaps none, and then no loss.",
        section="learner",
        of_trial="total",
    ),
    _learner("kl", "nat", "KL of old to new policy, last minibatch.", rllib=("mean_kl_loss",)),
    _learner("entropy", "nat", "Entropy of the policy, last minibatch.", rllib=("entropy",)),
    _learner("policy_loss", "1", "Policy loss, last minibatch.", rllib=("policy_loss", "mean_pi_loss"), section=""),
    _learner("vf_loss", "return^2", "Value loss, last minibatch.", rllib=("mean_vf_loss", "vf_loss")),
    _learner(
        "vf_explained_var",
        "1",
        "Explained variance of the value function, last minibatch.",
        rllib=("vf_explained_var",),
    ),
    _iteration(
        "cpu_time_s",
        "CPU s",
        "CPU time that the trial's processes used in this iteration.",
        lambda step: (
            step.main.cpu_time_s + step.learners_cpu_time_s + math.fsum(sample.cpu_time_s for sample in step.samples)
        ),
        of_trial="mean",
    ),
    _iteration(
        "peak_rss_mb",
        "MB",
        "Sum over the trial's processes of their largest resident size so far; shared pages count in each. A runner "
        "counts from its first sample on.",
        lambda step: (
            step.main.peak_rss_mb
            + step.learners_peak_rss_mb
            + math.fsum(sample.peak_rss_mb for sample in step.last_of_runners)
        ),
        section="machine",
        of_trial="largest",
    ),
    _iteration(
        "cpu_pressure",
        "1",
        "Share of time in which some task of the trial's busiest node waited for a CPU (Linux PSI). Of the iteration, "
        "seen from the main process, or of a runner's sampling in it; the largest.",
        _pressure,
        section="machine",
        of_trial="weighted mean",
    ),
    _iteration(
        "training_return",
        "return",
        "episode_return_sum / num_episodes; absent when no episode ended. Exploring: not a score.",
        lambda step: _returns(step) / episodes if (episodes := _episodes(step)) else None,
        section="return",
    ),
    # Of evaluations; `study.records` adds them up.
    _evaluation(
        "eval_return",
        "return",
        "Mean return of the evaluation on its fixed seeds; greedy, unless evaluation.stochastic is set.",
        section="return",
    ),
    _evaluation("eval_time_s", "s", "Wall time of the evaluation; outside every training time."),
    _evaluation("num_eval_episodes", "1", "Episodes of the evaluation.", of_trial="total", counted=True),
    _evaluation(
        "num_cut",
        "1",
        "Episodes of the evaluation that did not end and were cut at the limit.",
        of_trial="total",
        counted=True,
    ),
    # Of a trial.
    _trial(
        "wall_time_s",
        "s",
        "Sum of iteration_time_s: training alone, without start-up and evaluation.",
        lambda end: end.last.wall_time_s if end.last else 0.0,
        section="speed",
    ),
    _trial(
        "env_steps",
        "env steps",
        "Environment steps that the trial trained on.",
        lambda end: end.last.env_steps if end.last else 0,
        section="speed",
        counted=True,
    ),
    _trial(
        "env_steps_per_s",
        "env steps/s",
        "Env steps over training seconds so far, total over total, without the first iteration.",
        lambda end: end.row.sums.env_steps_per_s(),
        section="speed",
    ),
    _trial(
        "final_return",
        "return",
        "Mean of eval_return over the evaluations in the last tenth of the budget.",
        _final,
        section="return",
    ),
    _trial(
        "score",
        "1",
        "final_return on the scale floor = 0, reference = 1, clipped to [0, 1.2]; 0 for a failed trial.",
        _score,
        section="return",
    ),
    _trial(
        "env_steps_to_target",
        "env steps",
        "Environment steps until the first of two consecutive evaluations at or above the target. Absent when there "
        "are none within the budget.",
        lambda end: None if end.reached is None else end.evaluations[end.reached].env_steps,
        section="target",
        counted=True,
    ),
    _trial(
        "time_to_target_s",
        "s",
        "Training seconds until then.",
        lambda end: None if end.reached is None else end.evaluations[end.reached].wall_time_s,
        section="target",
    ),
    _trial(
        "cpu_s_to_target",
        "CPU s",
        "CPU time of the trial's processes in training until then.",
        lambda end: None if end.reached is None else end.row.cpu_s_before[end.reached],
        section="target",
    ),
    _trial(
        "peak_return",
        "return",
        "The best evaluation of the trial: against final_return it shows a late collapse. Never a score.",
        lambda end: max((each.mean for each in end.evaluations if math.isfinite(each.mean)), default=None),
        section="return",
    ),
    _trial(
        "startup_time_s",
        "s",
        "From the start of the trial's main process until every runner was ready.",
        lambda end: end.row.startup_time_s,
        section="time",
    ),
    _trial(
        "evaluation_time_s",
        "s",
        "Sum of eval_time_s.",
        # One by one, since `sum` rounds otherwise from Python 3.12 on.
        lambda end: functools.reduce(operator.add, (each.eval_time_s for each in end.evaluations), 0.0),
        section="time",
    ),
    _trial(
        "cpu_s_reserved",
        "CPU s",
        "From the start of the trial to its end, waiting for CPUs included, x CPUs reserved. Of an attempt that a "
        "killed driver left, to its last record.",
        lambda end: (end.moment - end.row.started) * end.row.num_cpus,
        section="machine",
    ),
    _trial(
        "cpu_s_spent",
        "CPU s",
        "CPU time of the trial's processes during training.",
        lambda end: end.row.cpu_s if end.last else None,
        section="machine",
    ),
    _trial(
        "foreign_cores",
        "cores",
        "Mean cores that processes of others kept busy in the timed part, on the node where that was most. Absent "
        "where the system does not tell.",
        lambda end: max((load.foreign_cores for load in end.row.node_loads), default=None),
        section="machine",
    ),
    _trial(
        "stolen_cores",
        "cores",
        "Mean cores that the hypervisor of a virtual machine withheld in the timed part, where that was most.",
        lambda end: max((load.stolen_cores for load in end.row.node_loads), default=None),
        section="machine",
    ),
    # Of the row of a trial in a table; added up in `study.records`.
    _row("iterations", "1", "Training iterations done.", counted=True),
    _row("timed_iterations", "1", "Those after the warm-up.", counted=True),
    _row("timed_env_steps", "env steps", "Environment steps of the timed iterations.", counted=True),
    _row("timed_s", "s", "Training seconds of the timed iterations."),
    _row("episode_len", "env steps", "Mean length of the training episodes that ended in the timed part."),
    _row("num_evaluations", "1", "Evaluations done.", counted=True),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
OF_ITERATIONS: Mapping[str, Sum] = MappingProxyType(
    {metric.name: metric.of_trial for metric in _ALL if metric.grain == "iteration" and metric.of_trial is not None}
)
"""What a table of trials says of the iterations of each, and how it is added up."""
OF_TRIALS = tuple(metric.name for metric in _ALL if metric.grain in ("trial", "row") or metric.of_trial is not None)
"""Every recorded quantity that is a column of a table of trials."""
