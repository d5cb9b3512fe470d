"""What the scaling analysis returns: frozen values that views print as they are. Imports `study.statistics` only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from study.statistics import Estimate
from study.text import count

Kind = Literal["strong", "weak"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Runs of one workload at one scale; `n` is 0 for a cell that nobody has run."""

    num_env_runners: int
    train_batch_size: int | None
    fingerprint: str
    """Workload fingerprint, JSON text with sorted keys."""
    n: int
    """Measured runs."""

    @property
    def runners(self) -> str:
        """In words, such as `16 runners`."""
        return count(self.num_env_runners, "runner")

    @property
    def name(self) -> str:
        """In words, such as `16 runners, batch 2,000`."""
        runners = self.runners
        return runners if self.train_batch_size is None else f"{runners}, batch {self.train_batch_size:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One scale of a group of runs with equal workload."""

    num_env_runners: int
    num_cpus: int | None
    """CPUs allocated: main + runners + learners; None where the source does not say."""
    num_nodes: int | None
    n: int
    """Measured runs."""
    n_failed: int
    """Failed runs of the same workload at this scale; they have no time."""
    train_batch_size: int | None
    env_steps_per_iteration: float
    """As run: a runner that cannot divide the batch oversteps it."""
    env_steps_per_s: Estimate
    iteration_time_s: Estimate
    speed_up: Estimate
    """Strong: T(ref) / T(n). Weak: X(n) / X(ref), the scaled speed-up."""
    efficiency_n: Estimate
    """Per runner: S n_ref / n. In weak scaling T(ref) / T(n)."""
    efficiency_p: Estimate | None
    """Per CPU: S P_ref / P; None where environments wait, as their processes may share cores."""
    marginal: Estimate | None
    """d ln X / d ln P from the row `before`; None without one and where P did not grow."""
    karp_flatt: Estimate | None
    """(1/S - 1/p) / (1 - 1/p) with p = n / n_ref; None in weak scaling and where p <= 1."""
    gain: Estimate | None = None
    """X(n) over X of the row `before`; None without one."""
    before: int | None = None
    """Place in the group of the row that `marginal` and `gain` compare with: the next smaller scale, on as many nodes
    if it ran so, else on the nearest number of nodes. None at the smallest scale."""
    is_reference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingGroup:
    """Scales that may be compared: equal workload fingerprints."""

    fingerprint: str
    """JSON text; in weak scaling without the fields that grow with the scale."""
    label: str
    """What tells it apart from the other groups."""
    reference: int
    """n_ref, environment runners."""
    reference_time_s: Estimate
    """T(n_ref), seconds per iteration."""
    rows: tuple[ScalingRow, ...]
    """By scale, ascending."""
    reading: str
    """What the Karp-Flatt fractions say, in a sentence; empty in weak scaling."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """A ratio of throughputs between two cells that differ in scale and workload, split in two factors.

    `total` is the product of `parallel` and `batch`; each is a factor, its logarithm stands beside it.
    """

    first: Cell
    second: Cell
    factor: str
    """What changed with the scale in words: a field of the workload, or several, joined by ` and `."""
    values: tuple[str, str]
    """That field's value in the first and in the second cell."""
    rates: tuple[tuple[Cell, Estimate], ...]
    """Env steps/s of the four cells: first, second scale at the first workload, first scale at the second, second."""
    total: Estimate
    parallel: Estimate
    """What the scale did, averaged over both workloads."""
    batch: Estimate
    """What the workload did, averaged over both scales."""
    interaction: Estimate
    """Parallel factor at the second workload over that at the first: 1 when the order does not matter."""
    total_log: Estimate
    parallel_log: Estimate
    batch_log: Estimate
    parallel_at_first: Estimate
    """The speed-up at the first cell's workload: a comparison at equal fingerprint."""
    parallel_at_second: Estimate
    """The speed-up at the second cell's workload."""
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An efficiency that is not computed, why, and what to do instead."""

    first: Cell | None
    second: Cell | None
    reason: str
    """In a sentence."""
    decomposition: Decomposition | None = None
    missing: tuple[Cell, ...] = ()
    """Cells without which the effect of the scale cannot be told."""
    command: str = ""
    """What would run them; empty where nothing has to run, or no command of this project can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Speed-up and efficiency of every workload that ran at several scales, and what was left out."""

    kind: Kind
    level: float
    groups: tuple[ScalingGroup, ...]
    refusals: tuple[Refusal, ...]
    excluded: Mapping[str, int]
    """Reason -> runs that are in no group."""
    n: int
    """Runs in the groups."""
    n_failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """Where the time of one iteration goes, in seconds and as shares of it, for one workload at one scale."""

    num_env_runners: int
    num_cpus: int | None
    train_batch_size: int | None
    fingerprint: str
    label: str
    n: int
    n_failed: int
    seconds: Mapping[str, Estimate]
    """Seconds per iteration by phase (`PHASES`), and `iteration`."""
    shares: Mapping[str, Estimate]
    """Share of the iteration by phase; their sum is 1."""
    unexplained: float
    """Share of the iteration that no clock of a phase saw: the median over the runs."""
    load_balance: Estimate
    """Mean runner time / slowest runner time."""
    sampling: Estimate
    """Sampling time / iteration time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Phases of every cell."""

    rows: tuple[PhaseRow, ...]
    excluded: Mapping[str, int]
    n: int
    n_failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """What one batch at one scale needs to reach the target."""

    num_env_runners: int
    num_cpus: int | None
    train_batch_size: int | None
    n: int
    """Runs that ended: finished or failed."""
    n_failed: int
    """Failed runs: censored at the budget."""
    n_censored: int
    """Runs that did not reach the target, the failed ones included."""
    n_timed: int
    """Measured runs behind the throughput."""
    steps_to_target: Estimate | None
    """Restricted mean of env steps to target up to `horizon`; None when no run reached it."""
    env_steps_per_s: Estimate | None
    """Throughput of the measured runs; None when there are none."""
    time_to_target_s: Estimate | None
    """Steps to target over throughput, seconds of training."""
    cpu_h_to_target: Estimate | None
    """Time to target times CPUs allocated, CPU-hours."""
    trials: tuple[int, ...] = ()
    """Numbers of the runs that ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGroup:
    """Rows that learn the same task by the same setting but for batch and scale."""

    label: str
    horizon: int
    """Env steps at which the restricted means are cut."""
    rows: tuple[TargetRow, ...]
    resolution: int = 0
    """Env steps between two evaluations, at most: a time to target is known no better. 0 where it is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTarget:
    """Steps, time and cost to target against batch."""

    groups: tuple[TargetGroup, ...]
    excluded: Mapping[str, int]
    n: int
    n_failed: int
    notes: tuple[str, ...] = ()
    """What must be said of the seeds, and of the hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """The same CPUs spent on so many trials of so many runners, side by side."""

    label: str
    num_trials: int
    """Trials side by side."""
    num_env_runners: int
    """Runners of each."""
    num_cpus: int | None
    """CPUs of all of them together."""
    n: int
    """Blocks in which all of them were measured."""
    n_failed: int
    """Trials that failed; their block has no total."""
    excluded: Mapping[str, int]
    """Reason -> trials that are in no total."""
    env_steps_per_s: Estimate
    """Sum of the rates of a block's trials."""
    env_steps_per_s_per_cpu: Estimate | None
    relative: Estimate | None
    """Total rate over that of the row with the fewest trials, paired by block."""
