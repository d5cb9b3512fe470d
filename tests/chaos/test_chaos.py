"""Drivers, trials, nodes, raylets, heads and stores that die under a study: what each does to it. Real processes.

`CHAOS_MOMENTS=10 pytest -m heavy tests/chaos -k lost` hits studies at ten random moments for each kind of harm, and
prints a table. *Lost*: trials without an end in the records or without a run in MLflow. *Doubled*: trials with two ends
or two runs, attempts that began twice, iterations that were recorded twice. *Hung*: drivers that did not end in time,
that did not answer SIGTERM within ten seconds, or that left a process behind; second drivers that were not refused.
"""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from study.records.records import Iteration, Record, TrialBuilt, TrialEnded, TrialStarted
from tests.e2e.clusters import SOON, Cluster, is_alive, is_clean, kill_all
from tests.e2e.commands import mlflow_trials, run, study
from tests.e2e.drivers import Driver, lasting, setting
from tests.integration.mlflow_tools import Server

MOMENTS = int(os.environ.get("CHAOS_MOMENTS", "2"))
"""Of each kind of harm; SIGTERM has twice as many."""
pytestmark = pytest.mark.heavy

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


Harm = Callable[[Driver, Row], None]

# --- harms: each is done to a driver that may be at any moment of its session ---------------------------------------


