"""What the driver and a trial tell each other through Ray Tune. Pure values."""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from study.machine.host import machine_key
from study.machine.load import NodeLoad
from study.records.records import Evaluation, Iteration, TrialBuilt, TrialStarted
from study.space.spec import StudySpec

RESULT = "study_result"
"""Key of the `TrialResult` in a result of Tune."""
STARTED = "started"
"""Key of the trial's record in a configuration of Tune."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """What a trial is to do."""

    spec: StudySpec
    started: TrialStarted
    """Its record: setting, seed, limit, how it runs."""
    driver: tuple[str, int] | None = None
    """Host and process of the driver."""
    script: bytes | None = None
    """Of a space with `config`: the script's configuration, as `study.trial.experiment.pickled` returns it."""

    @classmethod
    def unpacked(cls, config: Mapping[str, Any]) -> "TrialConfig":
        """Return the configuration that Tune hands over."""
        return cls(**{**config, "spec": spec_in(config)})


def packed_config(started: TrialStarted, spec: str, *, script: bytes | None = None) -> dict[str, Any]:
    """Return the configuration of a trial for Tune; the arguments are those of `TrialConfig`.

    `spec` is `StudySpec.to_json()` as text, since Tune copies, flattens and prints a configuration for each result.
    """
    driver = (machine_key(), os.getpid())
    return {"spec": spec, STARTED: started, "driver": driver, "script": script}


def spec_in(config: Mapping[str, Any]) -> StudySpec:
    """Return the space in a trial's configuration, where it is text, or what was read from it."""
    spec = config["spec"]
    return _parsed(spec) if isinstance(spec, str) else StudySpec.model_validate(spec)


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
