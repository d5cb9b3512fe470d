"""Advantages against their definition as a sum, and against a worked example."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from study.trial.engine.learning.batches import Fragments, advantages_of_appended_rows, generalised_advantages

NUMBERS = st.floats(-100, 100)
FRAGMENTS = st.lists(
    st.tuples(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6), NUMBERS, st.booleans()),
    min_size=1,
    max_size=5,
)
SHARE = st.floats(0, 1)


def arrays(fragments):
    """Return the arguments for fragments [([(reward, value before), …], last value, terminated), …]."""
    steps = [step for own, _, _ in fragments for step in own]
    gathered = Fragments(
        episode_ids=("",) * len(fragments),
        observations=np.empty(0),
        actions=np.empty(0),
        rewards=np.array([reward for reward, _ in steps]),
        lengths=np.array([len(own) for own, _, _ in fragments]),
        terminated=np.array([terminated for _, _, terminated in fragments]),
    )
    values, bootstrap = (np.array([each[1] for each in part]) for part in (steps, fragments))
    return {"fragments": gathered, "values": values, "bootstrap": bootstrap}


def test_a_worked_example():
    # gamma 1/2, lambda 1/2. First fragment, terminated: residuals 1 + 1/2*4 - 2 = 1 and 3 - 4 = -1, so advantages
    # 1 - 1/4 and -1. Second, cut off: residual 0 + 1/2*8 - 6 = -2.
    fragments = [([(1.0, 2.0), (3.0, 4.0)], 100.0, True), ([(0.0, 6.0)], 8.0, False)]
    assert generalised_advantages(**arrays(fragments), gamma=0.5, lambda_=0.5).tolist() == [0.75, -1.0, -2.0]


def test_a_worked_example_of_the_rows_that_rllib_appends():
    # Behind the first fragment: 0 + 1/2*6 - 100 + 1/4*(-2); behind the last one there is nothing: -8.
    given_arrays = arrays([([(1.0, 2.0), (3.0, 4.0)], 100.0, True), ([(0.0, 6.0)], 8.0, False)])
    advantages = np.array([0.75, -1.0, -2.0])
    appended = advantages_of_appended_rows(advantages, **given_arrays, gamma=0.5, lambda_=0.5)
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
    got = generalised_advantages(**arrays(fragments), gamma=gamma, lambda_=lambda_)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
