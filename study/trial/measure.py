"""What one iteration measured, and the metrics made of it. Raw values only. No Ray, no torch, no gymnasium.

Times are wall clock by the monotonic clock of the process that took them; clocks of two processes are never
subtracted.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from study.errors import TrialError
from study.machine.host import read_peak_rss_mb
from study.machine.load import read_pressure_s
from study.metrics import METRICS

LEARNER_KEYS: Mapping[str, tuple[str, ...]] = {
    "kl": ("mean_kl_loss",),
    "entropy": ("entropy",),
    "policy_loss": ("policy_loss", "mean_pi_loss"),
    "vf_loss": ("mean_vf_loss", "vf_loss"),
    "vf_explained_var": ("vf_explained_var",),
}
"""Metric that the learner computes -> its key in RLlib, the first that is logged: APPO and IMPALA log the value loss
summed too. Of the last minibatch of the iteration, as RLlib reports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerMeasurement:
    """What a runner process measured about one call of its own sampling."""

    runner: int
    """Number of the process, from 1; 0 for the main process."""
    sampling_time_s: float
    env_steps: int
    episode_return_sum: float
    num_episodes: int
    episode_len_sum: int
    cpu_time_s: float
    """CPU time of the process since the previous measurement."""
    peak_rss_mb: float
    pressure_s: float | None
    """Seconds of the sampling in which some task of the node waited for a CPU; None without Linux PSI."""
    num_runners: int = 1
    """Runners of the trial whose lanes it steps: more than one when they are emulated."""
    error: str = ""
    """`Type: message` of what the environment raised; empty when all went well."""
    fix: str = ""
    """What a person can do about it."""
    traceback: str = ""
    """The runner's own traceback of that error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasurement:
    """What the main process measured about one training step."""

    sampling_time_s: float | None
    """None, as the other phases, where sampling goes on while the learner learns."""
    learning_time_s: float | None
    sync_time_s: float | None
    rounds: tuple[tuple[RunnerMeasurement, ...], ...]
    """Measurements of each round of sampling, in the order of the runners; without phases one round, as they came."""
    num_dropped_samples: int
    """Samples that were lost, since the start of the trial."""
    num_env_runners: int | None = None
    """Runners that are alive, where an iteration does not wait for each; None: those that delivered."""
    latest: tuple[RunnerMeasurement, ...] = ()
    """Where an iteration does not wait for each runner: their last measurements, which may be from before it."""
    num_restarts: int = 0
    """Runner processes that were started anew since the start of the trial."""
    num_gradient_updates: int | None
    """Steps that the optimizer took; minibatches that it had to leave out are not among them."""
    learners_cpu_time_s: float = 0.0
    """CPU time of learner processes of their own since the iteration before."""
    learners_peak_rss_mb: float = 0.0
    learner_busy_time_s: float | None = None
    """Seconds that a learner spent on updates, on its own clock, mean of learners; else `learning_time_s` tells it."""
    policy_lag: float | None = None
    """Updates between a policy that sampled and the one that learnt from it, mean over the updates."""
    learner: Mapping[str, float]
    """Those of `LEARNER_KEYS` by name."""

    @property
    def env_steps(self) -> int:
        """Environment steps that were trained on."""
        return sum(runner.env_steps for runners in self.rounds for runner in runners)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMeasurement:
    """What the main process used during one iteration."""

    wall_time_s: float
    cpu_time_s: float
    peak_rss_mb: float
    pressure_s: float | None


def iteration_metrics(step: StepMeasurement, main: ProcessMeasurement) -> dict[str, float | None]:
    """Return all metrics of grain `iteration`; None where the quantity does not exist.

    Raises:
        TrialError: A loss is not finite: nothing that follows would mean anything.
    """
    check_learning(step.learner)
    phases = _sum((step.sampling_time_s, step.learning_time_s, step.sync_time_s))
    # Without phases an iteration may end before the first update of it: RLlib's buffer takes a batch and returns.
    if phases is not None and step.num_gradient_updates == 0:
        rule = "an iteration must change the weights"
        got, fix = "no gradient that is finite: the training diverged", "Lower lr, clip_param or num_epochs."
        raise TrialError(where="learner", rule=rule, got=got, fix=fix)
    per_runner = _total_time_by_runner(step.rounds)
    last = {sample.runner: sample for runners in (step.latest, *step.rounds) for sample in runners}
    samples = [sample for runners in step.rounds for sample in runners]
    episodes = sum(sample.num_episodes for sample in samples)
    returns = math.fsum(sample.episode_return_sum for sample in samples)
    values: dict[str, float | None] = {
        "iteration_time_s": main.wall_time_s,
        "sampling_time_s": step.sampling_time_s,
        "slowest_runner_time_s": max(per_runner.values()),
        "mean_runner_time_s": fmean(per_runner.values()),
        "learning_time_s": step.learning_time_s,
        "sync_time_s": step.sync_time_s,
        "rest_time_s": None if phases is None else main.wall_time_s - phases,
        "learner_busy_time_s": step.learner_busy_time_s,
        "overlap_time_s": _overlap_s(per_runner.values(), step.learner_busy_time_s, main.wall_time_s),
        "policy_lag": step.policy_lag,
        "train_batch_size_actual": step.env_steps,
        "num_sampling_rounds": None if phases is None else len(step.rounds),
        "num_healthy_env_runners": sum(sample.num_runners for sample in last.values())
        if step.num_env_runners is None
        else step.num_env_runners,
        "num_dropped_samples": step.num_dropped_samples,
        "num_env_runner_restarts": step.num_restarts,
        "episode_return_sum": returns,
        "num_episodes": episodes,
        "episode_len_sum": sum(sample.episode_len_sum for sample in samples),
        "num_gradient_updates": step.num_gradient_updates,
        "cpu_time_s": main.cpu_time_s + step.learners_cpu_time_s + math.fsum(each.cpu_time_s for each in samples),
        "peak_rss_mb": main.peak_rss_mb
        + step.learners_peak_rss_mb
        + math.fsum(sample.peak_rss_mb for sample in last.values()),
        "cpu_pressure": cpu_pressure(samples, main),
        "training_return": returns / episodes if episodes else None,
        **{name: _finite(step.learner.get(name)) for name in LEARNER_KEYS},
    }
    return {name: values[name] for name, metric in METRICS.items() if metric.grain == "iteration"}


def _total_time_by_runner(rounds: Sequence[Sequence[RunnerMeasurement]]) -> dict[int, float]:
    times: dict[int, float] = {}
    for runners in rounds:
        for sample in runners:
            times[sample.runner] = times.get(sample.runner, 0.0) + sample.sampling_time_s
    return times


def _overlap_s(per_runner: Iterable[float], busy_s: float | None, wall_time_s: float) -> float | None:
    """Return for how long runners sampled while the learner learnt, at the least; None where there are phases.

    A sample or an update counts where it ends, with all of its time: what began before the iteration must not make it
    longer than it was.
    """
    if busy_s is None:
        return None
    sampled_s = fmean(min(time_s, wall_time_s) for time_s in per_runner)
    return max(sampled_s + min(busy_s, wall_time_s) - wall_time_s, 0.0)


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None where one of them does not exist."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _finite(value: float | None) -> float | None:
    """Explained variance is undefined for constant targets; everything else was checked."""
    return value if value is not None and math.isfinite(value) else None


def check_learning(learner: Mapping[str, float]) -> None:
    """Raise `TrialError` when a loss is not finite."""
    for name in LEARNER_KEYS:
        value = learner.get(name)
        if name != "vf_explained_var" and value is not None and not math.isfinite(value):
            got = f"{name}={value}: the training diverged"
            fix = "Lower lr, clip_param or num_epochs, or raise entropy_coeff."
            raise TrialError(where="learner", rule="losses must be finite", got=got, fix=fix)


def cpu_pressure(samples: Sequence[RunnerMeasurement], main: ProcessMeasurement) -> float | None:
    """Return the largest share of time in which some task of a node of the trial waited for a CPU, in [0, 1].

    The main process's node is watched over the whole iteration, and every node over each runner's sampling, all its
    samples together: what disturbs the runners must not be thinned by a long update, and the worst moment is no share
    of the iteration. None when no node tells.
    """
    shares = []
    if main.pressure_s is not None and main.wall_time_s > 0:
        shares.append(main.pressure_s / main.wall_time_s)
    watched: dict[int, tuple[float, float]] = {}
    for sample in samples:
        if sample.pressure_s is not None:
            waited_s, sampled_s = watched.get(sample.runner, (0.0, 0.0))
            watched[sample.runner] = waited_s + sample.pressure_s, sampled_s + sample.sampling_time_s
    shares += [waited_s / sampled_s for waited_s, sampled_s in watched.values() if sampled_s > 0]
    return min(max(shares), 1.0) if shares else None


class Watch:
    """Measures what this process and its node use between `start` and `stop`."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self.start()

    def start(self) -> None:
        """Begin an interval. CPU time counts from the previous `stop`, so that nothing between is lost."""
        self._pressure_s = read_pressure_s()
        self._started_s = time.perf_counter()

    def stop(self) -> ProcessMeasurement:
        """End the interval and return what was used in it."""
        wall_time_s = self.elapsed_s()
        pressure_s, cpu_s = read_pressure_s(), time.process_time()
        waited = None if pressure_s is None or self._pressure_s is None else pressure_s - self._pressure_s
        cpu_time_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        return ProcessMeasurement(
            wall_time_s=wall_time_s, cpu_time_s=cpu_time_s, peak_rss_mb=read_peak_rss_mb(), pressure_s=waited
        )

    def elapsed_s(self) -> float:
        """Return the wall time since `start`."""
        return time.perf_counter() - self._started_s

    def skip(self) -> None:
        """Forget the CPU time used since the previous `stop` (start-up, an evaluation)."""
        self._cpu_s = time.process_time()
