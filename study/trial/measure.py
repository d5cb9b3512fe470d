"""What a trial measures and reports: iterations, its processes, what else their machines did. Imports Ray, no RLlib.

Raw values only; the metrics of `study.metrics` are made of them. Times are wall clock by the monotonic clock of the
process that took them; clocks of two processes are never subtracted.
"""

import functools
import math
import numbers
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import ray

from study.errors import TrialError
from study.machine.host import cpu_model, machine_key, read_peak_rss_mb
from study.machine.load import LoadSnapshot, NodeLoad, load_between, read_pressure_s, snapshot
from study.metrics import CUSTOM, METRICS
from study.records.records import Evaluation, Iteration, TrialBuilt

LOOK_TIMEOUT_S = 60.0
"""Reading the load of a machine takes milliseconds; without an answer it is not known."""
LEARNER_KEYS: Mapping[str, tuple[str, ...]] = {name: metric.rllib for name, metric in METRICS.items() if metric.rllib}
"""Metric that the learner computes -> its keys in RLlib's results, of which the first that is logged counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMeasurement:
    """What a process used in an interval."""

    wall_time_s: float
    cpu_time_s: float
    """Since the interval before."""
    peak_rss_mb: float
    pressure_s: float | None
    """Seconds in which some task of the node waited for a CPU; None without Linux PSI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerMeasurement(ProcessMeasurement):
    """What a runner process measured about one call of its own sampling."""

    runner: int
    """Number of the process, from 1; 0 for the main process."""
    env_steps: int
    episode_return_sum: float
    num_episodes: int
    episode_len_sum: int
    num_runners: int = 1
    """Runners of the trial whose lanes it steps: more than one when they are emulated."""
    failure: TrialError | None = None
    """What ended it, with the runner's own traceback as a note."""


@dataclass(frozen=True, kw_only=True)
class StepMeasurement:
    """What was measured in one training step."""

    used: ProcessMeasurement | None = None
    """What the main process used; None until the iteration is over."""
    sampling_time_s: float | None = None
    """None, as the other phases, where sampling goes on while the learner learns."""
    learning_time_s: float | None = None
    sync_time_s: float | None = None
    samples: tuple[RunnerMeasurement, ...]
    """In the order of the runners, round after round; without phases as they came."""
    num_sampling_rounds: int | None = None
    num_dropped_samples: int
    """Samples that were lost, since the start of the trial."""
    num_env_runners: int | None = None
    """Runners that are alive, where an iteration does not wait for each; None: those that delivered."""
    latest: tuple[RunnerMeasurement, ...] = ()
    """Where an iteration does not wait for each runner: their last measurements, which may be from before it."""
    num_restarts: int = 0
    """Runner processes that were started anew since the start of the trial."""
    num_gradient_updates: int | None
    """Steps that the optimizer took; minibatches that it had to leave out are not among them."""
    learners_cpu_time_s: float = 0.0
    """CPU time of learner processes of their own since the iteration before."""
    learners_peak_rss_mb: float = 0.0
    learner_busy_time_s: float | None = None
    """Seconds that a learner spent on updates, on its own clock, mean of learners; else `learning_time_s` tells it."""
    policy_lag: float | None = None
    """Updates between a policy that sampled and the one that learnt from it, mean over the updates."""
    learner: Mapping[str, float]
    """Those of `LEARNER_KEYS` by name."""

    @property
    def main(self) -> ProcessMeasurement:
        """What the main process used in the iteration, which is over."""
        assert self.used is not None
        return self.used

    @property
    def env_steps(self) -> int:
        """Environment steps that were trained on."""
        return sum(sample.env_steps for sample in self.samples)

    @property
    def phases_s(self) -> float | None:
        """Time of sampling, learning and synchronisation; None where they overlap."""
        phases = (self.sampling_time_s, self.learning_time_s, self.sync_time_s)
        known = [time_s for time_s in phases if time_s is not None]
        return math.fsum(known) if len(known) == len(phases) else None

    @property
    def time_by_runner(self) -> Mapping[int, float]:
        """Runner process -> time that it spent in its own sampling."""
        times: dict[int, float] = {}
        for sample in self.samples:
            times[sample.runner] = times.get(sample.runner, 0.0) + sample.wall_time_s
        return times

    @property
    def last_of_runners(self) -> list[RunnerMeasurement]:
        """The last measurement of each runner process."""
        return list({sample.runner: sample for sample in (*self.latest, *self.samples)}.values())


