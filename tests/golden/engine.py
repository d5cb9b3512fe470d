"""Ray Tune without Ray: the program's own searcher, callback and stopper are called in a fixed order, one at a time.

The clock is that of the invented trials: `time.time` and `time.monotonic` move when a trial reports, and at no other
time. So a study comes to the same records wherever it runs.
"""

import contextlib
import math
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from study.errors import TrialError, TrialLostError
from study.machine.load import NodeLoad
from study.records.records import Evaluation, Iteration, TrialBuilt
from study.trial.messages import TrialResult
from tests.driven import policy
from tests.golden import entry
from tests.holdup import luck

BEGUN = 1_790_000_000.0
"""When every invented session begins, seconds since the epoch."""
NODE = "n0"


class Killed(BaseException):
    """The driver is killed: nothing but the kernel notices."""


@dataclass(slots=True)
class Clock:
    """The time of the invented trials."""

    now: float = BEGUN

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let the program see this clock."""
        before = time.time, time.monotonic, time.clock_gettime
        time.time, time.monotonic, time.clock_gettime = (lambda: self.now), (lambda: self.now), (lambda _: self.now)
        try:
            yield
        finally:
            time.time, time.monotonic, time.clock_gettime = before


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What befalls an attempt of a trial instead of an iteration."""

    iteration: int
    error: TrialError
    """What Tune has of the failure."""


FAILED = TrialError(where="environment", rule="must not raise", got="planted", fix="Mend it.")
LOST_NODE = TrialLostError(where="trial", rule="the node must stay in reach (10.0.0.7)", got="Node Id: 12")
LOST_NODE.node = True
LOST_PROCESS = TrialLostError(where="trial", rule="its main process must stay alive (10.0.0.7)", got="SYSTEM_ERROR")


@dataclass(kw_only=True)
class Script:
    """What happens in a study beside its plan."""

    troubles: dict[tuple[int, int], Trouble] = field(default_factory=dict)
    """By trial and attempt."""
    kill_after: int = 0
    """Results after which the driver is killed; 0: never."""
    on_kill: Callable[[], None] = lambda: None
    loads: dict[int, list[NodeLoad]] = field(default_factory=dict)
    """What else the nodes did, by trial."""


