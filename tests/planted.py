"""Synthetic studies of known truth: what the analysis must find again, as a frame of runs or as a study folder.

One iteration of n runners on a batch B takes, in seconds,

    T(n, B) = step_s B / n * straggler + transfer_s          sampling; the mean runner takes step_s B / n
            + serial_s + serial_per_step_s B                 learning
            + sync_s + sync_per_runner_s n + rest_s

times lognormal noise of the run, of its block and a drift from block to block; one runner has no straggler. A run
reaches its target after steps_min (1 + B / batch_crit) env steps, times lognormal noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd

from study.metrics import WARMUP_ITERATIONS
from study.records.folder import StudyFolder
from study.records.records import Record, RecordLog, StudyOpened, TrialEnded
from study.space.spec import StudySpec
from tests import synthetic
from tests.spaces import spec
from tests.unit import tables_data
from tests.unit.tables_data import as_frame
from tests.values import replace

RETURN_BEFORE, RETURN_AFTER = 100.0, 500.0
"""Returns of the evaluations before and after the target of `tests.spaces`, 450."""
MINIBATCH, EPOCHS, ENVS = 64, 10, 2
LEARNING_RATE = 3e-4
EPISODE_LEN = 100.0
START = 1_800_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is planted. Defaults: a strong-scaling study of four scales in three blocks."""

    cells: tuple[tuple[int, int], ...] = ((2, 2048), (4, 2048), (8, 2048), (16, 2048))
    """(environment runners, train batch size)."""
    blocks: int = 3
    repeats: int = 1
    """Runs of a cell in a block."""
    step_s: float = 1e-3
    straggler: float = 1.2
    """Slowest runner's time over the mean runner's, from two runners on."""
    transfer_s: float = 0.01
    serial_s: float = 0.05
    serial_per_step_s: float = 2e-5
    sync_s: float = 0.005
    sync_per_runner_s: float = 0.0
    rest_s: float = 0.005
    noise: float = 0.03
    """Standard deviation of the log of a run's times."""
    phase_noise: float = 0.01
    """That of the straggler factor's log."""
    block_noise: float = 0.05
    """That of a block's."""
    drift: float = 0.0
    """Added to the log of all times from one block to the next."""
    budget_steps: int = 32 * 2048
    steps_min: float = 10_000
    batch_crit: float = 2048
    steps_noise: float = 0.2
    failed: int = 0
    """Trials of the first cell that failed, besides the others."""

    def sampling_s(self, n: int, batch: int) -> float:
        return self.mean_runner_s(n, batch) * self.load_ratio(n) + self.transfer_s

    def mean_runner_s(self, n: int, batch: int) -> float:
        return self.step_s * batch / n

    def load_ratio(self, n: int) -> float:
        return self.straggler if n > 1 else 1.0

    def learning_s(self, batch: int) -> float:
        return self.serial_s + self.serial_per_step_s * batch

    def sync_time_s(self, n: int) -> float:
        return self.sync_s + self.sync_per_runner_s * n

    def iteration_s(self, n: int, batch: int) -> float:
        return self.sampling_s(n, batch) + self.learning_s(batch) + self.sync_time_s(n) + self.rest_s

    def rate(self, n: int, batch: int) -> float:
        return batch / self.iteration_s(n, batch)

    def speed_up(self, n: int, reference: int, batch: int) -> float:
        return self.iteration_s(reference, batch) / self.iteration_s(n, batch)

    def karp_flatt(self, n: int, reference: int, batch: int) -> float:
        p = n / reference
        return (1 / self.speed_up(n, reference, batch) - 1 / p) / (1 - 1 / p)

    def parallel_log(self, first: tuple[int, int], second: tuple[int, int]) -> float:
        (n1, b1), (n2, b2) = first, second
        return 0.5 * sum(float(np.log(self.rate(n2, batch) / self.rate(n1, batch))) for batch in (b1, b2))

    def batch_log(self, first: tuple[int, int], second: tuple[int, int]) -> float:
        (n1, b1), (n2, b2) = first, second
        return 0.5 * sum(float(np.log(self.rate(n, b2) / self.rate(n, b1))) for n in (n1, n2))

    def steps_to_target(self, batch: int) -> float:
        return self.steps_min * (1 + batch / self.batch_crit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    trial: int
    seed: int
    n: int
    batch: int
    failed: bool
    started: float
    iterations: int
    reached_at: int | None
    """Iteration whose evaluation is the first of two at the target."""
    phases: dict[str, float]
    """Seconds of a mean iteration by metric."""
    jitter: np.ndarray
    """Factor of each timed iteration, mean 1."""


def _simulate(truth: Truth, rng: np.random.Generator) -> Iterator[_Run]:
    block = rng.normal(0, truth.block_noise, truth.blocks) + truth.drift * np.arange(truth.blocks)
    trial, clock = 0, START
    for number in range(truth.blocks):
        cells = [cell for cell in truth.cells for _ in range(truth.repeats)]
        for n, batch in [cells[index] for index in rng.permutation(len(cells))]:
            factor = float(np.exp(block[number] + rng.normal(0, truth.noise)))
            run = _run(truth, rng, trial, number + 1, n, batch, factor, clock)
            yield run
            trial, clock = trial + 1, clock + run.iterations * run.phases["iteration_time_s"] + 5
    for _ in range(truth.failed):
        yield _run(truth, rng, trial, 1, *truth.cells[0], 1.0, clock, failed=True)
        trial, clock = trial + 1, clock + 5


def _run(
    truth: Truth,
    rng: np.random.Generator,
    trial: int,
    seed: int,
    n: int,
    batch: int,
    factor: float,
    clock: float,
    *,
    failed: bool = False,
) -> _Run:
    ratio = max(truth.load_ratio(n) * float(np.exp(rng.normal(0, truth.phase_noise))), 1.0) if n > 1 else 1.0
    mean = truth.mean_runner_s(n, batch)
    phases = {
        "mean_runner_time_s": mean,
        "slowest_runner_time_s": mean * ratio,
        "sampling_time_s": mean * ratio + truth.transfer_s,
        "learning_time_s": truth.learning_s(batch),
        "sync_time_s": truth.sync_time_s(n),
        "rest_time_s": truth.rest_s,
    }
    phases["iteration_time_s"] = sum(list(phases.values())[2:])
    iterations = max(truth.budget_steps // batch, WARMUP_ITERATIONS + 1)
    needed = int(np.ceil(truth.steps_to_target(batch) * np.exp(rng.normal(0, truth.steps_noise)) / batch))
    jitter = np.exp(rng.normal(0, 0.05, iterations - WARMUP_ITERATIONS))
    return _Run(
        trial=trial,
        seed=seed,
        n=n,
        batch=batch,
        failed=failed,
        started=clock,
        iterations=iterations,
        reached_at=needed if needed < iterations and not failed else None,
        phases={name: value * factor for name, value in phases.items()},
        jitter=jitter / jitter.mean(),
    )


def fingerprint(batch: int, **changes: object) -> str:
    """Return a fingerprint as small as one can be."""
    content = {
        "algorithm": "PPO",
        "cpu_model": "Planted CPU",
        "environment": {"id": "CartPole-v1"},
        "execution": "real",
        "lr": LEARNING_RATE,
        "minibatch_times_learners": MINIBATCH,
        "num_envs_per_env_runner": ENVS,
        "num_epochs": EPOCHS,
        "train_batch_size": batch,
    }
    return orjson.dumps(content | changes, option=orjson.OPT_SORT_KEYS).decode()


def planted_runs(truth: Truth, rng: np.random.Generator) -> pd.DataFrame:
    """Return the frame `runs` of a study of that truth, without any file."""
    return as_frame([_row(run) for run in _simulate(truth, rng)])


def _setting(run: _Run) -> dict[str, Any]:
    return {
        "num_env_runners": run.n,
        "train_batch_size": run.batch,
        "minibatch_size": MINIBATCH,
        "num_epochs": EPOCHS,
        "num_envs_per_env_runner": ENVS,
        "lr": LEARNING_RATE,
    }


def _row(run: _Run) -> dict[str, object]:
    timed = run.iterations - WARMUP_ITERATIONS
    row = tables_data.run(
        run.trial,
        batch=run.batch,
        seed=run.seed,
        status="failed" if run.failed else "finished",
        timing="tainted" if run.failed else "measured",
        fingerprint=fingerprint(run.batch),
        runners=run.n,
        **{"study": "planted", "num_cpus": run.n + 1, "started": run.started, **_setting(run)},
    )
    if run.failed:
        return row
    return row | {
        "iterations": run.iterations,
        "timed_iterations": timed,
        "timed_env_steps": timed * run.batch,
        "timed_s": timed * run.phases["iteration_time_s"],
        "env_steps_per_s": run.batch / run.phases["iteration_time_s"],
        "env_steps": run.iterations * run.batch,
        "env_steps_to_target": None if run.reached_at is None else run.reached_at * run.batch,
        "episode_len": EPISODE_LEN,
        **run.phases,
    }


def planted_folder(path: Path, truth: Truth, rng: np.random.Generator, *, name: str = "planted") -> StudyFolder:
    """Write a complete study of that truth: identity and records, as a driver leaves them."""
    space = _space(truth)
    folder = synthetic.make_folder(path, "sqlite:///mlflow.db", space, name=name, space="planted.yaml")
    runs = list(_simulate(truth, rng))
    with RecordLog(folder.records) as log:
        log.append(_opened(truth, len(runs)))
        for run in runs:
            records = list(_trial(run))
            for record in records:
                log.append(record)
            log.append(_ended(run, records, space))
        log.append(synthetic.closed())
    return folder


def _space(truth: Truth) -> StudySpec:
    return spec(
        parameters__num_env_runners=sorted({n for n, _ in truth.cells}),
        parameters__train_batch_size=sorted({batch for _, batch in truth.cells}),
        parameters__lr=LEARNING_RATE,
        parameters__minibatch_size=MINIBATCH,
        parameters__num_epochs=EPOCHS,
        parameters__num_envs_per_env_runner=ENVS,
        search__sampler="grid",
        search__num_trials=None,
        search__seeds=list(range(1, truth.blocks + 1)),
        budget__env_steps=truth.budget_steps,
    )


def _opened(truth: Truth, num_trials: int) -> StudyOpened:
    cpus = max(n for n, _ in truth.cells) + 1
    hardware = {"cpu_model": "Planted CPU", "physical_cpus": cpus, "logical_cpus": cpus}
    return replace(
        synthetic.opened(),
        num_trials=num_trials,
        cluster={"num_cpus": cpus, "nodes": [{"address": "n0", "num_cpus": cpus, "physical_cpus": cpus}]},
        provenance=synthetic.PROVENANCE | hardware,
    )


def _trial(run: _Run) -> Iterator[Record]:
    setting = _setting(run)
    yield replace(synthetic.started(run.trial, runners=run.n), seed=run.seed, setting=setting, proposed={})
    yield replace(
        synthetic.built(run.trial),
        startup_time_s=3.0,
        effective={**setting, "num_learners": 0, "torch_threads_learner": 1},
        processes_per_node={"n0": run.n + 1},
        timing="measured",
        timing_reason="planted",
    )
    if run.failed:
        return
    wall = 0.0
    for number in range(1, run.iterations + 1):
        factor = 3.0 if number <= WARMUP_ITERATIONS else float(run.jitter[number - 1 - WARMUP_ITERATIONS])
        times = {name: value * factor for name, value in run.phases.items()}
        wall += times["iteration_time_s"]
        so_far: dict[str, Any] = {"env_steps": number * run.batch, "wall_time_s": wall}
        yield replace(
            synthetic.iteration(run.trial, number),
            **so_far,
            metrics={
                **times,
                "train_batch_size_actual": run.batch,
                "num_sampling_rounds": 1,
                "num_healthy_env_runners": run.n,
                "num_dropped_samples": 0,
                "num_episodes": run.batch / EPISODE_LEN,
                "episode_len_sum": run.batch,
                "episode_return_sum": run.batch,
                "num_gradient_updates": EPOCHS * run.batch // MINIBATCH,
                "cpu_time_s": times["mean_runner_time_s"] * run.n + times["learning_time_s"],
                "peak_rss_mb": 300.0 * (run.n + 1),
                "cpu_pressure": 0.0,
            },
        )
        reached = run.reached_at is not None and number >= run.reached_at
        returns, progress = [RETURN_AFTER if reached else RETURN_BEFORE], number / run.iterations
        one = synthetic.evaluation(run.trial, number)
        yield replace(one, **so_far, progress=progress, returns=returns, eval_time_s=0.1)


def _ended(run: _Run, records: list[Record], space: StudySpec) -> TrialEnded:
    moment = run.started + run.iterations * run.phases["iteration_time_s"]
    row = synthetic.fold((record, run.started) for record in records).rows[run.trial]
    status = "failed" if run.failed else "finished"
    return replace(
        synthetic.ended(run.trial, status),
        reason="planted" if run.failed else "",
        summary=row.summarise(space, status, moment=moment),
        checkpoint=None,
        timing="tainted" if run.failed else "measured",
        timing_reason="planted",
    )
