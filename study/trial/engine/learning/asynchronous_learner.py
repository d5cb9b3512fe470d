"""RLlib's APPO and IMPALA learners with counters of their thread's work, and whole returns. Imports RLlib.

RLlib hands batches to a thread and does not watch it: whether it has died, and how much it has learnt, is unknown.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from torch import Tensor

from study.ray_private import wrap_update
from study.trial.failures import described
from study.trial.measure import LEARNER_KEYS

_LOOK_S = 1.0
"""How often it is checked, while waiting for the learner's thread, that the thread is alive."""
_ABSENT = object()
"""What the metrics answer for a key that they lack: without a default of its own they raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Totals of a learner since the start. Replaced as a whole, so that all values are of one moment.

    Attributes:
        busy_s: Seconds of updates.
        num_updates: Updates.
        lags: Sum over the updates of the mean number of updates since the policy that sampled was learnt.
        losses: What the last update logged, by our names; what the algorithm lacks is left out.
        failure: What ended the thread.
    """

    busy_s: float = 0.0
    num_updates: int = 0
    lags: float = 0.0
    losses: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""


class _EndOfUpdate(threading.Event):
    """The end of an update, for which RLlib waits without limit; raises what has ended the thread."""

    failure: Exception | None = None

    def wait(self, timeout: float | None = None) -> bool:
        ended = super().wait(timeout)
        if self.failure is not None:
            raise RuntimeError(f"the learner's thread has died: {described(self.failure)}") from self.failure
        return ended


class Backlog:
    """Stands in for RLlib's queue (or circular buffer) of batches for one thread, and knows when all is learnt from.

    Neither RLlib's queue nor its buffer knows of a batch that was taken and not learnt from yet.
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self._changed = threading.Condition()
        self._num_put, self._in_hand = 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def put(self, item: Any, **arguments: Any) -> None:
        """Add a batch; wait for room where RLlib's does."""
        self._batches.put(item, **arguments)
        with self._changed:
            self._num_put += 1
            self._changed.notify_all()

    def put_nowait(self, item: Any) -> None:
        """Add a batch, or RLlib's word to stop."""
        self.put(item, block=False)

    def get(self) -> Any:
        """Return the next batch; the one before has been learnt from."""
        with self._changed:
            self._in_hand = False
            self._changed.notify_all()
            self._changed.wait_for(self._batches.qsize)
            self._in_hand = True
            return self._batches.get()

    def is_done(self, num_submitted: int, *, timeout_s: float) -> bool:
        """Return whether all batches that were handed to the learner have been learnt from within `timeout_s` seconds.

        With a GPU, a thread brings them here in its time.
        """

        def done() -> bool:
            return self._num_put >= num_submitted and not self._in_hand and not self._batches.qsize()

        with self._changed:
            return self._changed.wait_for(done, timeout_s)


class CountingLearner(Learner):
    """Adds up, raw, the seconds and the number of updates of its thread, and the age of the policies that sampled."""

    _learner_thread: Any
    _submitted_updates: int
    _backlog: Backlog

    def build(self) -> None:
        """Build as RLlib does, which starts the thread, once the sums are there."""
        self._learnt, self._lags, self._began = Learnt(), 0.0, 0.0
        super().build()
        self._agg_event = _EndOfUpdate()
        wrap_update(self._learner_thread, self._end_of_update_after)

    @property
    def _learner_thread_in_queue(self) -> Backlog:
        return self._backlog

    @_learner_thread_in_queue.setter
    def _learner_thread_in_queue(self, batches: Any) -> None:
        # RLlib makes the queue and starts the thread on it in one go: afterwards is too late to put anything around it.
        self._backlog = Backlog(batches)

    def _end_of_update_after(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def updated(**arguments: Any) -> Any:
            try:
                return update(**arguments)
            except Exception as error:
                self._agg_event.failure = error
                self._agg_event.set()
                raise

        return updated

    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Begin an update."""
        self._began = time.perf_counter()
        super().before_gradient_based_update(timesteps=timesteps)

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """End an update. What it logged is kept as it is: reading a tensor here would hold the thread up."""
        super().after_gradient_based_update(timesteps=timesteps)
        losses = {}
        for name, keys in LEARNER_KEYS.items():
            if name == "kl" and not getattr(self.config, "use_kl_loss", False):
                continue  # APPO logs 0 where its loss has no such term
            logged = (self.metrics.peek((DEFAULT_MODULE_ID, key), default=_ABSENT) for key in keys)
            if (value := next((value for value in logged if value is not _ABSENT), _ABSENT)) is not _ABSENT:
                losses[name] = value.detach() if isinstance(value, Tensor) else value
        self._learnt = Learnt(
            busy_s=self._learnt.busy_s + time.perf_counter() - self._began,
            num_updates=self._learnt.num_updates + 1,
            lags=self._lags,
            losses=losses,
        )

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
        learnt, failure = self._learnt, self._agg_event.failure
        losses = {name: float(value) for name, value in learnt.losses.items()}
        return replace(learnt, losses=losses, failure=described(failure) if failure else "")

    def finish(self, timeout_s: float) -> bool:
        """Wait until all batches so far are learnt from, or the thread has died; return whether that came in time.

        To be called where `update` is called, so that no other batch comes meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while not self._backlog.is_done(self._submitted_updates, timeout_s=_LOOK_S):
            if not self._learner_thread.is_alive():
                return True
            if time.monotonic() > deadline:
                return False
        return True


class BootstrappedLearner(TorchLearner):
    """V-trace that goes on where a fragment ends; goes before RLlib's APPO or IMPALA learner.

    RLlib appends a row to each fragment, for the value of the state that follows. In its V-trace (2.60) that row has
    reward 0 and discount 0, so that its target is 0, and with it the return beyond the fragment: each fragment counts
    as an episode that ended. With 50 steps a policy that never fails sees little but noise: on CartPole-v1 it learns
    to 500 and forgets again. Here the value itself is the row's reward, so that its target is that value, as in the
    paper.

    Source:
        Espeholt et al., arXiv 1802.01561, section 4.1; RLlib's learners say there that the row must not matter.
    """

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Tensor:
        """Return RLlib's loss with whole returns; `loss_mask` of the batch is false in the rows behind fragments."""
        module, rewards = self.module[module_id].unwrapped(), batch[Columns.REWARDS]
        with torch.no_grad():
            values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS)).to(rewards.dtype)
        whole = {**batch, Columns.REWARDS: torch.where(batch[Columns.LOSS_MASK].bool(), rewards, values)}
        loss: Tensor = super().compute_loss_for_module(module_id=module_id, config=config, batch=whole, fwd_out=fwd_out)
        return loss


class CountingAPPOLearner(CountingLearner, BootstrappedLearner, APPOTorchLearner):
    """APPO's."""


class CountingIMPALALearner(CountingLearner, BootstrappedLearner, IMPALATorchLearner):
    """IMPALA's."""
