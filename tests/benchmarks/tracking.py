"""Time that bookkeeping takes in Tune's event loop for each reported result: ours against Ray's MLflow callback.

Ours: everything that the study does inside the loop (searcher, stopper, records; MLflow is on, in its own process).
Theirs: `MLflowLoggerCallback` on a Tuner over RLlib's PPO, same environment, same MLflow backend. The two alternate in
one run; every result is one sample.

    python -m tests.benchmarks.tracking [--blocks 3] [--iterations 8]
"""

import argparse
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"


class Stopwatch:
    """Adds up the seconds spent in wrapped methods, and cuts the sum at each result."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._sum = 0.0

    def wrap(self, owner: type, name: str, *, ends_sample: bool = False) -> Callable[[], None]:
        """Time `owner.name`; return a function that puts the original back."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*arguments, **keywords)
            finally:
                self._sum += time.perf_counter() - start
                if ends_sample:
                    self.samples.append(self._sum)
                    self._sum = 0.0

        setattr(owner, name, timed)
        return lambda: setattr(owner, name, original)


def ours(folder: Path, iterations: int, watch: Stopwatch) -> None:
    from study import RunOptions, run_study
    from study.cli.display import PlainDisplay
    from study.driver import searcher
    from study.space.parsing import parse_space
    from study.space.space_file import Source

    spec = parse_space(
        Source(
            name="benchmark",
            content={
                "environment": {"id": "CartPole-v1", "floor": 0, "reference": 500, "target": 450},
                "parameters": {"num_env_runners": 1, "train_batch_size": 1000, "lr": {"low": 1e-4, "high": 1e-3}},
                "budget": {"iterations": iterations},
                "search": {"num_trials": 2},
                "evaluation": {"episodes": 5, "num_evaluations": 2},
            },
        )
    )
    restore = [
        watch.wrap(searcher.StudySearcher, "suggest"),
        watch.wrap(searcher.StudySearcher, "on_trial_complete"),
        watch.wrap(searcher.StudyStopper, "stop_all"),
        watch.wrap(searcher.StudyCallback, "on_trial_start"),
        watch.wrap(searcher.StudyCallback, "on_trial_result", ends_sample=True),
    ]
    options = RunOptions(name="ours", out=folder, tracking_uri=f"sqlite:///{folder}/ours.db", address="local")
    run_study(spec, options, display=PlainDisplay())
    for undo in restore:
        undo()


def theirs(folder: Path, iterations: int, watch: Stopwatch) -> None:
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.rllib.algorithms.ppo import PPOConfig

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    restore = [
        watch.wrap(MLflowLoggerCallback, "log_trial_start"),
        watch.wrap(MLflowLoggerCallback, "log_trial_result", ends_sample=True),
    ]
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=1000, minibatch_size=256, num_epochs=10)
    )
    tune.Tuner(
        "PPO",
        param_space=config,
        tune_config=tune.TuneConfig(num_samples=2),
        run_config=tune.RunConfig(
            storage_path=str(folder),
            name="theirs",
            stop={"training_iteration": iterations},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[MLflowLoggerCallback(tracking_uri=f"sqlite:///{folder}/theirs.db", experiment_name="theirs")],
            verbose=0,
        ),
    ).fit()
    ray.shutdown()
    for undo in restore:
        undo()


def milliseconds(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    return {
        "median_ms": round(1000 * statistics.median(ordered), 3),
        "p95_ms": round(1000 * ordered[int(0.95 * (len(ordered) - 1))], 3),
        "results": len(ordered),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=8)
    options = parser.parse_args()
    mine, rays = Stopwatch(), Stopwatch()
    with tempfile.TemporaryDirectory(prefix="tracking-") as base:
        for block in range(options.blocks):
            folder = Path(base) / str(block)
            folder.mkdir()
            runs = [(ours, mine), (theirs, rays)]
            for run, watch in runs if block % 2 == 0 else runs[::-1]:
                run(folder, options.iterations, watch)
    result = {
        "benchmark": "tracking",
        "blocks": options.blocks,
        "ours": milliseconds(mine.samples),
        "ray_mlflow_callback": milliseconds(rays.samples),
        "ratio_of_medians": round(statistics.median(rays.samples) / statistics.median(mine.samples), 1),
        "target_median_ms": 5.0,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
