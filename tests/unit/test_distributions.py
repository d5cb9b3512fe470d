"""Our distributions against those of torch, and against what is known of them."""

import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from study.trial.engine.learning.distributions import distribution_for

ROWS = 50
SPACES = {
    "discrete": (Discrete(5), 5),
    "multidiscrete": (MultiDiscrete([2, 4, 3]), 9),
    "box": (Box(-1.0, 1.0, (3,), np.float32), 6),
}


def oracle(name, inputs):
    """Return torch's distributions, whose quantities are to be summed, and a function that splits actions."""
    if name == "discrete":
        return [Categorical(logits=inputs)], lambda actions: [actions]
    if name == "multidiscrete":
        parts = [Categorical(logits=part) for part in inputs.split([2, 4, 3], -1)]
        return parts, lambda actions: actions.unbind(-1)
    mean, log_std = inputs.chunk(2, -1)
    return [Independent(Normal(mean, log_std.exp()), 1)], lambda actions: [actions]


@pytest.fixture(params=SPACES, name="case")
def make_case(request):
    space, size = SPACES[request.param]
    random = torch.Generator().manual_seed(0)
    old, new = 2 * torch.randn(2, ROWS, size, generator=random)
    space.seed(0)
    actions = np.stack([space.sample() for _ in range(ROWS)])
    return request.param, distribution_for(space), old, new, actions


def test_log_probabilities_entropies_and_divergences_are_torchs(case):
    name, distribution, old, new, actions = case
    (parts, split), before = oracle(name, new), oracle(name, old)[0]
    ours = distribution.normalised(new)
    expected = sum(part.log_prob(own) for part, own in zip(parts, split(torch.from_numpy(actions)), strict=True))
    torch.testing.assert_close(distribution.log_prob(ours, distribution.actions(actions)), expected)
    torch.testing.assert_close(distribution.entropy(ours), sum(part.entropy() for part in parts))
    expected = sum(kl_divergence(first, part) for first, part in zip(before, parts, strict=True))
    torch.testing.assert_close(distribution.kl(distribution.normalised(old), ours), expected)


def test_the_divergence_from_an_impossible_action_is_finite():
    distribution = distribution_for(Discrete(2))
    old, new = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, -500.0]])
    divergence = distribution.kl(distribution.normalised(old), distribution.normalised(new))
    assert divergence.item() == pytest.approx(0.5 * (500 + 0) - math.log(2))


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 9, (2,), np.int64),
        Box(-1.0, 1.0, (2, 2), np.float32),
        Box(-1.0, 1.0, (), np.float32),
        MultiDiscrete([[2, 3], [4, 5]]),
        MultiBinary(3),
        Dict({"a": Discrete(2)}),
    ],
    ids=str,
)
def test_other_spaces_have_none(space):
    assert distribution_for(space) is None


def test_gradients_are_torchs(case):
    name, distribution, old, new, actions = case
    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    parameters = distribution.normalised(ours)
    own = distribution.log_prob(parameters, distribution.actions(actions)) + 0.3 * distribution.entropy(parameters)
    (own + 0.7 * distribution.kl(distribution.normalised(old), parameters)).sum().backward()
    parts, split = oracle(name, theirs)
    pieces = zip(parts, split(torch.from_numpy(actions)), oracle(name, old)[0], strict=True)
    sum(
        (part.log_prob(own) + 0.3 * part.entropy() + 0.7 * kl_divergence(before, part)).sum()
        for part, own, before in pieces
    ).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
