"""V-trace that goes on where a fragment ends, for APPO and IMPALA. Imports RLlib and torch.

RLlib appends a row to each fragment, for the value of the state that follows. In its V-trace (2.60) that row has reward
0 and discount 0, so that the target of its value is 0 and with it the return beyond the fragment: each fragment counts
as an episode that ended, and with 50 steps a policy that never fails sees little but noise. On CartPole-v1 it learns
to 500 and forgets again. With the value itself as the row's reward its target is that value, as in the paper.

Source: Espeholt et al., arXiv 1802.01561, section 4.1; RLlib's learners say there that the row must not matter.
"""

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.torch.torch_learner import TorchLearner


class BootstrappedLearner(TorchLearner):
    """Gives the row behind each fragment its value as reward; goes before RLlib's APPO or IMPALA learner."""

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> torch.Tensor:
        """Return RLlib's loss of a batch with whole returns.

        Args:
            module_id: Of the policy.
            config: Of the algorithm.
            batch: Columns of shape (rows, ...); `loss_mask` is false in the rows behind the fragments.
            fwd_out: What the module said of it.
        """
        module = self.module[module_id].unwrapped()
        with torch.no_grad():
            values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
        rewards = batch[Columns.REWARDS]
        whole = dict(batch)
        whole[Columns.REWARDS] = torch.where(batch[Columns.LOSS_MASK].bool(), rewards, values.to(rewards.dtype))
        loss: torch.Tensor = super().compute_loss_for_module(
            module_id=module_id, config=config, batch=whole, fwd_out=fwd_out
        )
        return loss
