"""The one list of recorded quantities, each declared once. Pure; records, MLflow and tables use these names.

Every quantity is raw: nothing here is smoothed, and a rate is a total over a total. Times are wall clock, by the
monotonic clock of the trial's main process.
"""

import ast
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from study.records.ledger import TrialRow
    from study.space.spec import StudySpec
    from study.trial.measure import StepMeasurement as Step

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
        unit: SI-like unit; `1` for pure numbers.
        section: Where TensorBoard shows it, such as `speed`; empty where no mirror, MLflow neither, gets it.
        of_trial: What the column of this name in a table of trials holds: the `mean` over the timed iterations (those
            after the warm-up), the `weighted mean` by their time, or the `total`, `largest` or `smallest` value of all
            iterations or evaluations; None: a table of trials has no such column.
        counted: Whether its values are whole numbers.
        how: Its value, of what was measured in an iteration, or of a trial that ended and its space; by default what
            stands there under its name.
        rllib: Of what the learner reports: its keys in RLlib's results, of which the first that is logged counts.
        name: The key in records, MLflow and tables.
        meaning: One line.
        grain: What one value describes: a training iteration, an evaluation, a whole trial; or `row`: a trial too, but
            added up from the other records whenever a table is made, so that no record of its own holds it.
    """

    unit: str
    section: str = ""
    of_trial: Sum | None = None
    counted: bool = False
    how: Callable[..., float | None] | None = None
    rllib: tuple[str, ...] = ()
    name: str = ""
    meaning: str = ""
    grain: Grain = "iteration"

    def of(self, measured: Any, *spec: "StudySpec") -> float | None:
        """Return its value of an iteration, or of a trial that ended and its space; None where it is absent."""
        if self.rllib:  # explained variance is undefined for constant targets; everything else was checked
            value = measured.learner.get(self.name)
            return value if value is not None and math.isfinite(value) else None
        found: float | None = getattr(measured, self.name) if self.how is None else self.how(measured, *spec)
        return found

    @property
    def whole(self) -> bool:
        """Whether its column in a table of trials holds whole numbers."""
        return self.counted and self.of_trial not in ("mean", "weighted mean")


def _declared_in(place: type, grain: Grain) -> Iterator[Metric]:
    """Yield the metrics of a class, each with its name there and the text below it as its meaning."""
    (body,) = ast.parse(inspect.getsource(place)).body
    assert isinstance(body, ast.ClassDef)
    for entry, text in pairwise(body.body):
        if isinstance(entry, ast.Assign) and isinstance(text, ast.Expr):
            name, meaning = ast.unparse(entry.targets[0]), " ".join(ast.literal_eval(text.value).split())
            yield replace(getattr(place, name), name=name, meaning=meaning, grain=grain)


# --- of an iteration --------------------------------------------------------------------------------------------------


def _overlap_time_s(step: "Step") -> float | None:
    if step.learner_busy_time_s is None:
        return None
    # A sample or an update counts where it ends, with all of its time: what began before the iteration must not make
    # it longer than it was.
    wall_time_s = step.main.wall_time_s
    sampled_s = fmean(min(time_s, wall_time_s) for time_s in step.time_by_runner.values())
    return max(sampled_s + min(step.learner_busy_time_s, wall_time_s) - wall_time_s, 0.0)


def _num_healthy_env_runners(step: "Step") -> int:
    alive = step.num_env_runners
    return sum(sample.num_runners for sample in step.last_of_runners) if alive is None else alive


def _cpu_pressure(step: "Step") -> float | None:
    # The main process's node is watched over the whole iteration, and every node over each runner's sampling, all its
    # samples together: what disturbs the runners must not be thinned by a long update, and the worst moment is no share
    # of the iteration.
    waits: dict[int | str, tuple[float, float]] = {}
    if step.main.pressure_s is not None:
        waits["main"] = step.main.pressure_s, step.main.wall_time_s
    for sample in step.samples:
        if sample.pressure_s is not None:
            waited_s, sampled_s = waits.get(sample.runner, (0.0, 0.0))
            waits[sample.runner] = waited_s + sample.pressure_s, sampled_s + sample.wall_time_s
    shares = [waited_s / watched_s for waited_s, watched_s in waits.values() if watched_s > 0]
    return min(max(shares), 1.0) if shares else None


def _num_episodes(step: "Step") -> int:
    return sum(sample.num_episodes for sample in step.samples)


def _episode_return_sum(step: "Step") -> float:
    return math.fsum(sample.episode_return_sum for sample in step.samples)


def _training_return(step: "Step") -> float | None:
    return _episode_return_sum(step) / episodes if (episodes := _num_episodes(step)) else None


def _rest_time_s(step: "Step") -> float | None:
    return None if step.phases_s is None else step.main.wall_time_s - step.phases_s


def _cpu_time_s(step: "Step") -> float:
    runners = math.fsum(sample.cpu_time_s for sample in step.samples)
    return step.main.cpu_time_s + step.learners_cpu_time_s + runners


def _peak_rss_mb(step: "Step") -> float:
    runners = math.fsum(sample.peak_rss_mb for sample in step.last_of_runners)
    return step.main.peak_rss_mb + step.learners_peak_rss_mb + runners


_time = functools.partial(Metric, "s", "time", "mean")


class _OfIterations:
    iteration_time_s = _time(how=lambda step: step.main.wall_time_s)
    """The whole iteration: sampling, learning, synchronisation and the rest; no evaluation. Of APPO and IMPALA, at
    least a second and one train batch; before an evaluation, until all that was begun is done."""
    sampling_time_s = _time()
    """From asking the runners for samples until the last one has answered."""
    slowest_runner_time_s = _time(how=lambda step: max(step.time_by_runner.values()))
    """Largest time that one runner process spent in its own sampling, by its own clock."""
    mean_runner_time_s = Metric("s", of_trial="mean", how=lambda step: fmean(step.time_by_runner.values()))
    """Mean over runner processes of the time spent in their own sampling. Of APPO and IMPALA, over those that
    delivered, and a sample counts where it ends."""
    learning_time_s = _time()
    """The update: connectors, advantages, all epochs."""
    sync_time_s = _time()
    """Sending the new weights to the runners."""
    rest_time_s = Metric("s", of_trial="mean", how=_rest_time_s)
    """The iteration less sampling, learning and synchronisation."""
    learner_busy_time_s = _time()
    """Time that the learner spent on updates, by its own clock, mean over learners. An update counts in the iteration
    in which it ends. Only where sampling and learning overlap (APPO, IMPALA)."""
    overlap_time_s = _time(how=_overlap_time_s)
    """Time for which, at the least, runners sampled while the learner learnt. mean_runner_time_s + learner_busy_time_s
    - iteration_time_s, at least 0, no runner and no learner at work for more than the iteration."""
    policy_lag = Metric("1", "runners", "mean", counted=True)
    """Updates between the policy that sampled and the one that learnt from it (APPO, IMPALA)."""
    train_batch_size_actual = Metric("env steps", "runners", "mean", counted=True, how=lambda step: step.env_steps)
    """Environment steps that this iteration trained on; of APPO and IMPALA, that arrived for training."""
    num_sampling_rounds = Metric("1", of_trial="largest", counted=True)
    """Rounds of sampling until the batch was full; 1 unless a runner fell short."""
    num_healthy_env_runners = Metric("1", "runners", "smallest", counted=True, how=_num_healthy_env_runners)
    """Runners that delivered samples in this iteration; of APPO and IMPALA, where not all need to, that are alive."""
    num_dropped_samples = Metric("1", of_trial="largest", counted=True)
    """Answers of runners that were lost or came too late, since the start of the trial. Of APPO and IMPALA, also those
    that RLlib discarded because a learner process was behind."""
    num_env_runner_restarts = Metric("1", of_trial="largest", counted=True, how=lambda step: step.num_restarts)
    """Runner processes that were started anew, since the start of the trial."""
    episode_return_sum = Metric("return", counted=True, how=_episode_return_sum)
    """Sum of the returns of the training episodes that ended in this iteration; 0 when none did."""
    num_episodes = Metric("1", "runners", "total", counted=True, how=_num_episodes)
    """Training episodes that ended in this iteration."""
    episode_len_sum = Metric("env steps", counted=True, how=lambda step: sum(it.episode_len_sum for it in step.samples))
    """Sum of the lengths of those episodes."""
    num_gradient_updates = Metric("1", "learner", "total", counted=True)
    """Minibatch updates that ended in this iteration; of APPO and IMPALA perhaps none, and then no loss."""
    kl = Metric("nat", "learner", rllib=("mean_kl_loss",))
    """KL of old to new policy, last minibatch."""
    entropy = Metric("nat", "learner", rllib=("entropy",))
    """Entropy of the policy, last minibatch."""
    policy_loss = Metric("1", rllib=("policy_loss", "mean_pi_loss"))
    """Policy loss, last minibatch."""
    vf_loss = Metric("return^2", "learner", rllib=("mean_vf_loss", "vf_loss"))
    """Value loss, last minibatch."""
    vf_explained_var = Metric("1", "learner", rllib=("vf_explained_var",))
    """Explained variance of the value function, last minibatch."""
    cpu_time_s = Metric("CPU s", of_trial="mean", how=_cpu_time_s)
    """CPU time that the trial's processes used in this iteration."""
    peak_rss_mb = Metric("MB", "machine", "largest", how=_peak_rss_mb)
    """Sum over the trial's processes of their largest resident size so far; shared pages count in each. A runner counts
    from its first sample on."""
    cpu_pressure = Metric("1", "machine", "weighted mean", how=_cpu_pressure)
    """Share of time in which some task of the trial's busiest node waited for a CPU (Linux PSI). Of the iteration, seen
    from the main process, or of a runner's sampling in it; the largest."""
    training_return = Metric("return", "return", how=_training_return)
    """episode_return_sum / num_episodes; absent when no episode ended. Exploring: not a score."""


