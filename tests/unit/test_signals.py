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
from tests.driven import Session, records
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def codes(monkeypatch):
    """The codes that the process would have left with, as soon as it gives up."""
    codes = []

    def leave(code):
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(signals, "GIVE_UP_S", 0.05)
    monkeypatch.setattr(signals, "ANSWER_S", 60.0)
    return codes


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path)


def ends(session):
    return [each for each in records(session.folder.path) if isinstance(each, StudyClosed)]


@pytest.mark.parametrize("breaks", [False, True])
def test_a_signal_is_learnt_of_where_somebody_else_handles_it(session, codes, breaks):
    """Ray and Tune install handlers of their own."""
    if breaks:
        session.log.close()  # nothing can be written, and the process leaves all the same
    with StopSignals() as stopping:
        stopping.tell(session.conductor)
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.raise_signal(signal.SIGTERM)
        until(lambda: codes)
    closed = StudyClosed(session=1, reason="stopped", detail="received SIGTERM")
    assert (ends(session), session.conductor.stop, codes) == ([] if breaks else [closed], closed, [75])


def test_a_signal_after_the_end_changes_nothing_but_hurries_the_mirrors(session, codes, capsys):
    with StopSignals() as stopping:
        stopping.tell(session.conductor)
        closed = stopping.close(session.conductor)
        assert stopping.deadline == math.inf
        signal.raise_signal(signal.SIGTERM)
        until(lambda: stopping.deadline < time.monotonic() + 60)
        time.sleep(0.3)
    assert (ends(session), codes) == ([closed], [])
    assert "has ended and is being written. Again to end at once." in capsys.readouterr().err


def test_a_second_signal_ends_the_process_at_once(session, codes, monkeypatch):
    monkeypatch.setattr(signals, "GIVE_UP_S", 60.0)
    with StopSignals() as stopping:
        stopping.tell(session.conductor)
        signal.raise_signal(signal.SIGTERM)
        until(lambda: session.conductor.stop)
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert codes == [], "a signal that was forwarded twice is one"
        monkeypatch.setattr(signals, "IMPATIENT_S", 0.0)
        signal.raise_signal(signal.SIGTERM)
        until(lambda: codes)
    assert (codes, ends(session)) == ([75], [])


@pytest.mark.parametrize("number", StopSignals.NUMBERS)
def test_before_the_first_trial_the_main_thread_is_interrupted_once(session, codes, number):
    with StopSignals() as stopping:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        until(lambda: stopping.deadline < math.inf)
        signal.raise_signal(number)  # while what was begun is taken down
        stopping.tell(session.conductor)  # where somebody else has swallowed the interruption
        assert session.conductor.stop.detail == f"received {number.name}"


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
