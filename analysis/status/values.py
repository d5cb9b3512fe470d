"""What there is to know of where a study stands, as values. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.status import health
from study.space.parameters import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTrial:
    """A trial under way."""

    trial: int
    attempt: int
    num_env_runners: int
    seed: int
    num_cpus: int
    stage: str
    setting: Mapping[str, Value]
    running_s: float
    """Since it was given to Ray Tune."""
    built: bool
    """Whether its processes are up."""
    progress: float
    """Share of its budget at the last evaluation, in [0, 1]."""
    env_steps_per_s: float | None
    timing: str
    """The label so far; empty before it is built, and while the CPU pressure has yet to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The finished trial with the highest score at a scale; where there are no scores, with the highest return."""

    num_env_runners: int
    trial: int
    score: float | None
    final_return: float | None
    num_finished: int
    """Full trials finished at this scale: the more, the more their best flatters."""
    setting: Mapping[str, Value]
    """The parameters that differ between trials, without the scale."""
    all_cut: bool
    """Whether no episode of its last evaluation came to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """An estimate, and what it rests on: trials left x median duration / trials at a time."""

    seconds: float
    trials: float
    """Trials left; the running ones count with the share that they have to go."""
    median_s: float
    n: int
    """Ended trials that the median is of."""
    at_a_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a study stands at one moment."""

    name: str
    folder: str
    moment: float
    """Seconds since the epoch."""
    driver: health.Driver
    state: str
    """One sentence."""
    complete: bool
    """Whether the latest driver came to the end of its plan."""
    staged: bool
    """Whether it is a hold-up study."""
    guessed: bool
    """Whether the number of planned trials is a guess."""
    stage: str
    """Stage that it is at; empty for a study without stages."""
    num_trials: int
    """Planned by the latest driver, less the cancelled ones."""
    counts: Mapping[str, int]
    """finished, failed, interrupted, running -> trials."""
    engine: str
    """Of the trials that were built, see `study.engine`."""
    timings: Mapping[str, int]
    """measured, oversubscribed, emulated, tainted -> trials whose clock has its label."""
    per_stage: Mapping[str, tuple[int, int]]
    """Stage -> trials ended, failed."""
    running: tuple[RunningTrial, ...]
    best: tuple[Best, ...]
    sessions: int
    silence_s: float | None
    """Since the last record; None before the first."""
    longest_pause_s: float | None
    """Between two records of this session; None before there are three."""
    left: TimeLeft | None
    mirror: health.Mirror | None
    pressure: tuple[health.Pressure, ...]
    """Of the trials under way; without any, of the last one that told it."""
    advice: tuple[health.Advice, ...]
    problems: tuple[str, ...]
    """What could not be read, and what is shown nevertheless."""

    @property
    def num_ended(self) -> int:
        """Trials that are over for good."""
        return self.counts["finished"] + self.counts["failed"]
