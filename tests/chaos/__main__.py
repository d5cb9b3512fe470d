"""What a study loses, does twice, or leaves hanging where it is killed at any moment: one table, by real processes.

    python -m tests.chaos [--moments 10] [--seed 1]

Each moment is a study of its own that is hit at a random time between its start and its end, and then resumed until it
is complete. *Lost*: trials without an end in the records or without a run in MLflow. *Doubled*: trials with two ends or
two runs, attempts that began twice, iterations that were recorded twice. *Hung*: drivers that did not end in time, that
did not answer SIGTERM within ten seconds, or that left a process behind; second drivers that were not refused.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from study.records.records import Iteration, Record, TrialEnded, TrialStarted
from tests.e2e.clusters import is_alive, kill_all
from tests.e2e.commands import mlflow_trials, run, study
from tests.e2e.drivers import Driver, setting
from tests.integration.mlflow_tools import Server

TRIALS = 2
OPTIONS = setting(search__num_trials=TRIALS)
ANSWER_S, CLEARED_S = 10.0, 5.0
"""Within which SIGTERM is answered, and within which the kernel has ended the processes of a Ray that has no driver."""
PATIENCE_S = 600.0
"""After which a driver that still runs hangs."""
MOUNT = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs"]
AWAY_S = 60.0
"""How long MLflow is away."""


@dataclass
class Row:
    """What happened to the studies of one kind of harm."""

    what: str
    moments: int = 0
    lost: int = 0
    doubled: int = 0
    hung: int = 0
    slowest_s: float = 0.0
    """Longest time from the harm to the end of the driver."""
    remarks: list[str] = field(default_factory=list)

    def count(self, found: Sequence[Record], runs: Counter[int], num_trials: int) -> None:
        """Count what a study lost or did twice; `runs` are MLflow's, by trial."""
        ends = Counter(each.trial for each in found if isinstance(each, TrialEnded) and each.status != "interrupted")
        self.lost += sum(not ends[trial] or not runs[trial] for trial in range(num_trials))
        self.doubled += sum(ends[trial] > 1 or runs[trial] > 1 for trial in range(num_trials))
        once = Counter((each.trial, each.attempt, 0) for each in found if isinstance(each, TrialStarted))
        once += Counter((each.trial, each.attempt, each.iteration) for each in found if isinstance(each, Iteration))
        self.doubled += sum(times > 1 for times in once.values())

    def __str__(self) -> str:
        seconds = f"{self.slowest_s:.1f} s" if self.slowest_s else ""
        cells = [self.what, self.moments, self.lost, self.doubled, self.hung, seconds, "; ".join(self.remarks)]
        return f"| {' | '.join(map(str, cells))} |"


# --- harms: each is done to a driver that may be at any moment of its session ---------------------------------------


