"""How a session ends when signals and Ray's silence meet: once, whoever comes first. No Ray."""

import os
import signal
import threading
import time

import pytest

from study import signals
from study.conductor import Stop
from study.signals import StopSignals
from study.tracking.records import StudyClosed


class Course:
    """A conductor's part in an end."""

    def __init__(self):
        self.stop = None

    def end_early(self, reason, detail):
        self.stop = self.stop or Stop(reason=reason, detail=detail)


class Left(BaseException):
    """Raised in place of leaving the process."""


@pytest.fixture
def ending(monkeypatch):
    """Signals that give up at once, the times that the session was closed, and the codes that the process left with."""
    closings, codes = [], []

    def close(conductor):
        closings.append(threading.current_thread().name)
        return StudyClosed(session=1, reason="complete")

    def leave(code):
        codes.append(code)
        raise Left

    monkeypatch.setattr(signals, "GIVE_UP_S", 0.05)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    with StopSignals(close) as stopping:
        stopping.tell(Course())
        yield stopping, closings, codes


def test_where_ray_does_not_come_back_the_end_is_recorded_and_the_process_leaves(ending):
    stopping, closings, codes = ending
    signal.raise_signal(signal.SIGTERM)
    stopping._watchdog.join(5)
    assert (len(closings), codes) == (1, [75])


def test_a_signal_after_the_end_changes_nothing(ending, capsys):
    stopping, closings, codes = ending
    closed = stopping.close(Course())
    signal.raise_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert (closed.reason, len(closings), codes) == ("complete", 1, [])
    assert "has ended and is being written. Again to end at once." in capsys.readouterr().err


def test_a_watchdog_that_fires_while_the_end_is_recorded_leaves_it_alone(ending):
    stopping, closings, codes = ending
    course = Course()
    stopping.close(course)
    stopping._give_up(course)
    assert (len(closings), codes) == (1, [])


def test_ray_that_is_lost_after_the_end_changes_nothing(ending):
    stopping, closings, codes = ending
    stopping.close(Course())
    stopping.lose_ray("it is gone")
    time.sleep(0.3)
    assert (len(closings), codes) == (1, [])


def test_an_end_that_cannot_be_recorded_does_not_keep_the_process(monkeypatch):
    codes = []

    def leave(code):
        codes.append(code)
        raise Left

    def close(conductor):
        raise BrokenPipeError

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(Left):
        StopSignals(close)._give_up(Course())
    assert codes == [75]
