"""The one list of recorded quantities: name, unit, meaning, source. Pure; records, MLflow and tables use these names.

Every quantity is raw: nothing here is smoothed, and a rate is a total over a total.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Grain = Literal["iteration", "evaluation", "trial", "row"]
Sum = Literal["mean", "weighted mean", "total", "largest", "smallest"]
Source = Literal["measured", "counted", "computed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A recorded quantity.

    Attributes:
        name: The key in records, MLflow and tables.
        unit: SI-like unit; `1` for pure numbers.
        grain: What one value describes: a training iteration, an evaluation, a whole trial; or `row`: a trial too, but
            added up from the other records whenever a table is made, so that no record of its own holds it.
        source: `measured` by a clock or the system, `counted` exactly, or `computed` from the others or by the learner.
        meaning: One line.
        mirrored: Whether MLflow gets it too.
        of_trial: What the column of this name in a table of trials holds: the `mean` over the timed iterations (those
            after the warm-up), the `weighted mean` by their time, or the `total`, `largest` or `smallest` value of all
            iterations or evaluations; None: a table of trials has no such column.
    """

    name: str
    unit: str
    grain: Grain
    source: Source
    meaning: str
    mirrored: bool = True
    of_trial: Sum | None = None

    @property
    def whole(self) -> bool:
        """Whether its column in a table of trials holds whole numbers."""
        return self.source == "counted" and self.of_trial not in ("mean", "weighted mean")


