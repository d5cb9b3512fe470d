import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.errors import TrialError
from study.planning.budget import evaluation_due, trial_budget
from study.space.sections import BudgetSpec
from study.trial.deadline import within


def test_the_first_limit_reached_ends_a_trial() -> None:
    budget = trial_budget(BudgetSpec(env_steps=1000, time_s=100.0), 20)
    assert budget.progress(env_steps=500, iterations=2, time_s=1.0) == 0.5
    assert budget.progress(env_steps=500, iterations=12, time_s=1.0) == 0.6
    assert budget.progress(env_steps=500, iterations=2, time_s=70.0) == 0.7
    assert budget.progress(env_steps=1, iterations=1, time_s=100.0) == 1
    assert budget.progress(env_steps=1300, iterations=1, time_s=1.0) == 1


def test_limits_that_are_not_given_do_not_count() -> None:
    budget = trial_budget(BudgetSpec(time_s=10.0), None)
    assert budget.progress(env_steps=10**9, iterations=10**9, time_s=5.0) == 0.5


@given(num=st.integers(1, 20), iterations=st.integers(1, 60))
def test_evaluations_are_evenly_spaced_and_the_last_is_at_the_end(num: int, iterations: int) -> None:
    budget = trial_budget(BudgetSpec(iterations=iterations), iterations)
    shares = [budget.progress(env_steps=0, iterations=i, time_s=0) for i in range(iterations + 1)]
    due = [i for i in range(1, iterations + 1) if evaluation_due(shares[i - 1], shares[i], num)]
    assert due[-1] == iterations
    assert len(due) == min(num, iterations)
    if iterations % num == 0:
        assert due == list(range(iterations // num, iterations + 1, iterations // num))


def test_a_deadline_lets_through_what_ends_in_time() -> None:
    assert within(5, lambda: 7, otherwise=TrialError()) == 7
    with pytest.raises(KeyError, match="mine"):
        within(5, lambda: {}["mine"], otherwise=TrialError())


def test_a_deadline_ends_what_hangs() -> None:
    started = time.perf_counter()
    with pytest.raises(TrialError, match="took too long"):
        within(0.1, lambda: time.sleep(30), otherwise=TrialError("took too long"))
    assert time.perf_counter() - started < 2