def iteration_metrics(step: StepMeasurement) -> dict[str, float | None]:
    """Return all metrics of grain `iteration` of a step that is over; None where the quantity does not exist.

    Raises:
        TrialError: A loss is not finite, or nothing was learnt: what follows would mean nothing.
    """
    for name, value in step.learner.items():
        if name != "vf_explained_var" and not math.isfinite(value):
            got = f"{name}={value}: the training diverged"
            fix = "Lower lr, clip_param or num_epochs, or raise entropy_coeff."
            raise TrialError(where="learner", rule="losses must be finite", got=got, fix=fix)
    # Without phases an iteration may end before the first update of it: RLlib's buffer takes a batch and returns.
    if step.phases_s is not None and step.num_gradient_updates == 0:
        rule = "an iteration must change the weights"
        got, fix = "no gradient that is finite: the training diverged", "Lower lr, clip_param or num_epochs."
        raise TrialError(where="learner", rule=rule, got=got, fix=fix)
    return {name: each.of(step) for name, each in METRICS.items() if each.grain == "iteration"}


RESULT = "study_result"
"""Key of the `TrialResult` in a result of Tune."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What a trial reports after an iteration, and after an evaluation."""

    records: tuple[TrialBuilt | Iteration | Evaluation, ...]
    """What is new, in its order; the driver adds what it alone knows: labels of timings, and rates so far."""
    progress: float
    """Of the budget, in [0, 1]."""
    done: bool
    policy: bytes | None = None
    """At the end, a zip archive of the final policy's checkpoint; None where the trial does not learn."""
    node_loads: tuple[NodeLoad, ...] = ()
    """At the end, what else the nodes did in the timed part, as far as it is known."""


