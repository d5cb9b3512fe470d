"""Why a trial ended, by the classes of Ray's errors; `tests/chaos` kills real nodes and processes."""

import pickle

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from study.driver.conductor import Fault
from study.driver.searcher import fault_of
from study.errors import TrialError, TrialLostError

FAILED = TrialError(where="environment", rule="must not raise", got="ValueError: its node has died", fix="Mend it.")
LOST = TrialLostError(where="env runners", rule="all 2 must stay alive", got="ActorDiedError")
LOST_NODE = TrialLostError(where="env runners", rule="all 2 must stay alive", got="n7: its node has died")
LOST_NODE.node = True


FAILED.place = LOST.place = LOST_NODE.place = "my_env.py, line 12, in step"


def in_trial(cause):
    """Return what Ray raises in the driver where a trial has raised this."""
    return RayTaskError("step", "Traceback", cause).as_instanceof_cause()


@pytest.mark.parametrize(("error", "loss"), [(FAILED, None), (LOST, "process"), (LOST_NODE, "node")])
def test_what_a_trial_raised_stands_for_itself(error, loss):
    for raised in (in_trial(error), pickle.loads(pickle.dumps(error))):
        assert fault_of(raised) == Fault(str(error), loss, way="my_env.py, line 12, in step")


@pytest.mark.parametrize(
    ("error", "alone", "loss"),
    [
        (ActorDiedError(), True, "process"),
        (ActorDiedError(), False, "node"),
        (ActorUnavailableError("connection reset.", None), True, "node"),
    ],
)
def test_a_main_process_that_is_gone_is_a_loss_at_its_address(monkeypatch, error, alone, loss):
    monkeypatch.setattr("study.trial.failures.died_alone", lambda actor: alone)
    reason, found, _ = fault_of(error, address="10.0.0.7")
    assert found == loss
    assert "(10.0.0.7)" in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("error", "said", "reason"),
    [
        (None, "Traceback\n  no such thing\nA worker died.\n", "A worker died."),
        (None, "", "a process of the trial ended without a word"),
        (in_trial(ZeroDivisionError("planted")), "", "ZeroDivisionError: planted"),
    ],
)
def test_anything_else_is_a_failure_by_its_last_line(error, said, reason):
    assert fault_of(error, said=said) == Fault(reason, None, way="")


def test_a_process_that_ray_ended_for_want_of_memory_is_a_loss():
    said = "Failure # 1\n1 worker(s) were killed due to the node running low on memory. Memory was 22GB used / 23GB"
    reason, loss, _ = fault_of(None, said=said, address="10.0.0.7")
    assert loss == "memory"
    assert "(10.0.0.7)" in reason
