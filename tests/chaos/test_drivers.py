"""A driver that is killed again and again: what it costs, and that nothing is lost or done twice."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.clusters import is_alive
from tests.e2e.drivers import Driver, setting

KILLS = 10
TRIALS = 100
AGENTS_GO_S = 90
"""Two agents of Ray that do nothing look for its dead server for a minute before they go; all else goes in seconds."""
OPTIONS = setting(
    execution="emulated",
    search__num_trials=TRIALS,
    budget__env_steps=80_000,
)
"""Two at a time on two cores, about five minutes: a driver needs some ten seconds before its first trial goes on."""


@pytest.mark.heavy
@pytest.mark.timeout(2400)
def test_a_driver_killed_ten_times_takes_at_most_twice_as_long(tmp_path: Path, tell: Callable[..., None]) -> None:
    rng = random.Random(int(os.environ.get("KILL_SEED", "0")))
    whole, killed = (make(tmp_path / name) for name in ("whole", "killed"))
    began = time.monotonic()
    assert whole.run(*OPTIONS, timeout=900) == 0, whole.said
    usual_s = time.monotonic() - began
    spent_s, below = 0.0, []
    try:
        for _ in range(KILLS):  # each resumed at once, beside what the killed one has left
            began = time.monotonic()
            killed.start(*OPTIONS)
            patience = rng.uniform(0, 2 * usual_s / KILLS)
            while time.monotonic() - began < patience and killed.process.poll() is None:
                time.sleep(0.05)
            assert killed.process.poll() is None, "ended before it was killed ten times"
            below += psutil.Process(killed.pid).children(recursive=True)
            killed.kill()
            spent_s += time.monotonic() - began
        last_kill = time.monotonic()
        assert killed.run(*OPTIONS, timeout=2 * usual_s - spent_s) == 0, killed.said
        spent_s += time.monotonic() - last_kill
        while any(map(is_alive, below)) and time.monotonic() - last_kill < AGENTS_GO_S:
            time.sleep(0.5)
        left = [" ".join(each.cmdline()).strip()[:120] for each in below if is_alive(each)]
        assert not left, f"killed drivers left processes behind: {left}"
    finally:
        killed.stop()
    killed.assert_whole(TRIALS)
    figures = {"chaos": "driver", "kills": KILLS, "usual_s": round(usual_s, 1), "killed_s": round(spent_s, 1)}
    attempts = killed.count("trial_started")
    tell(**figures, ratio=round(spent_s / usual_s, 2), attempts=attempts, trials=TRIALS)


def make(place: Path) -> Driver:
    place.mkdir()
    return Driver(place)
