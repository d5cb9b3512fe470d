"""Counts what the thread of RLlib's APPO and IMPALA learners does. Imports RLlib.

RLlib hands batches to that thread and does not watch it: how much it has learnt, and whether it has failed, is unknown.
"""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ray.rllib.algorithms.impala.impala_learner import IMPALALearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from torch import Tensor

from study.ray_private import wrap_update
from study.trial.failures import described
from study.trial.measure import LEARNER_KEYS

_LOOK_S, _QUIET_LOOKS = 0.02, 3
"""How often the thread is looked at, and how often in a row it must be idle: between two looks it may take a batch."""


class Learnt(NamedTuple):
    """Totals of a learner since the start. Replaced as a whole, so that all values are of one moment."""

    busy_s: float = 0.0
    """Seconds of updates."""
    num_updates: int = 0
    lags: float = 0.0
    """Sum over the updates of the mean number of updates since the policy that sampled was learnt."""
    losses: Mapping[str, Any] = MappingProxyType({})
    """What the last update logged, by our names; what the algorithm lacks is left out."""
    failure: str = ""
    """What an update raised, after which nothing is learnt."""


class CountingLearner(IMPALALearner):
    """Adds up, raw, the seconds and the number of updates of its thread; goes before one of RLlib's learners."""

    def build(self) -> None:
        """Build as RLlib does, which starts the thread."""
        self._learnt, self._lags, self._works = Learnt(), 0.0, False
        super().build()
        wrap_update(self._learner_thread, self._counted)

    def _counted(self, update: Callable[..., Any]) -> Callable[..., None]:
        """Return an update that is counted. It raises nothing, since RLlib waits without limit for a dead thread."""

        def updated(**arguments: Any) -> None:
            before = self._learnt
            if before.failure:
                return
            began, self._works = time.perf_counter(), True
            try:
                update(**arguments)
                busy_s = before.busy_s + time.perf_counter() - began
                self._learnt = Learnt(busy_s, before.num_updates + 1, self._lags, self._logged())
            except Exception as error:  # noqa: BLE001 (`learnt_so_far` says it)
                self._learnt = before._replace(failure=described(error))
            finally:
                self._works = False

        return updated

    def _logged(self) -> dict[str, Any]:
        """Return the losses as they were logged: reading a tensor here would hold the thread up."""
        losses = {}
        for name, keys in LEARNER_KEYS.items():
            values = [self.metrics.peek((DEFAULT_MODULE_ID, key), default="") for key in keys]  # None would raise
            value = next((value for value in values if not isinstance(value, str)), None)
            # APPO logs a divergence of 0 where its loss has no such term.
            if value is not None and (name != "kl" or getattr(self.config, "use_kl_loss", False)):
                losses[name] = value.detach() if isinstance(value, Tensor) else value
        return losses

    def _compute_off_policyness(self, batch: dict[str, Any]) -> None:
        """Add up the lag of the policy; RLlib's private method logs it smoothed."""
        super()._compute_off_policyness(batch)
        known = [rows for rows in batch.values() if WEIGHTS_SEQ_NO in rows and Columns.LOSS_MASK in rows]
        # The learner has counted this update already: what was sampled with the newest weights has a lag of 0.
        newest = self._weights_seq_no - 1
        means = [newest - rows[WEIGHTS_SEQ_NO][rows[Columns.LOSS_MASK].bool()].double().mean() for rows in known]
        self._lags += float(sum(means) / len(means)) if means else 0.0

    def learnt_so_far(self) -> Learnt:
        """Return what was learnt since the start, and what failed."""
        learnt = self._learnt
        return learnt._replace(losses={name: float(value) for name, value in learnt.losses.items()})

    def finish(self, timeout_s: float) -> bool:
        """Wait until all batches so far are learnt from; return whether that came in time.

        To be called where `update` is called, so that no other batch comes meanwhile.
        """
        deadline, quiet = time.monotonic() + timeout_s, 0
        while quiet < _QUIET_LOOKS:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
            waiting = self._gpu_loader_in_queue.qsize() + self._learner_thread_in_queue.qsize()
            quiet = 0 if waiting or self._works else quiet + 1
        return True