def below(driver: Driver) -> list[psutil.Process]:
    """Return what the driver has started; nothing once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(driver.pid).children(recursive=True)
    return []


def killing(word: str) -> Harm:
    """Return the harm that ends the processes with this word in their name or command line."""

    def kill(driver: Driver, row: Row) -> None:
        for process in below(driver):
            with contextlib.suppress(psutil.Error):
                if word in " ".join([process.name(), *process.cmdline()]):
                    kill_all([process])

    return kill


def terminate(driver: Driver, row: Row) -> None:
    """Send SIGTERM, every other time to all processes, as schedulers do; driver and all it started are gone in time."""
    started, sent = below(driver), time.monotonic()
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
    held = driver.process.poll() is None
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


HARMS: dict[str, Harm] = {
    "SIGKILL of the driver": lambda driver, row: driver.kill(),  # what it leaves goes by itself, or at a resume
    "SIGKILL of a trial": killing("ray::StudyTrial"),
    "SIGKILL of the raylet": killing("raylet/raylet"),
    "SIGKILL of the follower": killing("study.mirrors.process"),
    "SIGTERM": terminate,
    "two drivers at once": start_second,
    "disk full": fill_disk,
}


# --- one moment -----------------------------------------------------------------------------------------------------


def wait(driver: Driver) -> int | None:
    """Return how a driver ends; None where it hangs, and it is killed."""
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


def hit(place: Path, harm: Harm, row: Row, moment_s: float, *options: object) -> Driver:
    """Start a study, do it harm at a moment, and run it to its end."""
    driver = Driver(place)
    driver.start(*OPTIONS, *options)
    with contextlib.suppress(subprocess.TimeoutExpired):
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


def harmed(place: Path, harm: Harm, row: Row, moment_s: float) -> None:
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


@pytest.fixture(scope="module")
def length_s(tmp_path_factory):
    """How long a study takes that nothing hits."""
    whole, began = Driver(tmp_path_factory.mktemp("whole")), time.monotonic()
    assert whole.run(*OPTIONS, timeout=PATIENCE_S) == 0, whole.said
    return time.monotonic() - began


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("what", [*HARMS, "MLflow away for a minute"])
def test_nothing_is_lost_doubled_or_hung_whenever_a_study_is_hit(what, length_s, tmp_path, capsys):
    row, rng, hits = Row(what), random.Random(what), MOMENTS * (2 if what == "SIGTERM" else 1)
    for index in range(hits):
        place, moment_s = tmp_path / str(index), (index + rng.random()) / hits * length_s
        if what in HARMS:
            harmed(place, HARMS[what], row, moment_s)
        else:
            without_mlflow(place, row, moment_s)
    with capsys.disabled():
        print(f"\n{row}", end="")  # noqa: T201
    assert (row.lost, row.doubled, row.hung) == (0, 0, 0), row


# --- what becomes of trials, nodes and heads ------------------------------------------------------------------------

MAIN, RUNNER, LEARNER = "StudyTrial", "BatchedEnvRunner", "_WrappedExecutable"
"""What Ray calls the processes of a trial."""
IMPATIENT = {**SOON, "health_check_timeout_ms": 1000}
"""Lets Ray give up a node that says nothing, too, after some seconds."""
A, B, C = "127.0.0.2", "127.0.0.3", "127.0.0.4"


@pytest.fixture
def driver(tmp_path):
    driver = Driver(tmp_path)
    yield driver
    driver.stop()


@pytest.fixture
def cluster():
    with contextlib.closing(Cluster()) as cluster:
        yield cluster


def start_on(driver, cluster, nodes, *options, **config):
    """Start the driver on a cluster with these nodes, whose head runs nothing."""
    cluster.start_head(**config)
    for host, num_cpus in nodes.items():
        cluster.add_node(num_cpus, host)
    driver.settings = cluster.settings
    driver.start("--address", cluster.address, *options)


@pytest.mark.parametrize("title", [RUNNER, LEARNER])
def test_a_trial_that_loses_a_process_runs_again(driver, title):
    driver.start(*lasting(4), *setting(resources__num_learners=1))
    driver.wait_for("iteration")
    kill_all(driver.workers(title))
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert "process" in lost.reason


@pytest.mark.parametrize("death", [Cluster.crash, Cluster.kill_raylet])
def test_a_trial_whose_node_dies_runs_again_on_another(driver, cluster, death):
    start_on(driver, cluster, {A: 2}, *lasting(4))
    driver.wait_for("iteration")
    death(cluster, A)
    cluster.add_node(2, B)
    driver.wait_for("trial_ended")
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert A in lost.reason and "node" in lost.reason
    built = [set(each.processes_per_node) for each in driver.records() if isinstance(each, TrialBuilt)]
    assert built == [{A}, {B}]
    assert is_clean(cluster.state(60), num_cpus=2, nodes=2)


def test_a_trial_that_loses_the_node_of_a_runner_runs_again(driver, cluster):
    start_on(driver, cluster, {A: 1, B: 1}, *lasting(4), **SOON)
    driver.wait_for("iteration")
    (host,) = [each for each in (A, B) if not any(MAIN in one.cmdline()[0] for one in cluster.workers(each))]
    cluster.crash(host)
    cluster.add_node(1, C)
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    (lost,) = driver.attempts("interrupted")
    assert lost.reason.startswith("env runners: all 1 must stay alive") and "node" in lost.reason
    assert (lost.timing, lost.timing_reason) == ("tainted", "a node of the trial died")


@pytest.mark.parametrize(("seconds", "config", "lost"), [(8, {}, 0), (30, IMPATIENT, 1)])
def test_a_node_that_answers_nobody_for_a_while(driver, cluster, seconds, config, lost):
    """As behind a cut network. Shorter than Ray's patience the trial goes on; longer, and it runs again elsewhere."""
    start_on(driver, cluster, {A: 2}, *lasting(30 - 10 * lost), **config)
    driver.wait_for("iteration", 2)
    silent = [cluster.raylet(A), *cluster.raylet(A).children(recursive=True)]
    for process in silent:
        process.suspend()
    time.sleep(seconds)
    for process in silent:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    cluster.add_node(2, B)
    assert driver.end() == 0, driver.said
    driver.assert_whole(1)
    assert len(driver.attempts("interrupted")) == lost


def test_a_head_that_dies_ends_the_study_and_a_resume_on_a_new_cluster_finishes_it(driver, cluster):
    start_on(driver, cluster, {A: 2}, *lasting(60))
    driver.wait_for("iteration", 2)
    cluster.crash_head()
    assert driver.end(180) == 75, driver.said
    assert "--resume" in driver.said and "Traceback" not in driver.said
    with contextlib.closing(Cluster()) as other:
        other.start_head(2)
        driver.settings = other.settings
        assert driver.run("--address", other.address, *lasting(60)) == 0, driver.said
    driver.assert_whole(1)
