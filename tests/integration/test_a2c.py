"""A2C is PPO with one epoch, one minibatch, lambda 1, no KL term, plain advantages and RMSprop: by value."""

import math

import numpy as np
import torch
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from study.trial.engine.learning.lean_learner import LeanPPOLearner
from tests.integration.test_lean_learner import build, configured, episodes, weights

GAMMA, ENTROPY, VALUE, CLIP, LR = 0.9, 0.03, 0.4, 0.7, 7e-4


def as_a2c(lr: float = LR) -> object:
    config = configured(
        LeanPPOLearner,
        standardization="none",
        lr=lr,
        gamma=GAMMA,
        lambda_=1.0,
        clip_param=1.0,
        vf_clip_param=math.inf,
        entropy_coeff=ENTROPY,
        vf_loss_coeff=VALUE,
        kl_coeff=0.0,
        grad_clip=CLIP,
        grad_clip_by="global_norm",
    )
    config.optimizer = "rmsprop"  # type: ignore[attr-defined]
    return config


def test_an_update_is_that_of_a2c_written_out() -> None:
    """Returns bootstrapped where an episode goes on, their difference to the value as advantage, one RMSprop step."""
    learner, other = build(as_a2c()), build(as_a2c())
    module = other.module[DEFAULT_MODULE_ID].unwrapped()
    optimizer = torch.optim.RMSprop(module.parameters(), lr=LR, alpha=0.99, eps=1e-5)
    for round_number in range(3):
        fragments = episodes(seed=round_number)
        observations, actions, returns = [], [], []
        for episode in fragments:
            seen = torch.from_numpy(np.asarray(episode.observations.data))
            with torch.no_grad():
                following = 0.0 if episode.is_terminated else float(module.compute_values({Columns.OBS: seen[-1:]}))
            backwards = []
            for reward in reversed(list(episode.rewards.data)):
                following = reward + GAMMA * following
                backwards.append(following)
            observations.append(seen[:-1])
            actions.append(torch.from_numpy(np.asarray(episode.actions.data)))
            returns += reversed(backwards)
        rows, taken = {Columns.OBS: torch.cat(observations)}, torch.cat(actions)
        targets = torch.tensor(returns, dtype=torch.float32)
        policy = torch.distributions.Categorical(logits=module._forward_train(rows)[Columns.ACTION_DIST_INPUTS])
        values = module.compute_values(rows)
        advantages = (targets - values).detach()
        loss = (
            -(policy.log_prob(taken) * advantages).mean()
            + VALUE * (values - targets).square().mean()
            - ENTROPY * policy.entropy().mean()
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        learner.update(episodes=fragments, timesteps={}, num_epochs=1, minibatch_size=len(taken))
        for name, value in weights(learner).items():
            torch.testing.assert_close(value, weights(other)[name], rtol=1e-4, atol=1e-6)


def test_its_optimizer_is_rmsprop_with_the_given_rate() -> None:
    optimizer = build(as_a2c(lr=0.003)).get_optimizer(DEFAULT_MODULE_ID)
    assert type(optimizer) is torch.optim.RMSprop
    (group,) = optimizer.param_groups
    assert (float(group["lr"]), group["alpha"], group["eps"]) == (0.003, 0.99, 1e-5)
