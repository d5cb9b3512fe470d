"""The `holdup` section of a space: the stages of a hold-up study, their sizes and their seeds. Pure."""

from typing import Annotated, Literal

from pydantic import Field

from study.space.domains import ParameterValues, Section
from study.space.parameters import MAX_PROCESSES
from study.space.plain import MAX_TRIALS

Baseline = Literal["rllib_defaults", "naive_growth", "published"]
"""A baseline that needs nothing of this study; those built on the best small-scale setting always take part."""
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Scale = Annotated[int, Field(ge=1, le=MAX_PROCESSES)]


class SeedsSpec(Section):
    """Consecutive seeds."""

    first: Seed
    """The first seed."""
    count: int = Field(ge=1)
    """How many."""

    @property
    def seeds(self) -> range:
        """The seeds, ascending."""
        return range(self.first, self.first + self.count)


class CalibrateSpec(Section):
    """What trials cost here, before the search."""

    num_points: int = Field(6, ge=3)
    """Short trials of different batches, minibatches and epochs, at the target scale: they fit the cost model."""


class RaceSpec(Section):
    """Racing the best settings of the search, at the target scale, all on the same seeds."""

    num_settings: int = Field(8, ge=2)
    """Settings that enter."""
    blocks: list[Annotated[int, Field(ge=1)]] = Field([1, 2, 4], min_length=1)
    """Rank seeds of each block; after each, the better half goes on (never fewer than the stress needs)."""


class StressSpec(Section):
    """The finalists at every searched scale."""

    num_settings: int = Field(1, ge=1)
    """Settings that enter: the best of the race, and as many of the best at the small scale."""
    num_seeds: int = Field(4, ge=2)
    """Rank seeds of each setting at each scale; those run already are not run again."""


class ConfirmSpec(Section):
    """The frozen settings on test seeds."""

    num_seeds: int = Field(20, ge=5)
    """Most test seeds of the winner, at the target, small and unseen scales each, and of the small scale's best; half \
of them first, and the rest where a rule is open."""
    num_seeds_others: int = Field(10, ge=5)
    """Most test seeds of every other arm, in halves as well."""
    num_seeds_stock: int = Field(5, ge=0)
    """Test seeds of the winner under RLlib's own runners and learner; 0 leaves this arm out."""


class MeasureSpec(Section):
    """Throughput: short trials with real runners, which say nothing about learning."""

    scales: list[Scale] = Field([1, 2, 4, 8, 16, 32, 46], min_length=2)
    """Runners of the trials."""
    repeats: int = Field(3, ge=2)
    """Blocks; each runs every point once, in random order."""
    iterations: int = Field(6, ge=2)
    """Training iterations of each trial; the first one is warm-up."""
    step_wait_ms: float = Field(0.0, ge=0)
    """In this stage every environment step waits so many milliseconds, so that runners need no core each."""


class HoldUpSpec(Section):
    """A hold-up study: which setting still works at the target scale? In stages, each with seeds of its own."""

    target_scale: Scale
    """The scale that the setting is for; among `parameters.num_env_runners`."""
    small_scale: Scale
    """The scale at which training is known to work; among `parameters.num_env_runners`."""
    unseen_scales: list[Scale] = Field([])
    """Scales that no stage runs before the confirmation."""
    baselines: list[Baseline] = Field(["rllib_defaults", "naive_growth"])
    """`rllib_defaults`: PPO as RLlib ships it; `naive_growth`: the same with the batch grown with the runners; \
`published`: `published` below. The best small-scale setting, unchanged and scaled by rules, always takes part."""
    published: ParameterValues = Field({})
    """Parameters of a published setting; the rest is as RLlib ships it."""
    naive_steps_per_env_runner: int = Field(400, ge=1)
    """Batch per runner of `naive_growth`."""
    tune_seeds: SeedsSpec = SeedsSpec(first=1, count=8)
    """Seeds of calibration and search."""
    rank_seeds: SeedsSpec = SeedsSpec(first=101, count=7)
    """Seeds of race and stress."""
    test_seeds: SeedsSpec = SeedsSpec(first=1001, count=20)
    """Seeds of confirmation and measurement; refused until the settings are frozen."""
    num_settings: int = Field(24, ge=4, le=MAX_TRIALS)
    """Settings that the search proposes: half at the target scale, a quarter at the small one, the rest between."""
    calibrate: CalibrateSpec = CalibrateSpec()  # type: ignore[call-arg]
    """What trials cost here, before the search."""
    race: RaceSpec = RaceSpec()  # type: ignore[call-arg]
    """Racing the best settings of the search, at the target scale, all on the same seeds."""
    stress: StressSpec = StressSpec()  # type: ignore[call-arg]
    """The finalists at every searched scale."""
    confirm: ConfirmSpec = ConfirmSpec()  # type: ignore[call-arg]
    """The frozen settings on test seeds."""
    measure: MeasureSpec | None = None
    """The clock; none leaves it out, and the certificate says so."""
    cpu_hours: float | None = Field(None, gt=0)
    """Budget of CPU time in training, by all trials up to the confirmation; evaluation and start-up come on top. The \
search is cut short so that the later stages can be paid for; the certificate says what they use beyond it."""
    tolerance: float = Field(0.05, gt=0, lt=1)
    """How much score the target scale may lose against the small scale's best and still hold up."""
    solved_share: float = Field(0.95, gt=0, le=1)
    """Share of test seeds that must be solved."""
