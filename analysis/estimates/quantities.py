"""Every quantity of the frame of estimates: name, unit, definition. Pure; every output uses these names."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What a row of the frame of estimates is an estimate of.

    Attributes:
        name: As in the column `quantity`.
        unit: SI-like unit; `1` for pure numbers.
        label: How people call it.
        definition: One sentence.
    """

    name: str
    unit: str
    label: str
    definition: str


_ALL = (
    (
        "env_steps_per_s",
        "env steps/s",
        "throughput",
        "Env steps over wall seconds after the warm-up, total over total.",
    ),
    ("iteration_time_s", "s", "iteration time", "Seconds per training iteration, total over total."),
    ("speed_up", "1", "speed-up", "T(n_ref) / T(n) of equal work; n_ref is the smallest scale of the workload."),
    ("efficiency_per_runner", "1", "efficiency", "Speed-up over the growth of the runners: 1 is ideal."),
    (
        "efficiency_per_cpu",
        "1",
        "efficiency per CPU",
        "Speed-up over the growth of the CPUs allocated; none where environments wait and processes share cores.",
    ),
    (
        "marginal_efficiency",
        "1",
        "marginal efficiency",
        "d ln X / d ln P from the next smaller scale: 1 where a CPU more gives its full share, 0 for nothing.",
    ),
    ("karp_flatt", "1", "Karp-Flatt fraction", "(1/S - 1/p) / (1 - 1/p), p = n / n_ref: the serial share implied."),
    ("gain", "1", "gain", "Throughput over that at the next smaller scale of the workload."),
    ("weak_speed_up", "1", "scaled speed-up", "X(n) / X(n_ref) with the env steps per runner fixed."),
    ("weak_efficiency", "1", "weak efficiency", "T(n_ref) / T(n) with the env steps per runner fixed."),
    ("weak_efficiency_per_cpu", "1", "weak efficiency per CPU", "Scaled speed-up over the growth of the CPUs."),
    ("weak_marginal_efficiency", "1", "marginal efficiency", "d ln X / d ln P, the env steps per runner fixed."),
    ("hours_per_million_steps", "h", "hours per million steps", "Wall hours of training for a million env steps."),
    ("cpu_hours_per_million_steps", "CPU h", "CPU-hours per million steps", "Those hours times the CPUs allocated."),
    (
        "cpu_hours_per_hour_saved",
        "CPU h/h",
        "CPU-hours per hour saved",
        "CPU-hours more over hours less than at the next smaller scale; negative where both fall.",
    ),
    ("steps_to_target", "env steps", "steps to the target", "Kaplan-Meier restricted mean up to the common horizon."),
    ("statistical_efficiency", "1", "statistical efficiency", "Steps to the target at the reference batch / here."),
    ("goodput", "env steps/s", "goodput", "Throughput times statistical efficiency."),
    ("time_to_target_s", "s", "time to the target", "Steps to the target over throughput: seconds of training."),
    ("cpu_hours_to_target", "CPU h", "CPU-hours to the target", "Time to the target times the CPUs allocated."),
    ("seconds_runners", "s", "sampling of the mean runner", "Seconds per iteration that the mean runner samples."),
    ("seconds_imbalance", "s", "waiting for the slowest", "Seconds per iteration from the mean to the slowest."),
    ("seconds_transfer", "s", "collecting samples", "Seconds per iteration from the slowest to its samples."),
    ("seconds_learning", "s", "learning", "Seconds per iteration of the update with its connectors."),
    ("seconds_sync", "s", "synchronisation", "Seconds per iteration that the weights take to the runners."),
    ("seconds_rest", "s", "the rest", "Seconds per iteration that no other phase has."),
    ("share_runners", "1", "sampling of the mean runner", "Share of the iteration that the mean runner samples."),
    ("share_imbalance", "1", "waiting for the slowest", "Share of the iteration from the mean runner to the slowest."),
    ("share_transfer", "1", "collecting samples", "Share of the iteration from the slowest runner to its samples."),
    ("share_learn", "1", "learning", "Share of the iteration of the update with its connectors."),
    ("share_sync", "1", "synchronisation", "Share of the iteration that the weights take to the runners."),
    ("share_rest", "1", "the rest", "Share of the iteration that no other phase has."),
    ("share_sample", "1", "sampling", "Share of the iteration from its start until all samples are there."),
    ("share_unexplained", "1", "unexplained", "Share of the iteration that the clock of no phase saw."),
    ("load_balance", "1", "load balance", "Mean runner time / slowest runner time."),
    ("transfer", "1", "transfer", "Slowest runner time / sampling time."),
    ("useful_share", "1", "useful share", "Mean runner time / iteration time."),
    ("final_return", "return", "return", "Interquartile mean of the runs' final greedy evaluation returns."),
    ("score", "1", "score", "Mean score of the runs, 0 = floor, 1 = reference; a failed run is 0."),
    ("solved_share", "1", "solved", "Share of the runs that end at the target; a failed run does not."),
    ("cpu_s_spent", "CPU s", "CPU time", "Mean CPU seconds that a run spent in training."),
    (
        "score_difference",
        "1",
        "score kept",
        "Mean score of the winner less that of the best small setting.",
    ),
    ("score_lead", "1", "lead", "Mean score of the winner less that of a baseline at the same number of runners."),
    ("steps_saved", "1", "steps saved", "Env steps to the target of the baseline over those of the winner."),
    ("time_saved", "1", "time saved", "Seconds to the target of the baseline over those of the winner."),
    (
        "most_speed_up",
        "1",
        "most that runners can give",
        "Bound of the throughput over that at the largest scale, at this batch, if runners took no time.",
    ),
    (
        "ceiling_env_steps_per_s",
        "env steps/s",
        "ceiling",
        "Bound of the throughput at this batch, if runners took no time.",
    ),
    ("ceiling_of_all_batches_env_steps_per_s", "env steps/s", "ceiling of all batches", "Bound at any batch."),
    ("fixed_share", "1", "share that no runner shortens", "Share of the iteration that more runners do not shorten."),
    ("knee_num_env_runners", "runners", "knee", "Runners at which sampling takes as long as learning."),
    ("limit_num_env_runners", "runners", "limit", "Runners beyond which a CPU more gives less than half its share."),
    ("amdahl_serial_fraction", "1", "serial fraction", "Share that no runner shortens, by Amdahl's law."),
    ("usl_contention", "1", "contention", "a of the universal scalability law."),
    ("usl_coherency", "1", "coherency", "b of the universal scalability law."),
    ("best_train_batch_size", "env steps", "best batch", "Batch that reaches the target soonest."),
)
QUANTITIES: Mapping[str, Quantity] = MappingProxyType(
    {name: Quantity(name=name, unit=unit, label=label, definition=definition) for name, unit, label, definition in _ALL}
)
"""Name -> quantity, in the order of a report."""
