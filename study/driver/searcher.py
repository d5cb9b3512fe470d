"""Tune's side of a study: the tuner, its searcher, and a callback that is the stopper too, shells of the conductor.

Nothing here may raise into Tune's event loop, where one exception ends every trial: an error that matters (a full disk)
ends the study early and is reported by `study.driver.run`.
"""

import contextlib
import functools
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune
from ray.exceptions import RayActorError, RayTaskError
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from study.driver.conductor import Conductor, Fault
from study.errors import StudyError, TrialError, TrialLostError
from study.ray_private import was_short_of_memory, without_usage_tags
from study.records.records import TrialStarted
from study.space.sections import LEARNERS
from study.space.settings import spec_of
from study.trial.failures import node_was_lost
from study.trial.measure import RESULT, TrialResult
from study.trial.trainable import TRIAL, StudyTrial, TrialConfig

logger = logging.getLogger(__name__)
_LONGEST = 500
"""Characters of a reason."""
_LOOK_S = 5.0
"""Seconds after which the display is asked to tell what is new, where no trial reports."""


def tuner(
    conductor: Conductor,
    storage: Path,
    *,
    reuse: bool,
    script: bytes | None,
    on_setup: Callable[[], None],
    on_change: Callable[[], None],
) -> tune.Tuner:
    """Return what runs the conductor's trials, and writes to a folder `storage` what nobody reads.

    With `reuse` a trial goes on in the processes of the one before; `script` is that of the space, pickled. `on_setup`
    is called once Tune has its signal handlers, `on_change` after every event, and now and then between two.
    """
    without_usage_tags()

    @functools.cache
    def space_of(variant: str, learners: int | None) -> str:
        spec = spec_of(conductor.spec, variant)
        return json.dumps((spec if learners is None else spec.having(resources={LEARNERS: learners})).to_json())

    def to_config(started: TrialStarted) -> dict[str, Any]:
        space = space_of(started.variant, started.setting.get(LEARNERS))
        return {TRIAL: TrialConfig(space=space, started=started, script=script)}

    callback = StudyCallback(conductor, on_setup=on_setup, on_change=on_change)
    return tune.Tuner(
        StudyTrial,
        tune_config=tune.TuneConfig(
            search_alg=StudySearcher(conductor, to_config),
            num_samples=-1,  # the searcher says when it has no more
            trial_dirname_creator=_name,
            trial_name_creator=_name,
            reuse_actors=reuse,
        ),
        run_config=tune.RunConfig(
            name="study",
            storage_path=str(storage),
            stop=callback,
            callbacks=[callback],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            failure_config=tune.FailureConfig(max_failures=0),
            verbose=0,
        ),
    )


def _name(trial: Trial) -> str:
    started: TrialStarted = trial.config[TRIAL].started
    return f"trial_{started.trial:05d}_{started.attempt}"


class _Stateless:
    """Pickled as an empty shell: Tune writes what it is given to a file that nobody reads."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


@contextlib.contextmanager
def _ending_early(conductor: Conductor) -> Iterator[None]:
    """End the study early where something is raised: Tune would end every running trial."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, StudyError):
            logger.exception("unexpected error in the study's bookkeeping")
        conductor.end_early("error", str(error) or type(error).__name__)


class StudySearcher(_Stateless, Searcher):
    """Hands the conductor's trials to Tune, as the configuration that `to_config` makes of each."""

    def __init__(self, conductor: Conductor, to_config: Callable[[TrialStarted], dict[str, Any]]) -> None:
        # No metric: Tune's strict check would end the study at the first result without it.
        super().__init__(metric=None, mode=None)
        self._conductor, self._to_config = conductor, to_config

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial's config, None to be asked again, or FINISHED."""
        with _ending_early(self._conductor):
            if not (self._conductor.exhausted or self._conductor.queue.part_ended):
                started = self._conductor.next_trial()
                return None if started is None else self._to_config(started)
        return str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: `StudyCallback` sees every end."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the records are the state, and nothing restores this."""


