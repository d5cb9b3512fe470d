"""Advantages against their definition as a sum and a worked example; rewards in units of the deviation of returns."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from study.trial.engine.extensions import RewardScale
from study.trial.engine.learning.fused_learner import Fragments, generalised_advantages

NUMBERS = st.floats(-100, 100)
FRAGMENTS = st.lists(
    st.tuples(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6), NUMBERS, st.booleans()),
    min_size=1,
    max_size=5,
)
SHARE = st.floats(0, 1)


def advantages(fragments, gamma, lambda_):
    """Return those of fragments [([(reward, value before), …], last value, terminated), …]."""
    steps = [step for own, _, _ in fragments for step in own]
    gathered = Fragments(
        episode_ids=("",) * len(fragments),
        observations=np.empty(0),
        actions=np.empty(0),
        rewards=np.array([reward for reward, _ in steps]),
        lengths=np.array([len(own) for own, _, _ in fragments]),
        terminated=np.array([terminated for _, _, terminated in fragments]),
    )
    values = np.array([each[1] for part in (steps, fragments) for each in part])
    return generalised_advantages(gathered, values, gamma=gamma, lambda_=lambda_)


def test_a_worked_example():
    # gamma 1/2, lambda 1/2. First fragment, terminated: residuals 1 + 1/2*4 - 2 = 1 and 3 - 4 = -1, so advantages
    # 1 - 1/4 and -1. Second, cut off: residual 0 + 1/2*8 - 6 = -2.
    fragments = [([(1.0, 2.0), (3.0, 4.0)], 100.0, True), ([(0.0, 6.0)], 8.0, False)]
    of_steps, appended = advantages(fragments, 0.5, 0.5)
    assert of_steps.tolist() == [0.75, -1.0, -2.0]
    # The row behind the first fragment: 0 + 1/2*6 - 100 + 1/4*(-2); behind the last one there is nothing: -8.
    assert appended.tolist() == [-97.5, -8.0]


@settings(deadline=None)
@given(FRAGMENTS, SHARE, SHARE)
def test_advantages_are_discounted_sums_of_residuals_within_a_fragment(fragments, gamma, lambda_):
    expected = []
    for own, last, terminated in fragments:
        following = [value for _, value in own[1:]] + [0.0 if terminated else last]
        residuals = [
            reward + gamma * value_after - value for (reward, value), value_after in zip(own, following, strict=True)
        ]
        for start in range(len(own)):
            expected.append(sum((gamma * lambda_) ** k * residual for k, residual in enumerate(residuals[start:])))
    np.testing.assert_allclose(advantages(fragments, gamma, lambda_)[0], expected, rtol=1e-9, atol=1e-9)


def test_the_returns_that_scale_rewards_are_those_of_whole_episodes():
    """In pieces, over several batches; the deviation is that of the discounted sums so far."""
    gamma, scale = 0.9, RewardScale(0.9)
    one, other = np.arange(1.0, 9.0), np.arange(3.0) - 5
    scale.scaled(["a", "b", "a"], [one[:3], other, one[3:5]])
    (scaled,) = scale.scaled(["a"], [one[5:]])
    sums = [sum(gamma**k * each[t - k] for k in range(t + 1)) for each in (one, other) for t in range(len(each))]
    np.testing.assert_allclose(scaled, one[5:] / np.std(sums), rtol=1e-4)
    assert scale.scaled(["c"], [np.array([1e6, 0.0])])[0].max() <= 10
