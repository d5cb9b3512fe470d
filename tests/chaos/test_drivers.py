"""A driver that is killed again and again: what it costs, and that nothing is lost or done twice."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.chaos.clusters import is_alive
from tests.chaos.drivers import Driver, setting

KILLS = 10
OPTIONS = setting(
    execution="emulated",
    search__num_trials=24,
    budget__env_steps=40_000,
)
"""Two at a time on two cores, about three minutes."""


@pytest.mark.heavy
@pytest.mark.timeout(2400)
def test_a_driver_killed_ten_times_takes_at_most_twice_as_long(tmp_path: Path, tell: Callable[..., None]) -> None:
    rng = random.Random(int(os.environ.get("KILL_SEED", "0")))
    whole, killed = (make(tmp_path / name) for name in ("whole", "killed"))
    began = time.monotonic()
    assert whole.run(*OPTIONS, timeout=900) == 0, whole.said
    usual_s = time.monotonic() - began
    spent_s, kills = 0.0, 0
    try:
        while kills < KILLS:
            began = time.monotonic()
            killed.start(*OPTIONS)
            patience = rng.uniform(0, 2 * usual_s / KILLS)
            while time.monotonic() - began < patience and killed.process.poll() is None:
                time.sleep(0.05)
            assert killed.process.poll() is None, "ended before it was killed ten times"
            below = psutil.Process(killed.pid).children(recursive=True)
            killed.kill()
            kills += 1
            spent_s += time.monotonic() - began
            end = time.monotonic() + 30
            while any(map(is_alive, below)) and time.monotonic() < end:
                time.sleep(0.1)
            left = [" ".join(each.cmdline())[:120] for each in below if is_alive(each)]
            assert not left, f"a killed driver left processes behind: {left}"
        began = time.monotonic()
        assert killed.run(*OPTIONS, timeout=2 * usual_s - spent_s) == 0, killed.said
        spent_s += time.monotonic() - began
    finally:
        killed.stop()
    killed.assert_whole(24)
    figures = {"chaos": "driver", "kills": kills, "usual_s": round(usual_s, 1), "killed_s": round(spent_s, 1)}
    attempts = killed.count("trial_started")
    tell(**figures, ratio=round(spent_s / usual_s, 2), attempts=attempts, trials=24)


def make(place: Path) -> Driver:
    place.mkdir()
    return Driver(place)
