"""How a session ends when signals and Ray's silence meet: once, whoever comes first. No Ray."""

import math
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from study.driver import signals
from study.driver.signals import StopSignals
from study.records.records import StudyClosed
from tests.waiting import until


class Course:
    """A conductor's part in an end."""

    def __init__(self, closings=None):
        self.stop, self.breaks, self.closings = None, False, closings

    def end_early(self, reason, detail):
        self.stop = self.stop or StudyClosed(session=1, reason=reason, detail=detail)

    def close(self):
        self.closings.append(self)
        if self.breaks:  # a full disk: the process leaves all the same
            raise BrokenPipeError
        return StudyClosed(session=1, reason="complete")


@pytest.fixture
def codes(monkeypatch):
    """The codes that the process would have left with."""
    codes = []

    def leave(code):
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    return codes


@pytest.fixture
def ending(monkeypatch, codes):
    """Signals that give up at once, the times that the session was closed, and the codes that the process left with."""
    closings = []
    monkeypatch.setattr(signals, "GIVE_UP_S", 0.05)
    monkeypatch.setattr(signals, "ANSWER_S", 60.0)
    with StopSignals() as stopping:
        stopping.tell(Course(closings))
        yield stopping, closings, codes


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("breaks", [False, True])
def test_a_signal_is_learnt_of_where_somebody_else_handles_it(ending, breaks):
    """Ray and Tune install handlers of their own."""
    stopping, closings, codes = ending
    stopping._conductor.breaks = breaks
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.raise_signal(signal.SIGTERM)
    until(lambda: codes)
    assert (len(closings), codes) == (1, [75])
    assert stopping._conductor.stop == StudyClosed(session=1, reason="stopped", detail="received SIGTERM")


def test_a_signal_after_the_end_changes_nothing_but_hurries_the_mirrors(ending, capsys):
    stopping, closings, codes = ending
    closed = stopping.close(Course(closings))
    assert stopping.deadline == math.inf
    signal.raise_signal(signal.SIGTERM)
    until(lambda: stopping.deadline < time.monotonic() + 60)
    time.sleep(0.3)
    assert (closed.reason, len(closings), codes) == ("complete", 1, [])
    assert "has ended and is being written. Again to end at once." in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_second_signal_ends_the_process_at_once(ending, monkeypatch):
    stopping, closings, codes = ending
    monkeypatch.setattr(signals, "GIVE_UP_S", 60.0)
    signal.raise_signal(signal.SIGTERM)
    until(lambda: stopping._received)
    signal.raise_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert codes == [], "a signal that was forwarded twice is one"
    monkeypatch.setattr(signals, "IMPATIENT_S", 0.0)
    signal.raise_signal(signal.SIGTERM)
    until(lambda: codes)
    assert (codes, closings) == ([75], [])


@pytest.mark.parametrize("number", StopSignals.NUMBERS)
def test_before_the_first_trial_the_main_thread_is_interrupted_once(codes, number):
    with StopSignals() as stopping:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        until(lambda: stopping._received)
        signal.raise_signal(number)  # while what was begun is taken down
        course = Course()
        stopping.tell(course)  # where somebody else has swallowed the interruption
        assert course.stop.detail == f"received {number.name}"


STUCK = """
import subprocess, time
from study.driver import signals
signals.ANSWER_S = 1.0
signals.GIVE_UP_S = 0.5
with signals.StopSignals():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    while True:
        try:
            print(child.pid, flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            pass
"""


def test_a_main_thread_that_never_comes_back_does_not_keep_the_process_nor_its_children():
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "Received SIGTERM; ending before the first trial" in said
    assert "did not end in time" in said
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
