"""What the driver and a trial tell each other through Ray Tune. Pure values."""

import functools
import os
from dataclasses import dataclass, field
from typing import Any

from study.machine.host import machine_key
from study.machine.load import NodeLoad
from study.records.records import Evaluation, Iteration, TrialBuilt, TrialStarted
from study.space.spec import StudySpec

TRIAL = "trial"
"""Key of the `TrialConfig` in a configuration of Tune."""
RESULT = "study_result"
"""Key of the `TrialResult` in a result of Tune."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """What a trial is to do.

    Attributes:
        space: `StudySpec.to_json()` as text, since Tune copies and sends a configuration with each result.
        started: Its record: setting, seed, limit, how it runs.
        driver: Machine and process of the driver, which makes this value.
        script: Of a space with `config`: the script's configuration, as `study.trial.experiment.pickled` returns it.
    """

    space: str
    started: TrialStarted
    driver: tuple[str, int] = field(default_factory=lambda: (machine_key(), os.getpid()))
    script: bytes | None = None

    @property
    def spec(self) -> StudySpec:
        """The space."""
        return _parsed(self.space)


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> StudySpec:
    return StudySpec.model_validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What a trial reports after an iteration, and after an evaluation.

    Attributes:
        records: What is new, in its order; the driver adds what it alone knows: labels of timings, and rates so far.
        progress: Of the budget, in [0, 1].
        evaluates: Whether it plays the episodes of an evaluation next.
        policy: At the end, a zip archive of the final policy's checkpoint; None where the trial does not learn.
        node_loads: At the end, what else the nodes did in the timed part, as far as it is known.
    """

    records: tuple[TrialBuilt | Iteration | Evaluation, ...]
    progress: float
    evaluates: bool = False
    policy: bytes | None = None
    node_loads: tuple[NodeLoad, ...] = ()

    @property
    def done(self) -> bool:
        """Whether the trial has come to its end."""
        return self.progress >= 1 and not self.evaluates

    def packed(self) -> dict[str, Any]:
        """Return the result for Tune, which reads `done` alone."""
        return {RESULT: self, "done": self.done}