class _OfEvaluations:
    eval_return = Metric("return", "return")
    """Mean return of the evaluation on its fixed seeds; greedy, unless evaluation.stochastic is set."""
    eval_time_s = Metric("s")
    """Wall time of the evaluation; outside every training time."""
    num_eval_episodes = Metric("1", of_trial="total", counted=True)
    """Episodes of the evaluation."""
    num_cut = Metric("1", of_trial="total", counted=True)
    """Episodes of the evaluation that did not end and were cut at the limit."""


# --- of a trial that ended --------------------------------------------------------------------------------------------


def _final_return(end: "TrialRow", spec: "StudySpec") -> float | None:
    return end.final_return if end.status == "finished" else None


def _score(end: "TrialRow", spec: "StudySpec") -> float | None:
    # An interruption has no score, and nothing has one in a throughput study, or without the returns that give it a
    # meaning.
    if end.status == "failed" and spec.learns and spec.is_scored:
        return 0.0
    final = _final_return(end, spec)
    return spec.score(final) if final is not None and math.isfinite(final) and spec.is_scored else None


def _at_target(value: Callable[["TrialRow", int], float]) -> Callable[["TrialRow", "StudySpec"], float | None]:
    """Return how to take a value at the evaluation that reached the target; None where none did."""
    return lambda end, spec: None if (place := end.reached(spec)) is None else value(end, place)


