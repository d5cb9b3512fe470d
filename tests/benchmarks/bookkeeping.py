"""What our bookkeeping costs: a study of trivial trials against a bare Tuner over the same, and the driver's CPU alone.

Two measurements:

- `tune`: 1,000 trials that report three times within `--seconds` run under `run_study` (searcher, records, Optuna,
  MLflow on SQLite) and under a bare Tuner, in alternating order, each in a process of its own with as many trials side
  by side (one for each core) and with actors reused. Ratio of the seconds that `Tuner.fit` takes. With several trials
  for each core their first processes, which all start at once, come up more slowly than such short trials end; a study
  then loses the advantage of reuse (Tune gives ended trials' processes to waiting ones and ends those that start).
- `driver`: the searcher and callback over a real conductor and records, without Ray: CPU time of the
  driver for each trial, and its memory, around trials 100, 1,000 and 10,000. Optuna's part is told apart.

    python -m tests.benchmarks.bookkeeping [--trials 1000] [--repetitions 5] [--seconds 1] [--concurrency 2]
"""

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from tests.benchmarks.timing import as_words, in_a_process, in_turns, ratios

RESULTS = 3
SIZES = (100, 1_000, 10_000)
CONTENT: dict[str, Any] = {
    "environment": {"id": "CartPole-v1", "floor": 0, "reference": 500, "target": 450},
    "parameters": {
        "num_env_runners": [1, 2, 4],
        "num_envs_per_env_runner": 2,
        "train_batch_size": {"low": 200, "high": 800, "log": True},
        "lr": {"low": 1e-4, "high": 1e-2, "log": True},
        "minibatch_size": 64,
    },
    "budget": {"env_steps": 1200},
    "search": {"num_trials": 1000, "seeds": [1, 2]},
    "evaluation": {"episodes": 4, "num_evaluations": 1},
    "execution": "emulated",
}


def parsed(num_trials: int, sampler: str) -> Any:
    from study.space.parsing import parse_space
    from study.space.space_file import Source

    search = {**CONTENT["search"], "num_trials": num_trials, "sampler": sampler}
    return parse_space(Source(name="bookkeeping", content={**CONTENT, "search": search}))


# --- under Tune, in a process of its own -------------------------------------------------------------------------


@contextlib.contextmanager
def timed_fit(figures: dict[str, float]):
    """Note how long `Tuner.fit` takes."""
    from ray.tune import Tuner

    original = Tuner.fit

    def fit(self: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(self)
        finally:
            figures["fit_s"] = time.perf_counter() - began

    Tuner.fit = fit
    try:
        yield
    finally:
        Tuner.fit = original


def pretend_cores(count: int) -> None:
    """Let this machine have so many cores: trials that sleep need none."""
    from study.machine import host

    host.num_cores = lambda: count


def ours(folder: Path, options: argparse.Namespace) -> None:
    from study import RunOptions, run_study
    from study.cli.display import PlainDisplay
    from study.trial import trainable
    from tests.benchmarks.trivial import TrivialTrial

    trainable.StudyTrial = TrivialTrial
    run_options = RunOptions(name="study", out=folder, tracking_uri=f"sqlite:///{folder}/mlflow.db")
    result = run_study(parsed(options.trials, "random"), run_options, display=PlainDisplay())
    assert result.closed.reason == "complete"
    assert {row.status for row in result.rows} == {"finished"}
    assert len(result.rows) == options.trials


def bare(folder: Path, options: argparse.Namespace) -> None:
    from ray import tune

    from study.machine.cluster import private_ray
    from tests.benchmarks.trivial import TrivialTrial

    jobs = [{"trial": number, "num_cpus": 1} for number in range(options.trials)]
    with private_ray(num_cpus=options.concurrency):
        del os.environ["TUNE_MAX_PENDING_TRIALS_PG"]  # Tune's own
        results = tune.Tuner(
            TrivialTrial,
            param_space={"job": tune.grid_search(jobs)},
            tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=options.concurrency),
            run_config=tune.RunConfig(
                storage_path=str(folder),
                name="bare",
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        ).fit()
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = ""
    assert len(results) == options.trials
    assert not results.num_errors


def child(options: argparse.Namespace) -> None:
    figures: dict[str, float] = {}
    os.environ.update(TRIVIAL_SECONDS=str(options.seconds), TRIVIAL_RESULTS=str(RESULTS))
    pretend_cores(options.concurrency)
    with tempfile.TemporaryDirectory(prefix="bookkeeping-") as folder, timed_fit(figures):
        {"ours": ours, "bare": bare}[options.child](Path(folder), options)
    print(json.dumps(figures))


def side_by_side(options: argparse.Namespace) -> dict[str, Any]:
    words = as_words(options, "trials", "seconds", "concurrency")

    def run(name: str, _: int) -> dict[str, float]:
        return in_a_process("bookkeeping", "--child", name, *words)

    runs = in_turns(("ours", "bare"), options.repetitions, run, shown=("fit_s",))
    ideal_s = options.trials * options.seconds / options.concurrency
    return {"ideal_s": ideal_s, "runs": runs, "ratios": ratios(runs, {("ours", "bare"): None}, "fit_s")}


# --- the driver alone --------------------------------------------------------------------------------------------


class Meter:
    """Adds up the CPU time spent in some methods of an object."""

    def __init__(self, owner: Any, *names: str) -> None:
        self.spent_s = 0.0
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, original: Any) -> Any:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            began = time.process_time()
            try:
                return original(*arguments, **keywords)
            finally:
                self.spent_s += time.process_time() - began

        return timed


