"""What a whole study costs over the same trials run by a bare Tuner with no tracking at all.

Each repetition runs two processes, in alternating order: `run_study.py` with records, Optuna and MLflow on, and a bare
`Tuner` over the same trainable with the very settings that the study chose. Both start a private Ray of two CPUs, where
the trials (one runner each) run one after another; both are timed from the start of the process to its end.

    python -m tests.benchmarks.overhead [--repetitions 5] [--trials 4] [--env-steps 40000]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BARE = """
import json, os, sys
os.environ.update(RAY_worker_niceness="0", RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1",
                  RAY_CHDIR_TO_TRIAL_DIR="0", RAY_USAGE_STATS_ENABLED="0")
import ray
from ray import tune
from study.trial.trainable import StudyTrial
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
configs = json.loads(open(sys.argv[1]).read())
space = {key: tune.sample_from(lambda spec, key=key: spec.config["all"][key]) for key in configs[0]}
class Trial(StudyTrial):
    def setup(self, config):
        self.config = config["all"]
        super().setup(self.config)
    @classmethod
    def default_resource_request(cls, config):
        return StudyTrial.default_resource_request(config["all"])
results = tune.Tuner(Trial, param_space={"all": tune.grid_search(configs)}, run_config=tune.RunConfig(
    storage_path=sys.argv[2], name="bare", verbose=0,
    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False))).fit()
assert len(results) == len(configs) and not results.num_errors, results.errors
ray.shutdown()
"""


def study(folder: Path, space: Path, seed: int) -> float:
    """Run the study; return its seconds."""
    command = [sys.executable, str(ROOT / "run_study.py"), "--space", str(space), "--out", str(folder)]
    command += ["--name", "study", "--tracking-uri", f"sqlite:///{folder}/mlflow.db", "--replicate", str(seed)]
    return timed(command, folder)


def bare(folder: Path, configs: list[dict]) -> float:
    """Run the same trials by a bare Tuner; return its seconds."""
    file = folder / "configs.json"
    file.write_text(json.dumps(configs))
    script = folder / "bare.py"
    script.write_text(BARE)
    return timed([sys.executable, str(script), str(file), str(folder)], folder)


def timed(command: list[str], folder: Path) -> float:
    start = time.perf_counter()
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(command, cwd=folder, env=environment(), stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit((folder / "log.txt").read_text())
    return time.perf_counter() - start


def environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def configs_of(folder: Path) -> list[dict]:
    """Return the trainable's configs of the trials that a study ran."""
    from study.records.folder import StudyFolder
    from study.records.records import TrialStarted, read_lines

    place = StudyFolder(folder / "study")
    spec = place.identity().spec
    return [
        {
            "spec": spec,
            "setting": record.setting,
            "seed": record.seed,
            "iterations": record.iterations,
            "execution": record.execution,
            "trial": record.trial,
            "attempt": 1,
        }
        for record in (line.record for line in read_lines(place.records))
        if isinstance(record, TrialStarted)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--env-steps", type=int, default=40_000)
    options = parser.parse_args()
    ratios, studies, bares = [], [], []
    with tempfile.TemporaryDirectory(prefix="overhead-") as base:
        space = Path(base) / "space.yaml"
        space.write_text(Path(__file__).with_name("acrobot.yaml").read_text())
        text = space.read_text().replace("num_env_runners: [1, 2, 4]", "num_env_runners: [1]")
        lines = [
            f"  env_steps: {options.env_steps}" if line.strip().startswith("env_steps:")
            else f"  num_trials: {options.trials}" if line.strip().startswith("num_trials:")
            else line
            for line in text.splitlines()
        ]  # fmt: skip
        space.write_text("\n".join(lines) + "\n")
        first = Path(base) / "warm-up"
        first.mkdir()
        study(first, space, seed=0)  # finds the settings, and fills the file caches of both
        configs = configs_of(first)
        for repetition in range(options.repetitions):
            folder = Path(base) / str(repetition)
            folder.mkdir()
            runs = {"study": lambda f=folder: study(f, space, seed=0), "bare": lambda f=folder: bare(f, configs)}
            order = ["study", "bare"] if repetition % 2 == 0 else ["bare", "study"]
            seconds = {name: runs[name]() for name in order}
            studies.append(seconds["study"])
            bares.append(seconds["bare"])
            ratios.append(seconds["study"] / seconds["bare"])
            print(f"{repetition + 1}: study {seconds['study']:.1f} s, bare {seconds['bare']:.1f} s", flush=True)
    print(
        json.dumps(
            {
                "benchmark": "overhead",
                "trials": options.trials,
                "repetitions": options.repetitions,
                "study_s": round(statistics.median(studies), 1),
                "bare_s": round(statistics.median(bares), 1),
                "ratio_median": round(statistics.median(ratios), 3),
                "ratio_min": round(min(ratios), 3),
                "ratio_max": round(max(ratios), 3),
                "target": 1.05,
            }
        )
    )


if __name__ == "__main__":
    main()