class StudyCallback(_Stateless, Callback, Stopper):
    """Gives Tune's events to the conductor, and stops all trials once that says so."""

    def __init__(self, conductor: Conductor, *, on_setup: Callable[[], None], on_change: Callable[[], None]) -> None:
        """Wrap a conductor; call `on_setup` and `on_change` as `tuner` says."""
        self._conductor, self._on_setup, self._on_change = conductor, on_setup, on_change
        self._trials: list[Trial] = []
        self._looks_at_s = 0.0

    def setup(self, **info: Any) -> None:
        """Tell that Tune is about to begin."""
        self._on_setup()

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Tell the display."""
        self._trials = trials
        self._on_change()

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a result; its bulky parts are taken out, so that Tune does not keep them."""
        reported: TrialResult = result.pop(RESULT)
        number = trial.config[TRIAL].started.trial
        with _ending_early(self._conductor):
            self._conductor.report(number, reported.records, progress=reported.progress)
            if reported.done:
                self._conductor.finish(number, reported.policy, reported.node_loads)
        self._on_change()

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Record why a trial did not finish, with what Ray wrote about it."""
        said, error = "", None
        with _ending_early(self._conductor):
            with contextlib.suppress(OSError, TypeError):  # there is no file where no process of Ray's failed
                said = Path(trial.error_file).read_text()
            with contextlib.suppress(Exception):  # its classes may not be importable here
                error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
            fault = fault_of(error, said=said, address=(trial.last_result or {}).get("node_ip", ""))
            self._conductor.fail(trial.config[TRIAL].started.trial, fault, said)
        self._on_change()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Never stop a single trial: it knows its own end."""
        return False

    def stop_all(self) -> bool:
        """Return whether the study ends early; the decision that closes a stage is taken, and written, here.

        After a signal the trials' processes are killed: Tune would wait ten seconds for each to end its iteration.
        Tune asks ten times a second, also while no trial reports: the display then says that the study still runs.
        """
        if time.monotonic() >= self._looks_at_s:
            self._looks_at_s = time.monotonic() + _LOOK_S
            self._on_change()
        with _ending_early(self._conductor):
            stops, stop = self._conductor.must_stop, self._conductor.stop
            for trial in self._trials if stop is not None and stop.reason == "stopped" else ():
                if trial.temporary_state.ray_actor is not None:
                    ray.kill(trial.temporary_state.ray_actor)
            return stops
        return True


def fault_of(error: BaseException | None, *, said: str = "", address: str = "") -> Fault:
    """Return why a trial ended, by the class of what was raised: an error of its own, or what died under it.

    `error` is what Ray raised in place of the trial's result, None where there is no more than what Tune `said` of it;
    `address` is the node of the trial's main process, as far as it is known.
    """
    cause = getattr(error, "cause", None) if isinstance(error, RayTaskError) else error
    if isinstance(cause, TrialLostError):
        return Fault(str(cause)[:_LONGEST], "node" if cause.node else "process", cause.place)
    if isinstance(cause, TrialError):  # written for people
        return Fault(str(cause)[:_LONGEST], None, cause.place)
    where, lines = f" ({address})" if address else "", (said if cause is None else str(cause)).splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith("\t")), "")
    if isinstance(error, RayActorError):
        is_node = node_was_lost(error)
        rule = "the node of its main process must stay in reach" if is_node else "its main process must stay alive"
        reason = f"trial: {rule}{where}, got: {last or type(error).__name__}"
        return Fault(reason[:_LONGEST], "node" if is_node else "process")
    if error is None and was_short_of_memory(said):  # whatever filled it: Ray ends the youngest processes first
        reason = f"trial: the memory of its node must suffice{where}, got: Ray ended a process as it was nearly full"
        return Fault(reason, "memory")
    name = "" if cause is None or isinstance(cause, RayTaskError) else f"{type(cause).__name__}: "
    return Fault(f"{name}{last or 'a process of the trial ended without a word'}"[:_LONGEST])