_ALL = (
    # One training iteration. Times are wall clock, by the monotonic clock of the trial's main process.
    Metric(
        name="iteration_time_s",
        unit="s",
        grain="iteration",
        source="measured",
        meaning="The whole iteration: sampling, learning, synchronisation and the rest; no evaluation. Of APPO and "
        "IMPALA, at least a second and one train batch; before an evaluation, until all that was begun is done.",
        of_trial="mean",
    ),
    Metric(
        name="sampling_time_s",
        unit="s",
        grain="iteration",
        source="measured",
        meaning="From asking the runners for samples until the last one has answered.",
        of_trial="mean",
    ),
    Metric(
        name="slowest_runner_time_s",
        unit="s",
        grain="iteration",
        source="measured",
        meaning="Largest time that one runner process spent in its own sampling, by its own clock.",
        of_trial="mean",
    ),
    Metric(
        name="mean_runner_time_s",
        unit="s",
        grain="iteration",
        source="measured",
        meaning="Mean over runner processes of the time spent in their own sampling; of APPO and IMPALA, over those "
        "that delivered, and a sample counts where it ends.",
        mirrored=False,
        of_trial="mean",
    ),
    Metric(
        name="learning_time_s",
        unit="s",
        grain="iteration",
        source="measured",
        meaning="The update: connectors, advantages, all epochs.",
        of_trial="mean",
    ),
    Metric(
        name="sync_time_s",
        unit="s",
        grain="iteration",
        source="measured",
        meaning="Sending the new weights to the runners.",
        of_trial="mean",
    ),
    Metric(
        name="rest_time_s",
        unit="s",
        grain="iteration",
        source="computed",
        meaning="The iteration less sampling, learning and synchronisation.",
        mirrored=False,
        of_trial="mean",
    ),
    Metric(
        name="learner_busy_time_s",
        unit="s",
        grain="iteration",
        source="measured",
        meaning="Where sampling and learning overlap (APPO, IMPALA): time of updates, by the learner's own clock; an "
        "update counts where it ends.",
        of_trial="mean",
    ),
    Metric(
        name="overlap_time_s",
        unit="s",
        grain="iteration",
        source="computed",
        meaning="mean_runner_time_s + learner_busy_time_s - iteration_time_s, at least 0, no runner and no learner at "
        "work for more than the iteration: for so long at the least runners sampled while the learner learnt.",
        of_trial="mean",
    ),
    Metric(
        name="policy_lag",
        unit="1",
        grain="iteration",
        source="counted",
        meaning="Updates between the policy that sampled and the one that learnt from it (APPO, IMPALA).",
        of_trial="mean",
    ),
    Metric(
        name="train_batch_size_actual",
        unit="env steps",
        grain="iteration",
        source="counted",
        meaning="Environment steps that this iteration trained on; of APPO and IMPALA, that arrived for training.",
        of_trial="mean",
    ),
    Metric(
        name="num_sampling_rounds",
        unit="1",
        grain="iteration",
        source="counted",
        meaning="Rounds of sampling until the batch was full; 1 unless a runner fell short.",
        mirrored=False,
        of_trial="largest",
    ),
    Metric(
        name="num_healthy_env_runners",
        unit="1",
        grain="iteration",
        source="counted",
        meaning="Runners that delivered samples in this iteration; of APPO and IMPALA, where not all need to, that "
        "are alive.",
        of_trial="smallest",
    ),
    Metric(
        name="num_dropped_samples",
        unit="1",
        grain="iteration",
        source="counted",
        meaning="Answers of runners that were lost or came too late, since the start of the trial; of APPO and IMPALA, "
        "also those that RLlib discarded because a learner process was behind.",
        mirrored=False,
        of_trial="largest",
    ),
    Metric(
        name="num_env_runner_restarts",
        unit="1",
        grain="iteration",
        source="counted",
        meaning="Runner processes that were started anew, since the start of the trial.",
        mirrored=False,
        of_trial="largest",
    ),
    Metric(
        name="episode_return_sum",
        unit="return",
        grain="iteration",
        source="counted",
        meaning="Sum of the returns of the training episodes that ended in this iteration; 0 when none did.",
        mirrored=False,
    ),
    Metric(
        name="num_episodes",
        unit="1",
        grain="iteration",
        source="counted",
        meaning="Training episodes that ended in this iteration.",
        of_trial="total",
    ),
    Metric(
        name="episode_len_sum",
        unit="env steps",
        grain="iteration",
        source="counted",
        meaning="Sum of the lengths of those episodes.",
        mirrored=False,
    ),
    Metric(
        name="num_gradient_updates",
        unit="1",
        grain="iteration",
        source="counted",
        meaning="Minibatch updates that ended in this iteration; of APPO and IMPALA perhaps none, and then no loss.",
        of_trial="total",
    ),
    Metric(
        name="kl", unit="nat", grain="iteration", source="computed", meaning="KL of old to new policy, last minibatch."
    ),
    Metric(
        name="entropy",
        unit="nat",
        grain="iteration",
        source="computed",
        meaning="Entropy of the policy, last minibatch.",
    ),
    Metric(
        name="policy_loss",
        unit="1",
        grain="iteration",
        source="computed",
        meaning="Policy loss, last minibatch.",
        mirrored=False,
    ),
    Metric(
        name="vf_loss", unit="return^2", grain="iteration", source="computed", meaning="Value loss, last minibatch."
    ),
    Metric(
        name="vf_explained_var",
        unit="1",
        grain="iteration",
        source="computed",
        meaning="Explained variance of the value function, last minibatch.",
    ),
    Metric(
        name="cpu_time_s",
        unit="CPU s",
        grain="iteration",
        source="measured",
        meaning="CPU time that the trial's processes used in this iteration.",
        mirrored=False,
        of_trial="mean",
    ),
    Metric(
        name="peak_rss_mb",
        unit="MB",
        grain="iteration",
        source="measured",
        meaning="Sum over the trial's processes of their largest resident size so far; shared pages count in each. "
        "A runner counts from its first sample on.",
        of_trial="largest",
    ),
    Metric(
        name="cpu_pressure",
        unit="1",
        grain="iteration",
        source="measured",
        meaning="Share of time in which some task of the trial's busiest node waited for a CPU (Linux PSI): of the "
        "iteration, seen from the main process, or of a runner's sampling in it; the largest.",
        of_trial="weighted mean",
    ),
    Metric(
        name="training_return",
        unit="return",
        grain="iteration",
        source="computed",
        meaning="episode_return_sum / num_episodes; absent when no episode ended. Exploring: not a score.",
    ),
    # One evaluation.
    Metric(
        name="eval_return",
        unit="return",
        grain="evaluation",
        source="measured",
        meaning="Mean return of the evaluation on its fixed seeds; greedy, unless evaluation.stochastic is set.",
    ),
    Metric(
        name="eval_time_s",
        unit="s",
        grain="evaluation",
        source="measured",
        meaning="Wall time of the evaluation; outside every training time.",
        mirrored=False,
    ),
    Metric(
        name="num_eval_episodes",
        unit="1",
        grain="evaluation",
        source="counted",
        meaning="Episodes of the evaluation.",
        mirrored=False,
        of_trial="total",
    ),
    Metric(
        name="num_cut",
        unit="1",
        grain="evaluation",
        source="counted",
        meaning="Episodes of the evaluation that did not end and were cut at the limit.",
        mirrored=False,
        of_trial="total",
    ),
    # One trial.
    Metric(
        name="wall_time_s",
        unit="s",
        grain="trial",
        source="measured",
        meaning="Sum of iteration_time_s: training alone, without start-up and evaluation.",
    ),
    Metric(
        name="env_steps",
        unit="env steps",
        grain="trial",
        source="counted",
        meaning="Environment steps that the trial trained on.",
    ),
    Metric(
        name="env_steps_per_s",
        unit="env steps/s",
        grain="trial",
        source="computed",
        meaning="Env steps over training seconds so far, total over total, without the first iteration.",
    ),
    Metric(
        name="final_return",
        unit="return",
        grain="trial",
        source="computed",
        meaning="Mean of eval_return over the evaluations in the last tenth of the budget.",
    ),
    Metric(
        name="score",
        unit="1",
        grain="trial",
        source="computed",
        meaning="final_return on the scale floor = 0, reference = 1, clipped to [0, 1.2]; 0 for a failed trial.",
    ),
    Metric(
        name="env_steps_to_target",
        unit="env steps",
        grain="trial",
        source="counted",
        meaning="Environment steps until the first of two consecutive evaluations at or above the target; absent when "
        "there are none within the budget.",
    ),
    Metric(
        name="time_to_target_s",
        unit="s",
        grain="trial",
        source="measured",
        meaning="Training seconds until then.",
    ),
    Metric(
        name="cpu_s_to_target",
        unit="CPU s",
        grain="trial",
        source="measured",
        meaning="CPU time of the trial's processes in training until then.",
    ),
    Metric(
        name="peak_return",
        unit="return",
        grain="trial",
        source="computed",
        meaning="The best evaluation of the trial: against final_return it shows a late collapse. Never a score.",
    ),
    Metric(
        name="startup_time_s",
        unit="s",
        grain="trial",
        source="measured",
        meaning="From the start of the trial's main process until every runner was ready.",
    ),
    Metric(
        name="evaluation_time_s",
        unit="s",
        grain="trial",
        source="measured",
        meaning="Sum of eval_time_s.",
    ),
    Metric(
        name="cpu_s_reserved",
        unit="CPU s",
        grain="trial",
        source="computed",
        meaning="From the start of the trial to its end, waiting for CPUs included, x CPUs reserved; of an attempt "
        "that a killed driver left, to its last record.",
    ),
    Metric(
        name="cpu_s_spent",
        unit="CPU s",
        grain="trial",
        source="measured",
        meaning="CPU time of the trial's processes during training.",
    ),
    Metric(
        name="foreign_cores",
        unit="cores",
        grain="trial",
        source="measured",
        meaning="Mean cores that processes of others kept busy in the timed part, on the node where that was most; "
        "absent where the system does not tell.",
    ),
    Metric(
        name="stolen_cores",
        unit="cores",
        grain="trial",
        source="measured",
        meaning="Mean cores that the hypervisor of a virtual machine withheld in the timed part, where that was most.",
    ),
    # One row of a table of trials.
    Metric(
        name="iterations", unit="1", grain="row", source="counted", meaning="Training iterations done.", mirrored=False
    ),
    Metric(
        name="timed_iterations",
        unit="1",
        grain="row",
        source="counted",
        meaning="Those after the warm-up.",
        mirrored=False,
    ),
    Metric(
        name="timed_env_steps",
        unit="env steps",
        grain="row",
        source="counted",
        meaning="Environment steps of the timed iterations.",
        mirrored=False,
    ),
    Metric(
        name="timed_s",
        unit="s",
        grain="row",
        source="measured",
        meaning="Training seconds of the timed iterations.",
        mirrored=False,
    ),
    Metric(
        name="episode_len",
        unit="env steps",
        grain="row",
        source="computed",
        meaning="Mean length of the training episodes that ended in the timed part.",
        mirrored=False,
    ),
    Metric(
        name="num_evaluations", unit="1", grain="row", source="counted", meaning="Evaluations done.", mirrored=False
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
OF_ITERATIONS: Mapping[str, Sum] = MappingProxyType(
    {metric.name: metric.of_trial for metric in _ALL if metric.grain == "iteration" and metric.of_trial is not None}
)
"""What a table of trials says of the iterations of each, and how it is added up."""
OF_TRIALS = tuple(metric.name for metric in _ALL if metric.grain in ("trial", "row") or metric.of_trial is not None)
"""Every recorded quantity that is a column of a table of trials."""

WARMUP_ITERATIONS = 1
"""Left out of a trial's env_steps_per_s: the first iteration pays for lazy initialisation."""
FINAL_SHARE = 0.1
"""Evaluations in this last share of the budget make up `final_return`."""