class InventedTrial:
    """One attempt: what it reports follows from its setting, its seed and the number of the iteration alone."""

    def __init__(self, config: dict[str, Any], trainable: Any, now: float, script: Script) -> None:
        self.asked = entry.asked(config)
        self._script = script
        bundles = trainable.default_resource_request(config).bundles
        self._num_processes = len(bundles)
        self._cpus = [int(bundle.get("CPU", 0)) for bundle in bundles]
        learners = sum(1 for bundle in bundles if bundle.get("GPU")) if self._num_processes > 1 else 0
        self._num_learners = int(self.asked.setting.get("num_learners", learners))
        self._iteration, self._env_steps, self._wall_time_s, self._progress = 0, 0, 0.0, 0.0
        self._key = entry.in_one_line(self.asked.setting), self.asked.seed
        self.next_at = now + self._startup_s + self._seconds(1)
        self.tune = SimpleNamespace(
            config=config,
            trial_id=f"{self.asked.trial:05d}",
            error_file=None,
            last_result={"node_ip": NODE},
            temporary_state=SimpleNamespace(ray_actor=None),
            status="RUNNING",
        )

    @property
    def _startup_s(self) -> float:
        return 2.0 + 0.25 * self._num_processes

    def _value(self, name: str, default: float) -> float:
        return float(self.asked.setting.get(name, default))

    @property
    def _batch(self) -> int:
        return int(self._value("train_batch_size", 400))

    def _shares(self, iteration: int) -> tuple[float, float]:
        """Return the seconds of sampling and learning of an iteration."""
        scale, lanes = self._value("num_env_runners", 1), self._value("num_envs_per_env_runner", 1)
        sampling = self._batch / (900.0 * scale**0.85 * lanes**0.3)
        passes = self._batch * self._value("num_epochs", 10) / 40_000 / max(self._num_learners, 1) ** 0.5
        noise = 1 + 0.05 * luck("seconds", *self._key, iteration)
        return sampling * noise * (2 if iteration == 1 else 1), passes * noise

    def _seconds(self, iteration: int) -> float:
        return 1.1 * sum(self._shares(iteration))

    def trouble(self) -> Trouble | None:
        """Return what befalls the trial now."""
        found = self._script.troubles.get((self.asked.trial, self.asked.attempt))
        return found if found is not None and found.iteration == self._iteration + 1 else None

    def advance(self) -> dict[str, Any]:
        """Return the result of one iteration, as Tune gets it."""
        asked, records = self.asked, list[TrialBuilt | Iteration | Evaluation]()
        if self._iteration == 0:
            records.append(self._built())
        self._iteration += 1
        self._env_steps += self._batch
        seconds = self._seconds(self._iteration)
        self._wall_time_s += seconds
        before = self._progress
        used = (
            (self._env_steps, asked.env_steps),
            (self._iteration, asked.iterations),
            (self._wall_time_s, asked.time_s),
        )
        share = max(amount / limit for amount, limit in used if limit is not None)
        self._progress = 1.0 if share >= 1 - 1e-9 else share
        records.append(Iteration(**self._so_far, metrics=self._metrics(seconds)))
        points = asked.num_evaluations
        if math.floor(self._progress * points + 1e-9) > math.floor(before * points + 1e-9):
            returns, progress = self._returns(), self._progress
            records.append(Evaluation(**self._so_far, progress=progress, returns=returns, num_cut=0, eval_time_s=0.5))
        done = self._progress >= 1
        self.next_at += self._seconds(self._iteration + 1)
        return TrialResult(
            records=tuple(records),
            progress=self._progress,
            policy=policy({"policy.txt": b"invented"}) if done and points else None,
            node_loads=tuple(self._script.loads.get(asked.trial, []) if done else []),
        ).packed()

    @property
    def _so_far(self) -> dict[str, Any]:
        so_far = {"iteration": self._iteration, "env_steps": self._env_steps, "wall_time_s": self._wall_time_s}
        return {"trial": self.asked.trial, "attempt": self.asked.attempt, **so_far}

    def _built(self) -> TrialBuilt:
        return TrialBuilt(
            trial=self.asked.trial,
            attempt=self.asked.attempt,
            startup_time_s=self._startup_s,
            effective={},
            processes_per_node={NODE: self._num_processes},
            placement=[{"host": NODE, "num_cpus": each} for each in self._cpus],
        )

    def _metrics(self, seconds: float) -> dict[str, float]:
        sampling, learning = self._shares(self._iteration)
        several = self.asked.execution == "real" and self._value("num_env_runners", 1) > 1
        return {
            "iteration_time_s": seconds,
            "sampling_time_s": sampling,
            "slowest_runner_time_s": 0.9 * sampling,
            "mean_runner_time_s": (0.8 if several else 0.9) * sampling,
            "learning_time_s": learning,
            "sync_time_s": 0.02 * seconds,
            "rest_time_s": seconds - sampling - learning - 0.02 * seconds,
            "train_batch_size_actual": float(self._batch),
            "num_sampling_rounds": 1,
            "num_healthy_env_runners": self._value("num_env_runners", 1),
            "num_dropped_samples": 0,
            "episode_return_sum": 2 * self._mean_return(),
            "num_episodes": 2,
            "episode_len_sum": float(self._batch),
            "cpu_time_s": 0.9 * seconds * self._num_processes,
            "peak_rss_mb": 500.0,
            "cpu_pressure": 0.0,
        }

    def _mean_return(self) -> float:
        """Return a mean that rises until three fifths of the budget: best near lr 1e-3, worse at large batches."""
        setting = self.asked.setting
        miss = abs(math.log10(float(setting.get("lr", 3e-4))) + 3)
        crowd = abs(math.log2(self._batch / (60 * self._value("num_env_runners", 1))))
        peak = 480 - 90 * miss - 12 * crowd + 6 * luck("return", *self._key)
        return max(20 + (peak - 20) * min(self._progress / 0.6, 1.0), 0.0)

    def _returns(self) -> list[float]:
        mean, first = self._mean_return(), self.asked.first_episode
        return [
            round(mean + 8 * luck("episode", *self._key, self._iteration, first + index), 3)
            for index in range(self.asked.episodes)
        ]


