"""Why a trial failed: what a person's code raised, in one line that names the place; what was lost, by Ray's errors.

`tests/chaos` kills real nodes and processes.
"""

import contextlib
import functools
import itertools
import pickle
import re
import time

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from study.driver.conductor import Fault
from study.driver.searcher import StudyCallback, fault_of
from study.errors import TrialError, TrialLostError
from study.machine.apart import called_apart
from study.space.sections import EnvironmentSpec
from study.trial.engine.envs.environments import make_env
from study.trial.failures import causes, described, original, was_lost, within
from tests.driven import Driven
from tests.spaces import spec


def play(spec: EnvironmentSpec) -> None:
    with contextlib.closing(make_env(spec)) as env:
        env.reset(seed=0)
        env.step(env.action_space.sample())


def test_the_line_of_an_environment_is_named_here_and_from_another_process() -> None:
    spec = EnvironmentSpec(id="tests.environments:AtStep", kwargs={"at_step": 1})
    said = []
    for call in (play, functools.partial(called_apart, play, limit_s=60.0, otherwise=TrialError)):
        with pytest.raises(ZeroDivisionError) as caught:
            call(spec)
        said.append(described(caught.value))
    assert re.fullmatch(r"ZeroDivisionError: planted .* 1 \(environments.py, line \d+, in reward\)", said[0])
    assert said[0] == said[1]
    lines = [
        "ray::Runner.sample()",
        '  File "/home/me/my_env.py", line 12, in step',
        "    x()",
        '  File "/usr/lib/python3/dist-packages/numpy/a.py", line 3, in x',
        "KeyError: 500",
    ]
    assert described(RuntimeError("\n".join(lines))) == "RuntimeError: KeyError: 500 (my_env.py, line 12, in step)"


def test_a_closed_chain_of_causes_ends() -> None:
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second]
    assert original(first) is first
    assert not was_lost(first)


@pytest.mark.parametrize(
    ("other", "stops"), [("my_env.py, line 12, in step", True), ("my_env.py, line 40, in reset", False)]
)
def test_a_line_that_breaks_sampling_and_evaluation_is_one_way_to_fail(tmp_path, other, stops):
    session = Driven(tmp_path, spec(search__num_trials=8))
    places = itertools.cycle([("sampling", "my_env.py, line 12, in step"), ("evaluation", other)])
    while (started := session.conductor.next_trial()) is not None:
        what, place = next(places)
        session.conductor.end(started.trial, "failed", f"{what} must not fail, got KeyError: 500.", way=place)
    assert session.conductor.is_broken == stops
    assert len(session.conductor.ledger.rows) == (4 if stops else 8)


def test_the_display_is_asked_what_is_new_while_no_trial_reports(tmp_path, monkeypatch):
    began, looks = time.monotonic(), list[float]()
    now = itertools.count(began)  # seconds
    callback = StudyCallback(
        Driven(tmp_path, spec()).conductor, on_setup=list, on_change=lambda: looks.append(time.monotonic() - began)
    )
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    for _ in range(100):  # Tune asks, and nothing happens
        assert not callback.stop_all()
    assert all(5 <= later - earlier <= 10 for earlier, later in itertools.pairwise(looks))
    assert looks[0] < 5
    assert looks[-1] > 90


def test_a_deadline_lets_through_what_ends_in_time_and_ends_what_hangs() -> None:
    assert within(5, lambda: 7, otherwise=TrialError()) == 7
    with pytest.raises(KeyError, match="mine"):
        within(5, lambda: {}["mine"], otherwise=TrialError())
    started = time.perf_counter()
    with pytest.raises(TrialError, match="took too long"):
        within(0.1, lambda: time.sleep(30), otherwise=TrialError("took too long"))
    assert time.perf_counter() - started < 2


# --- what Ray raises in the driver ----------------------------------------------------------------------------------

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
