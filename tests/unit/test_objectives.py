"""What a study searches for: the return, or the price of the target."""

import pytest

from study.designs.search import merit
from tests.driven import Session
from tests.reported import evaluation, iteration, report
from tests.spaces import spec


def play(session, trial, *returns, cost=2.0):
    """Evaluate a trial at even shares of its budget after iterations that take so many seconds, and end it."""
    for number, value in enumerate(returns, start=1):
        share, one = number / len(returns), iteration(number, seconds=cost, cpu_time_s=cost)
        report(session.conductor, trial, one, evaluation(one, value, progress=share), progress=share)
    session.conductor.finish(trial, None)
    return session.conductor.ledger.rows[trial]


def one(tmp_path, *returns, **changes):
    session = Session(tmp_path, spec(execution="real", **changes))
    return session.spec, play(session, session.conductor.next_trial().trial, *returns)


def test_the_target_is_reached_at_the_first_of_two_consecutive_evaluations(tmp_path):
    _, row = one(tmp_path, 0, 460, 0, 460, 470, 480, 0, 490)
    assert row.summary["env_steps_to_target"] == 400
    assert row.summary["time_to_target_s"] == 8.0
    assert row.summary["cpu_s_to_target"] == 8.0
    assert row.summary["peak_return"] == 490
    _, once = one(tmp_path / "once", 460, 0, 460, 0, 460)
    assert [once.summary[name] for name in ("env_steps_to_target", "time_to_target_s")] == [None, None]


@pytest.mark.parametrize("objective", ["env_steps_to_target", "time_to_target_s", "cpu_s_to_target"])
def test_reaching_the_target_sooner_is_worth_more_and_never_reaching_it_less_than_late(tmp_path, objective):
    worth = []
    for index, returns in enumerate([(460, 470, 480, 490), (0, 0, 460, 470), (449, 449, 449, 449), (0, 0, 0, 0)]):
        space, row = one(tmp_path / str(index), *returns, search__objective=objective)
        worth.append(merit(space, row))
    assert worth == sorted(worth, reverse=True)
    assert worth[2] < 0.5 < worth[1]
    assert worth[3] == 0


@pytest.mark.parametrize("objective", ["time_to_target_s", "cpu_s_to_target"])
def test_a_price_is_absolute_and_no_share_of_what_the_trial_spent(tmp_path, objective):
    """The dear trial reaches the target at a smaller share of its own cost."""
    worth = []
    for cost, returns in ((1.0, (0, 0, 460, 470)), (8.0, (460, 470, 480, 490))):
        session = Session(tmp_path / str(cost), spec(execution="real", search__objective=objective))
        worth.append(merit(session.spec, play(session, session.conductor.next_trial().trial, *returns, cost=cost)))
    assert worth[0] > worth[1]


def test_a_failure_is_worth_nothing_whatever_is_searched_for(tmp_path):
    for objective in ("final_return", "cpu_s_to_target"):
        session = Session(tmp_path / objective, spec(execution="real", search__objective=objective))
        trial = session.conductor.next_trial().trial
        session.conductor.end(trial, "failed", "planted")
        assert merit(session.spec, session.conductor.ledger.rows[trial]) == 0