class Engine:
    """Stands for `ray.tune.Tuner`: make one with `Engine.of`, and give it to `entry.on_cluster`."""

    clock: Clock
    script: Script
    scratch: Path
    num_results = 0
    num_starts = 0
    mistake: Exception | None = None
    """What went wrong in here."""

    def __init__(self, trainable: Any, *, tune_config: Any, run_config: Any) -> None:
        self._trainable, self._searcher = trainable, tune_config.search_alg
        (self._callback,) = run_config.callbacks
        self._stopper = run_config.stop
        self._running: list[InventedTrial] = []

    @classmethod
    def of(cls, clock: Clock, script: Script, scratch: Path) -> type["Engine"]:
        """Return a class with a clock and a script."""
        return type("ScriptedEngine", (cls,), {"clock": clock, "script": script, "scratch": scratch})

    def fit(self) -> None:
        """Run until the searcher has no more, or the stopper says so."""
        try:
            self._run()
        except Exception as error:
            type(self).mistake = error  # the driver would take it for an end of Tune, and go on
            raise

    def _run(self) -> None:
        self._callback.setup()
        idle = 0
        while True:
            if self._stopper.stop_all():
                return
            finished = self._start()
            if not self._running:
                if finished:
                    return
                idle += 1
                assert idle < 5, "the searcher has nothing to start, and does not end"
                continue
            idle = 0
            trial = min(self._running, key=lambda each: (each.next_at, each.asked.trial))
            self.clock.now = max(self.clock.now, trial.next_at)
            if (trouble := trial.trouble()) is not None:
                self._fail(trial, trouble)
            else:
                self._report(trial)

    def _start(self) -> bool:
        """Start what the searcher suggests; return whether it has no more."""
        while True:
            config = self._searcher.suggest(f"t{self.num_starts}")
            if config is None:
                return False
            if config == "FINISHED":
                return True
            trial = InventedTrial(config, self._trainable, self.clock.now, self.script)
            self._running.append(trial)
            type(self).num_starts += 1
            self._callback.on_trial_start(0, self._tune_trials, trial.tune)

    @property
    def _tune_trials(self) -> list[Any]:
        return [each.tune for each in self._running]

    def _report(self, trial: InventedTrial) -> None:
        result = trial.advance()
        done = result["done"]
        self._callback.on_trial_result(0, self._tune_trials, trial.tune, result)
        if done:
            self._running.remove(trial)
            self._searcher.on_trial_complete(trial.tune.trial_id, result)
        else:
            self._searcher.on_trial_result(trial.tune.trial_id, result)
        type(self).num_results += 1
        if self.script.kill_after == self.num_results:
            self.script.on_kill()
            raise Killed

    def _fail(self, trial: InventedTrial, trouble: Trouble) -> None:
        file = self.scratch / f"error_{trial.asked.trial}_{trial.asked.attempt}"
        file.write_bytes(pickle.dumps(trouble.error))
        trial.tune.pickled_error_file = str(file)
        file = file.with_suffix(".txt")
        file.write_text(str(trouble.error))
        trial.tune.error_file = str(file)
        self._running.remove(trial)
        self._callback.on_trial_error(0, self._tune_trials, trial.tune)
        self._searcher.on_trial_complete(trial.tune.trial_id, None, error=True)