class Watch:
    """Measures what this process and its node use between `start` and `stop`."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self.start()

    def start(self) -> None:
        """Begin an interval. CPU time counts from the previous `stop`, so that nothing between is lost."""
        self._pressure_s = read_pressure_s()
        self._started_s = time.perf_counter()

    def stop(self) -> ProcessMeasurement:
        """End the interval and return what was used in it."""
        wall_time_s, before = self.elapsed_s(), self._cpu_s
        pressure_s, self._cpu_s = read_pressure_s(), time.process_time()
        return ProcessMeasurement(
            wall_time_s=wall_time_s,
            cpu_time_s=self._cpu_s - before,
            peak_rss_mb=read_peak_rss_mb(),
            pressure_s=None if pressure_s is None or self._pressure_s is None else pressure_s - self._pressure_s,
        )

    def elapsed_s(self) -> float:
        """Return the wall time since `start`."""
        return time.perf_counter() - self._started_s

    def skip(self) -> None:
        """Forget the CPU time used since the previous `stop` (start-up, an evaluation)."""
        self._cpu_s = time.process_time()


# --- where its processes are, and what else their machines did --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A process of a trial, `main`, `runner` or `learner`, and where it is: the one that makes this value."""

    process: str
    number: int = 0
    """Among the processes of its kind, from 1; 0 for the main process."""
    runners: tuple[int, ...] = ()
    """Runners of the trial, from 1, whose lanes it steps: several when they are emulated."""
    num_cpus: int
    """CPUs that it reserves."""
    node: str = field(default_factory=lambda: ray.util.get_node_ip_address())
    """Address, by which Ray knows the node; several nodes may be on one machine."""
    host: str = field(default_factory=lambda: os.uname().nodename)
    """Its name, which another machine may have too."""
    machine: str = field(default_factory=machine_key)
    cpu_model: str = field(default_factory=cpu_model)
    pid: int = field(default_factory=os.getpid)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the records."""
        written = {name: value for name, value in asdict(self).items() if name != "pid"}
        return written | {"runners": list(self.runners)}


class NodeWatch:
    """Reads the load of every machine of a trial when its timed part begins and when it ends, not while it runs.

    One process on each machine reads it: the main process on its own, elsewhere a runner or a learner of the trial.
    """

    def __init__(
        self, places: Sequence[Place], actor_of: Callable[[Place], Any], *, driver: tuple[str, int] | None
    ) -> None:
        """Choose who reads the load of each machine: `places`, the main process first, and their RLlib actors."""
        first_at = {place.machine: place for place in reversed(places)}
        self._lookers = [actor_of(place) for machine, place in first_at.items() if machine != places[0].machine]
        own = [(place.machine, place.pid) for place in places] + ([] if driver is None else [driver])
        self._study = ray.get_runtime_context().get_session_name(), own
        self._first: list[LoadSnapshot | None] = []

    def begin(self) -> None:
        """Read the loads for the first time."""
        self._first = self._look(last=False)

    def end(self) -> list[NodeLoad]:
        """Read the loads again; return those of the time between, as far as they are known."""
        both = zip(self._first, self._look(last=True), strict=True) if self._first else ()
        return [load for pair in both if (load := load_between(*pair)) is not None]

    def _look(self, *, last: bool) -> list[LoadSnapshot | None]:
        asked = [actor.apply.remote(_look, self._study, last) for actor in self._lookers]
        own = _look(None, self._study, last)
        try:
            return [own, *ray.get(asked, timeout=LOOK_TIMEOUT_S)]
        except ray.exceptions.RayError:
            return [own, *[None] * len(asked)]  # who is gone will be missed when it is to sample


def _look(_: Any, study: tuple[str, list[tuple[str, int]]], last: bool) -> LoadSnapshot | None:
    """Read the load, in any process; raise nothing, since RLlib ends a process that raises."""
    try:
        return snapshot(*study, last=last)
    except Exception:  # noqa: BLE001 (a load that is not known ends no trial)
        return None


# --- what a script logs ----------------------------------------------------------------------------------------------

_ALSO_RLLIBS = (
    "agent_episode_return_mean module_episode_return_mean config custom_metrics done env_runner_group fault_tolerance "
    "info iterations_since_restore num_healthy_workers num_remote_worker_restarts perf timers trial_id "
    "num_training_step_calls_per_iteration weights_seq_no learners"
)
"""Names that RLlib gives results without a constant for them."""
_FOREIGN = re.compile(r"[^\w. -]|^\.*$", flags=re.ASCII)
"""What no part of a metric's name in MLflow has: some characters, or nothing but dots."""


def custom_metrics(results: Mapping[str, Any]) -> dict[str, float | None]:
    """Return `custom/<name>` -> value of every number that the script logged by RLlib's `MetricsLogger`."""
    found: dict[str, float | None] = {}

    def add(values: Mapping[str, Any], prefix: str) -> None:
        for name, value in values.items():
            path = f"{prefix}{_FOREIGN.sub('_', str(name))}"
            if isinstance(value, Mapping):
                add(value, f"{path}/")
            elif isinstance(value, numbers.Real):
                found[path] = float(value) if math.isfinite(value) else None

    for part in (results, results.get("env_runners", {})):
        own = {name: value for name, value in part.items() if name not in _of_rllib()}
        add({name: own[name] for name in own if not re.search("^_|_throughput$", str(name))}, CUSTOM)
    return found


@functools.cache
def _of_rllib() -> frozenset[str]:
    from ray.rllib.utils import metrics as names_of_rllib
    from ray.tune.result import AUTO_RESULT_KEYS, DEFAULT_RESULT_KEYS

    constants = (value for name, value in vars(names_of_rllib).items() if name.isupper() and isinstance(value, str))
    return frozenset({*constants, *_ALSO_RLLIBS.split(), *AUTO_RESULT_KEYS, *DEFAULT_RESULT_KEYS})
