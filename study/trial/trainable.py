"""A trial under Ray Tune: what it is told, and its process. RLlib is imported inside a trial only.

The driver imports this module, and a driver without RLlib starts two seconds earlier.
"""

import functools
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ray.tune import PlacementGroupFactory, Trainable

from study.errors import StudyError, TrialError, TrialLostError
from study.machine.host import forget_trial, machine_key
from study.planning import processes
from study.records.records import TrialStarted
from study.space.parameters import SCALE
from study.space.spec import StudySpec
from study.trial.failures import TRACEBACKS, causes, described, node_was_lost, original, place_of, was_lost
from study.trial.measure import RESULT

if TYPE_CHECKING:
    from study.trial.run import TrialRun

TRIAL = "trial"
"""Key of the `TrialConfig` in a configuration of Tune."""


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


_parsed = functools.lru_cache(maxsize=16)(StudySpec.model_validate_json)


class StudyTrial(Trainable):
    """One trial of a study: its configuration holds a `TrialConfig`, and each result a `TrialResult`."""

    _run: "TrialRun | None" = None

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return one bundle for each process: the main one, those that step environments, the learners."""
        asked: TrialConfig = config[TRIAL]
        wanted = processes(asked.spec, int(asked.started.setting[SCALE]), asked.started.execution)
        strategy = asked.spec.resources.placement.upper()
        return PlacementGroupFactory([process.bundle for process in wanted], strategy=strategy)

    def setup(self, config: dict[str, Any]) -> None:
        """Start the clock of the start-up, not that of the process, which may be older; fix the number of threads.

        The algorithm is built by the first `step`: Tune reports what fails there with its own type and message, and
        what fails here as the death of an actor.
        """
        self._started_s, self._asked = time.perf_counter(), config[TRIAL]
        # Before torch is imported: OpenMP reads it once.
        os.environ["OMP_NUM_THREADS"] = str(self._asked.spec.resources.num_cpus_for_main_process)

    def step(self) -> dict[str, Any]:
        """Train one iteration, or evaluate, and return its records; a `TrialError` says in a line what went wrong."""
        try:
            if self._run is None:
                from study.trial.run import TrialRun

                self._run = TrialRun(self._asked, started_s=self._started_s)
            result = self._run.advance()
            if result.done:
                self.cleanup()  # Tune does not call it where the next trial gets this process
            return {RESULT: result, "done": result.done}
        except Exception as error:
            raise failure(error) from error

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another trial that reserves the same in this process, where RLlib and torch are imported already."""
        self.cleanup()
        forget_trial()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """Stop every process of the trial."""
        run, self._run = self._run, None
        if run is not None:
            run.close()


def failure(error: Exception) -> TrialError:
    """Return what ended a trial as one line, with the line of a person's own code, and whether the trial was lost."""
    kind = TrialLostError if isinstance(error, TrialLostError) or was_lost(error) else TrialError
    if isinstance(error, StudyError):
        parts = {"where": error.where, "rule": error.rule, "got": error.got, "fix": error.fix}
        made = kind(" ".join(str(error).split()), **parts)
    else:
        fix = f"Its traceback is in {TRACEBACKS}."
        made = kind(where="trial", rule="must not fail", got=described(original(error)), fix=fix)
    made.place = next(filter(None, map(place_of, causes(error))), "")
    if isinstance(made, TrialLostError):
        made.node = node_was_lost(error)
    return made