def _most_cores(name: str) -> Callable[["TrialRow", "StudySpec"], float | None]:
    return lambda end, spec: max((getattr(load, name) for load in end.node_loads), default=None)


def _peak_return(end: "TrialRow", spec: "StudySpec") -> float | None:
    return max((each.mean for each in end.evaluations if math.isfinite(each.mean)), default=None)


def _evaluation_time_s(end: "TrialRow", spec: "StudySpec") -> float:
    # One by one, since `sum` rounds otherwise from Python 3.12 on.
    return functools.reduce(operator.add, (each.eval_time_s for each in end.evaluations), 0.0)


class _OfTrials:
    wall_time_s = Metric("s", "speed", how=lambda end, _: end.last_iteration.wall_time_s if end.last_iteration else 0.0)
    """Sum of iteration_time_s: training alone, without start-up and evaluation."""
    env_steps = Metric(
        "env steps", "speed", counted=True, how=lambda end, _: end.last_iteration.env_steps if end.last_iteration else 0
    )
    """Environment steps that the trial trained on."""
    env_steps_per_s = Metric("env steps/s", "speed", how=lambda end, _: end.env_steps_per_s())
    """Env steps over training seconds so far, total over total, without the first iteration."""
    final_return = Metric("return", "return", how=_final_return)
    """Mean of eval_return over the evaluations in the last tenth of the budget."""
    score = Metric("1", "return", how=_score)
    """final_return on the scale floor = 0, reference = 1, clipped to [0, 1.2]; 0 for a failed trial."""
    env_steps_to_target = Metric(
        "env steps", "target", counted=True, how=_at_target(lambda end, at: end.evaluations[at].env_steps)
    )
    """Environment steps until the first of two consecutive evaluations at or above the target. Absent when there are
    none within the budget."""
    time_to_target_s = Metric("s", "target", how=_at_target(lambda end, at: end.evaluations[at].wall_time_s))
    """Training seconds until then."""
    cpu_s_to_target = Metric("CPU s", "target", how=_at_target(lambda end, at: end.cpu_s_before[at]))
    """CPU time of the trial's processes in training until then."""
    peak_return = Metric("return", "return", how=_peak_return)
    """The best evaluation of the trial: against final_return it shows a late collapse. Never a score."""
    startup_time_s = Metric("s", "time")
    """From the start of the trial's main process until every runner was ready."""
    evaluation_time_s = Metric("s", "time", how=_evaluation_time_s)
    """Sum of eval_time_s."""
    cpu_s_reserved = Metric("CPU s", "machine", how=lambda end, _: (end.duration_s or 0.0) * end.num_cpus)
    """From the start of the trial to its end, waiting for CPUs included, x CPUs reserved. Of an attempt that a killed
    driver left, to its last record."""
    cpu_s_spent = Metric("CPU s", "machine", how=lambda end, _: end.cpu_s if end.last_iteration else None)
    """CPU time of the trial's processes during training."""
    foreign_cores = Metric("cores", "machine", how=_most_cores("foreign_cores"))
    """Mean cores that processes of others kept busy in the timed part, on the node where that was most. Absent where
    the system does not tell."""
    stolen_cores = Metric("cores", "machine", how=_most_cores("stolen_cores"))
    """Mean cores that the hypervisor of a virtual machine withheld in the timed part, where that was most."""


class _OfRows:
    iterations = Metric("1", counted=True)
    """Training iterations done."""
    timed_iterations = Metric("1", counted=True)
    """Those after the warm-up."""
    timed_env_steps = Metric("env steps", counted=True)
    """Environment steps of the timed iterations."""
    timed_s = Metric("s")
    """Training seconds of the timed iterations."""
    episode_len = Metric("env steps")
    """Mean length of the training episodes that ended in the timed part."""
    num_evaluations = Metric("1", counted=True)
    """Evaluations done."""


_ALL = (
    *_declared_in(_OfIterations, "iteration"),
    *_declared_in(_OfEvaluations, "evaluation"),
    *_declared_in(_OfTrials, "trial"),
    *_declared_in(_OfRows, "row"),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
OF_ITERATIONS: Mapping[str, Sum] = MappingProxyType(
    {metric.name: metric.of_trial for metric in _ALL if metric.grain == "iteration" and metric.of_trial is not None}
)
"""What a table of trials says of the iterations of each, and how it is added up."""
OF_TRIALS = tuple(metric.name for metric in _ALL if metric.grain in ("trial", "row") or metric.of_trial is not None)
"""Every recorded quantity that is a column of a table of trials."""