def drive(folder: Path, *, num_trials: int, sampler: str, side_by_side: int = 16) -> dict[str, dict[str, float]]:
    """Run a study without Ray; return milliseconds of CPU for each trial, and memory, before each of `SIZES`."""
    from rich.console import Console

    from study.cli.display import PlainDisplay
    from study.driver.searcher import StudyCallback, StudySearcher, StudyStopper
    from tests.benchmarks.trivial import report
    from tests.driven import Driven
    from tests.spaces import cluster

    session = Driven(folder, parsed(num_trials, sampler), cluster=cluster(local=side_by_side, memory_mb=10**6))
    conductor = session.conductor
    asks = Meter(conductor._proposer, "ask")
    display = PlainDisplay(Console(file=io.StringIO(), width=140))
    searcher = StudySearcher(conductor, lambda started: {"trial": started.trial})
    callback, stopper = StudyCallback(conductor, on_change=display.update), StudyStopper(conductor)
    found, running, ended, mark = {}, deque(), 0, (0.0, 0.0, 0)
    with display.live(conductor):
        while ended < num_trials:
            while len(running) < side_by_side and isinstance(config := searcher.suggest("x"), dict):
                running.append(SimpleNamespace(config=config))
                callback.on_trial_start(0, [], running[-1])
            trial = running.popleft()
            for number in range(1, RESULTS + 1):
                stopper.stop_all()
                callback.on_trial_result(0, [], trial, report(number, RESULTS, trial.config["started"].trial))
            ended += 1
            now = (time.process_time(), asks.spent_s, ended)
            if any(ended == size - min(size // 2, 200) for size in SIZES):
                mark = now
            if ended in SIZES:
                cpu, ask, count = (a - b for a, b in zip(now, mark, strict=True))
                parts = {"ours": cpu - ask, "optuna_ask": ask}
                found[str(ended)] = {f"{name}_ms": round(1000 * part / count, 2) for name, part in parts.items()}
                found[str(ended)]["rss_mb"] = round(psutil.Process().memory_info().rss / 2**20)
    conductor.close()
    session.log.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--child", choices=["ours", "bare"])
    parser.add_argument("--only", choices=["tune", "driver"])
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    figures: dict[str, Any] = {"benchmark": "bookkeeping", "trials": options.trials, "target": 1.05}
    if options.only != "tune":
        for sampler in ("random", "tpe"):
            with tempfile.TemporaryDirectory(prefix="bookkeeping-") as folder:
                figures[f"driver_{sampler}"] = drive(Path(folder), num_trials=max(SIZES), sampler=sampler)
            print(sampler, json.dumps(figures[f"driver_{sampler}"]), flush=True)
    if options.only != "driver":
        figures |= {"seconds": options.seconds, "concurrency": options.concurrency, **side_by_side(options)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
