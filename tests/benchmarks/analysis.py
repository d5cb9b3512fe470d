"""How long `analysis.open` takes on a large study of 100,000 trials, and how much memory.

Records are written as a driver writes them, one JSON line each (`--trials` x `--iterations` iterations, every metric),
without syncing. The measurement is a fresh process: its wall time from the import to the frame of trials,
then to the estimates and the answer, and its largest resident size.

    python -m tests.benchmarks.analysis [--trials 100000] [--iterations 10] [--folder DIR]
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from study.metrics import METRICS
from study.records.records import (
    Iteration,
    Record,
    StudyOpened,
    written_line,
)
from tests import synthetic
from tests.spaces import spec
from tests.values import replace

SCALES = (1, 2, 4, 8, 16, 32, 46)
BATCH = 4000
NUM_SETTINGS = 50
"""Workloads among which the trials are dealt; each is run at every scale on as many seeds as it takes."""
BEGUN = 1_700_000_000.0
NAMES = [name for name, metric in METRICS.items() if metric.grain == "iteration"]
SPEC = spec()


def records(trials: int, iterations: int) -> Iterator[Record]:
    """Yield the records of a study of measured trials, each at one of `SCALES`."""
    rng = random.Random(0)
    provenance = synthetic.PROVENANCE | {"cpu_model": "A CPU", "physical_cpus": 64, "logical_cpus": 64}
    yield StudyOpened(session=1, num_trials=trials, cluster=synthetic.CLUSTER, provenance=provenance)
    for trial in range(trials):
        yield from one_trial(trial, iterations, rng)
    yield synthetic.closed()


def one_trial(trial: int, iterations: int, rng: random.Random) -> Iterator[Record]:
    cell, seed = divmod(trial, len(SCALES))[1], trial // len(SCALES)
    runners, setting_number, block = SCALES[cell], seed % NUM_SETTINGS, seed // NUM_SETTINGS
    setting = {
        "num_env_runners": runners,
        "num_envs_per_env_runner": 4,
        "train_batch_size": BATCH,
        "minibatch_size": 128,
        "num_epochs": 10,
        "lr": 1e-4 * (1 + setting_number),
        "gamma": 0.99,
        "lambda": 0.95,
    }
    begun = synthetic.started(trial, runners=runners)
    yield replace(begun, seed=block, setting=setting, proposed={"lr": setting["lr"]}, iterations=iterations)
    built = synthetic.built(trial)
    yield replace(built, effective=built.effective | setting | {"seed": block}, timing="measured")
    wall = 0.0
    for number in range(1, iterations + 1):
        sampling, learning = 8.0 / runners * rng.uniform(0.95, 1.05), rng.uniform(0.9, 1.1)
        clock = sampling + learning + 0.1
        wall += clock
        metrics: dict[str, float | None] = {name: rng.random() for name in NAMES} | {
            "iteration_time_s": clock,
            "sampling_time_s": sampling,
            "learning_time_s": learning,
            "sync_time_s": 0.05,
            "rest_time_s": 0.05,
            "train_batch_size_actual": BATCH,
            "num_episodes": 8,
            "episode_len_sum": 800,
        }
        yield Iteration(
            trial=trial, attempt=1, iteration=number, env_steps=BATCH * number, wall_time_s=wall, metrics=metrics
        )
    rate = BATCH * iterations / wall
    summary = {"wall_time_s": wall, "env_steps": BATCH * iterations, "env_steps_per_s": rate, "final_return": 100.0}
    summary |= {"score": 0.5, "startup_time_s": 3.0, "cpu_s_reserved": 30.0 * (runners + 1), "cpu_s_spent": wall}
    yield replace(synthetic.ended(trial), summary=summary, checkpoint=None, timing="measured")


def write_records(folder: Path, trials: int, iterations: int) -> Path:
    """Write a study folder."""
    study = synthetic.make_folder(folder / "study", "sqlite:////nowhere.db", name="large")
    with study.records.open("wb", buffering=1 << 22) as file:
        for seq, record in enumerate(records(trials, iterations)):
            file.write(written_line(record, seq=seq, moment=BEGUN + seq / 100))
    return study.path


def measure(source: str) -> dict[str, Any]:
    """Open a study, then compute its estimates and its answer; meant for a process of its own."""
    begun = time.perf_counter()
    import analysis

    study = analysis.open(source)
    trials = len(study.trials)
    opened = time.perf_counter()
    opened_cpu, opened_gb = time.process_time(), peak_gb()
    estimates = len(study.estimates())
    estimated = time.perf_counter()
    sentence = study.answer().sentence
    ended = time.perf_counter()
    return {
        "trials": trials,
        "open_s": round(opened - begun, 2),
        "open_cpu_s": round(opened_cpu, 2),
        "open_peak_gb": opened_gb,
        "estimates": estimates,
        "estimates_s": round(estimated - opened, 2),
        "answer_s": round(ended - estimated, 2),
        "total_s": round(ended - begun, 2),
        "cpu_s": round(time.process_time(), 2),
        "peak_gb": peak_gb(),
        "answer": sentence,
        "problems": list(study.problems),
    }


def peak_gb() -> float:
    """Return the largest resident size of this process so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def in_a_process(source: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.analysis", "--measure", source]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=10, help="of each trial")
    parser.add_argument("--folder", type=Path, help="for what is generated; it is removed")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    with tempfile.TemporaryDirectory(prefix="analysis-", dir=options.folder) as base:
        begun = time.perf_counter()
        path = write_records(Path(base), options.trials, options.iterations)
        found = {
            "written_s": round(time.perf_counter() - begun, 1),
            "file_gb": round((path / "records.jsonl").stat().st_size / 1e9, 2),
            "metric_values": options.trials * options.iterations * len(NAMES),
            **in_a_process(str(path)),
        }
    print(json.dumps({"benchmark": "analysis", "targets": {"total_s": 30, "peak_gb": 4}, **found}))


if __name__ == "__main__":
    main()
