"""Tune's side of the study: a searcher, a callback and a stopper, all thin shells around the conductor. Imports Tune.

Nothing here may raise into Tune's event loop, where one exception ends every trial: an error that matters (a full disk)
ends the study early and is reported by `study.driver.run`.
"""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.tune import Callback, Stopper
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from study.driver.conductor import Conductor
from study.driver.losses import fault_of
from study.errors import StudyError
from study.records.records import TrialStarted
from study.trial.messages import RESULT, STARTED, TrialResult

logger = logging.getLogger(__name__)


class _Stateless:
    """Pickled as an empty shell: Tune writes what it is given to a file that nobody reads."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class StudySearcher(_Stateless, Searcher):
    """Hands the conductor's trials to Tune."""

    def __init__(self, conductor: Conductor, to_config: Callable[[TrialStarted], dict[str, Any]]) -> None:
        """Wrap a conductor.

        Args:
            conductor: Deals out the trials.
            to_config: Turns a started trial into the trainable's config.
        """
        # No metric: Tune's strict check would end the study at the first result without it.
        super().__init__(metric=None, mode=None)
        self._conductor, self._to_config = conductor, to_config

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial's config, None to be asked again, or FINISHED."""
        try:
            if self._conductor.exhausted:
                return str(Searcher.FINISHED)
            started = self._conductor.next_trial()
            return None if started is None else self._to_config(started)
        except Exception as error:  # noqa: BLE001 (Tune would end every running trial)
            _end_early(self._conductor, error)
            return str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: `StudyCallback` sees every end."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the records are the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: the records are the state."""


class StudyCallback(_Stateless, Callback):
    """Gives Tune's events to the conductor."""

    def __init__(
        self,
        conductor: Conductor,
        *,
        on_setup: Callable[[], None] = lambda: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Wrap a conductor.

        Args:
            conductor: Records the events.
            on_setup: Called once Tune has installed its signal handlers.
            on_change: Called after every event that changed a row.
        """
        self._conductor, self._on_setup, self._on_change = conductor, on_setup, on_change
        self._trials: list[Trial] = []

    def kill_trials(self) -> None:
        """Kill the processes of the trials that run; Tune would wait ten seconds for each to end its iteration."""
        for trial in self._trials:
            if trial.temporary_state.ray_actor is not None:
                ray.kill(trial.temporary_state.ray_actor)

    def setup(self, **info: Any) -> None:
        """Tell that Tune is about to begin."""
        self._on_setup()

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a result; its bulky parts are taken out, so that Tune does not keep them."""
        reported: TrialResult = result.pop(RESULT)
        number = trial.config[STARTED].trial
        try:
            self._conductor.report(number, reported.records, progress=reported.progress)
            if reported.done:
                self._conductor.finish(number, reported.policy, reported.node_loads)
        except Exception as error:  # noqa: BLE001 (Tune would end every running trial)
            _end_early(self._conductor, error)
        self._on_change()

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Record a failure with its reason; a trial that lost its node or a process is taken back."""
        try:
            number, said = trial.config[STARTED].trial, _said_of(trial)
            reason, loss = fault_of(_error_of(trial), said=said, address=(trial.last_result or {}).get("node_ip", ""))
            self._conductor.keep_traceback(number, said)
            if self._conductor.stop is not None:
                # While the study is being stopped, a process that dies was stopped too: the trial runs again on resume.
                self._conductor.end(number, "interrupted", self._conductor.stop.detail)
            elif loss is not None:
                self._conductor.lose(number, loss, reason)
            else:
                self._conductor.end(number, "failed", reason)
        except Exception as error:  # noqa: BLE001 (Tune would end every running trial)
            _end_early(self._conductor, error)
        self._on_change()

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Tell the display."""
        self._trials = trials
        self._on_change()


class StudyStopper(_Stateless, Stopper):
    """Stops all trials once the conductor says so."""

    def __init__(self, conductor: Conductor, *, on_stop: Callable[[], None] = lambda: None) -> None:
        """Wrap a conductor.

        Args:
            conductor: Says when to stop.
            on_stop: Called when a signal ends the study, which then must be over in seconds.
        """
        self._conductor, self._on_stop = conductor, on_stop

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Never stop a single trial: it knows its own end."""
        return False

    def stop_all(self) -> bool:
        """Return whether the study ends early; the decision that closes a stage is taken, and written, here."""
        try:
            stops = self._conductor.must_stop
            if self._conductor.stop is not None and self._conductor.stop.reason == "stopped":
                self._on_stop()
            return stops
        except Exception as error:  # noqa: BLE001 (Tune would end every running trial)
            _end_early(self._conductor, error)
            return True


def _end_early(conductor: Conductor, error: Exception) -> None:
    if not isinstance(error, StudyError):
        logger.exception("unexpected error in the study's bookkeeping")
    conductor.end_early("error", str(error) or type(error).__name__)


def _said_of(trial: Trial) -> str:
    """Return the traceback that Tune wrote in the driver's own folder; nothing where no process of Ray's failed."""
    with contextlib.suppress(OSError, TypeError):
        return Path(trial.error_file).read_text()
    return ""


def _error_of(trial: Trial) -> BaseException | None:
    """Return the error itself, which Tune wrote beside it; None where its classes are not importable here."""
    with contextlib.suppress(Exception):
        error: BaseException = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        return error
    return None