def below(driver: Driver) -> list[psutil.Process]:
    """Return what the driver has started; nothing once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(driver.pid).children(recursive=True)
    return []


def kill_named(driver: Driver, word: str) -> None:
    for process in below(driver):
        with contextlib.suppress(psutil.Error):
            if word in " ".join([process.name(), *process.cmdline()]):
                kill_all([process])


def kill_driver(driver: Driver, row: Row) -> None:
    driver.kill()  # what it leaves goes by itself, or with the next session


def kill_trial(driver: Driver, row: Row) -> None:
    kill_named(driver, "ray::StudyTrial")


def kill_raylet(driver: Driver, row: Row) -> None:
    kill_named(driver, "raylet/raylet")


def kill_follower(driver: Driver, row: Row) -> None:
    kill_named(driver, "study.mirrors.process")


def terminate(driver: Driver, row: Row) -> None:
    """Send SIGTERM, every other time to all processes, as schedulers do; driver and all it started are gone in time."""
    started, sent = below(driver), time.monotonic()
    assert driver.process is not None
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if row.moments % 2 else os.kill)(driver.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        driver.process.wait(PATIENCE_S)
    answer = time.monotonic() - sent
    while any(map(is_alive, started)) and time.monotonic() < sent + answer + CLEARED_S:
        time.sleep(0.1)
    left = [process.name() for process in started if is_alive(process)]
    late = answer > ANSWER_S
    row.hung += late or bool(left)
    row.remarks += [f"answered after {answer:.1f} s"] * late + [f"left {', '.join(left)}"] * bool(left)


def start_second(driver: Driver, row: Row) -> None:
    """Start another driver in the same folder: it is refused while the first one runs."""
    second = Driver(driver.place)
    second.start(*OPTIONS)
    code = wait(second)
    held = driver.process is not None and driver.process.poll() is None
    if code is None or (held and code != 2):
        row.hung += 1
        row.remarks.append(f"the second driver ended with {code}")


def fill_disk(driver: Driver, row: Row) -> None:
    """Fill the file system of the study, and make room once the driver has ended."""
    filler = driver.place / "studies" / "filler"
    for size in (4096, 1):
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * size)
    wait(driver)
    filler.unlink()


HARMS: dict[str, Callable[[Driver, Row], None]] = {
    "SIGKILL of the driver": kill_driver,
    "SIGKILL of a trial": kill_trial,
    "SIGKILL of the raylet": kill_raylet,
    "SIGKILL of the follower": kill_follower,
    "SIGTERM": terminate,
    "two drivers at once": start_second,
    "disk full": fill_disk,
}


# --- one moment -----------------------------------------------------------------------------------------------------


def wait(driver: Driver) -> int | None:
    """Return how a driver ends; None where it hangs, and it is killed."""
    assert driver.process is not None
    try:
        return driver.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        driver.stop()
        return None


def run_to_end(driver: Driver, row: Row, *options: object) -> None:
    """Resume a study until it is complete; a session that hangs, or a third one that does not complete it, counts."""
    for _ in range(3):
        driver.start(*OPTIONS, *options)
        code = wait(driver)
        row.hung += code is None
        if code in (0, 1):
            return
    row.hung += 1
    row.remarks.append(f"not complete: {driver.said.splitlines()[-1]}")


def hit(place: Path, harm: Callable[[Driver, Row], None], row: Row, moment_s: float, *options: object) -> Driver:
    """Start a study, do it harm at a moment, and run it to its end."""
    driver = Driver(place)
    driver.start(*OPTIONS, *options)
    with contextlib.suppress(subprocess.TimeoutExpired):
        assert driver.process is not None
        driver.process.wait(moment_s)
    harmed = time.monotonic()
    harm(driver, row)
    row.hung += wait(driver) is None
    row.slowest_s = max(row.slowest_s, time.monotonic() - harmed)
    row.moments += 1
    run_to_end(driver, row, *options)
    return driver


def runs_of(uri: str) -> Counter[int]:
    """Return trial -> number of its runs that MLflow shows as ended."""
    return Counter(trial for trial, status in mlflow_trials(uri, "space") if status in ("FINISHED", "FAILED"))


def harmed(place: Path, harm: Callable[[Driver, Row], None], row: Row, moment_s: float) -> None:
    """Hit a study in a folder of its own, on a small disk where that is to be filled, and count."""
    disk = place / "studies"
    disk.mkdir(parents=True)
    small = harm is fill_disk
    if small and subprocess.run([*MOUNT, str(disk)], capture_output=True).returncode:
        row.remarks = ["left out: it needs the right to mount a small disk"]
        return
    try:
        driver = hit(place, harm, row, moment_s)
        row.count(driver.records(), runs_of(driver.uri), TRIALS)
    finally:
        if small:
            subprocess.run(["umount", str(disk)], check=True)


def without_mlflow(place: Path, row: Row, moment_s: float) -> None:
    """Take MLflow away for a minute at a moment; what it lacks at the end comes with `sync`."""
    place.mkdir()
    with Server(place / "server") as server:

        def take_away(driver: Driver, row: Row) -> None:
            server.stop()
            time.sleep(AWAY_S)
            server.start()

        driver = hit(place, take_away, row, moment_s, "--tracking-uri", server.uri)
        run(study("sync", driver.folder), place)
        row.count(driver.records(), runs_of(server.uri), TRIALS)


def table(place: Path, *, moments: int = 10, seed: int = 1) -> Iterator[Row]:
    """Yield the rows of the table, from an empty folder: so many moments of each harm, of SIGTERM twice as many."""
    rng = random.Random(seed)
    whole, began = Driver(place), time.monotonic()
    assert whole.run(*OPTIONS, timeout=PATIENCE_S) == 0, whole.said
    length_s = time.monotonic() - began
    for number, (what, harm) in enumerate(HARMS.items()):
        row, hits = Row(what), moments * (2 if harm is terminate else 1)
        for index in range(hits):
            harmed(place / f"{number}-{index}", harm, row, (index + rng.random()) / hits * length_s)
        yield row
    row = Row("MLflow away for a minute")
    for index in range(moments):
        without_mlflow(place / f"mlflow-{index}", row, (index + rng.random()) / moments * length_s)
    yield row


def main() -> None:
    """Print the table as it grows; exit with 1 where anything was lost, doubled or hung."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print("| what | moments | lost | doubled | hung | slowest end | |\n|---|---:|---:|---:|---:|---:|---|", flush=True)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        for row in table(Path(place), moments=asked.moments, seed=asked.seed):
            print(row, flush=True)
            bad += row.lost + row.doubled + row.hung
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
