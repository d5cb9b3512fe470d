"""The arms of a confirmation: what the runs of a setting at a scale came to, on test seeds. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from study.records.ledger import TrialRow
from study.space.sections import HoldUpSpec
from study.space.settings import BEST_SMALL, WINNER
from study.space.spec import StudySpec
from study.statistics import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one trial of an arm came to."""

    seed: int
    score: float | None
    """As the space scales it; None, or not a number, where the run failed."""
    solved: bool
    """Whether `final_return` reached the target."""
    env_steps: float | None = None
    """Environment steps trained on; None where the run failed before the first."""
    env_steps_to_target: float | None = None
    """None where the target was not reached."""
    wall_time_s: float | None = None
    """Training seconds in all."""
    time_to_target_s: float | None = None
    """None where the target was not reached."""
    env_steps_before_target: float | None = None
    """At the last evaluation below the target, before it was reached or the run ended; 0 where there was none. None
    where the times are exact."""
    time_before_target_s: float | None = None
    """The same in training seconds."""
    timing: str | None = None
    """Label of its times; only `measured` ones say anything about the clock."""

    @property
    def failed(self) -> bool:
        """Whether there is no score that counts."""
        return self.score is None or not math.isfinite(self.score)


def run_of(spec: StudySpec, row: TrialRow) -> Run:
    """Return what a trial of the confirmation came to, as its summary says."""
    final, summary = row.summary.get("final_return"), row.summary
    return Run(
        seed=row.seed,
        score=summary.get("score") if row.status == "finished" else None,
        solved=final is not None and final >= spec.target,
        env_steps=summary.get("env_steps"),
        env_steps_to_target=summary.get("env_steps_to_target"),
        wall_time_s=summary.get("wall_time_s"),
        time_to_target_s=summary.get("time_to_target_s"),
        timing=row.timing,
    )


def score_of(row: TrialRow) -> float:
    """Return the score of a trial that has ended; 0 where it failed, or where its return is not a number."""
    score = row.summary.get("score")
    return score if row.status == "finished" and score is not None and math.isfinite(score) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The runs of one setting at one scale, each on a test seed of its own."""

    name: str
    scale: int
    runs: tuple[Run, ...]

    @property
    def scores(self) -> FloatArray:
        """One score per run, shape (runs,); 0 for a failed one."""
        return np.array([0.0 if run.failed else run.score for run in self.runs], dtype=np.float64)

    def times(self, name: str) -> list[float | None]:
        """Return a time of every run, one of `Run`'s fields; None for a failed run, which never gets there."""
        return [None if run.failed else getattr(run, name) for run in self.runs]

    @property
    def num_failed(self) -> int:
        """Runs without a score that counts."""
        return sum(run.failed for run in self.runs)

    @property
    def num_solved(self) -> int:
        """Runs that ended at or above the target."""
        return sum(run.solved and not run.failed for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """What the verdict is about."""

    winner: Mapping[int, Arm]
    """Scale -> the winner there: the target and every unseen scale; others are not judged."""
    references: tuple[Arm, ...]
    """At the small scale: the best setting of that scale and the winner, or the one of them that is an arm. The winner
    is held against the better of them: a rule is kept where it is kept against each."""
    naive_growth: Arm | None = None
    """RLlib's defaults with the batch grown, at the target; None where it was no arm."""


def arms_of(found: Mapping[tuple[str, int], Arm], holdup: HoldUpSpec) -> Arms:
    """Return what the verdict is about, of all arms of a confirmation by name and scale."""
    small = ((name, holdup.small_scale) for name in (BEST_SMALL, WINNER))
    return Arms(
        winner={scale: found[WINNER, scale] for scale in (holdup.target_scale, *holdup.unseen_scales)},
        references=tuple(found[place] for place in small if place in found),
        naive_growth=found.get(("naive_growth", holdup.target_scale)),
    )
