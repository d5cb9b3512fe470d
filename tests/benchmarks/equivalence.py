"""Does a policy learn from one engine what it learns from another? Two one-sided tests over whole studies.

    python -m tests.benchmarks.equivalence [--seeds 10] [--first-seed 1] [--environments Acrobot-v1 LunarLander-v3]
    python -m tests.benchmarks.equivalence --runners 1024 --first batched+fused --second stock+rllib

Each environment is studied twice by the real command with the same setting and seeds. By default the batched runner is
compared with RLlib's stock runner, both with the fused learner, which is compared with RLlib's to float tolerance
elsewhere. The scores (0 a policy that learnt nothing, 1 a good one) are equivalent when their means differ by less
than the margin with 95 % confidence: two one-sided Welch tests (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987).
With `--runners N` an emulated engine has N runners of one environment, the stock runner N environments in one process;
where the batch holds less than four steps of each it grows to that, and the budget with it.
Runs for half an hour on two cores; no times are compared, so that the machine need not be quiet. The last line is JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

MARGIN, LEVEL = 0.05, 0.05
"""The margin is the tolerance of the first rule of a hold-up study: less than that rule calls a loss."""
ENGINES = {
    "batched+fused": {"runner": "batched", "learner": "fused", "execution": "emulated"},
    "stock+fused": {"runner": "stock", "learner": "fused", "execution": "real"},
    "stock+rllib": {"runner": "stock", "learner": "rllib", "execution": "real"},
}
SPACES: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "environment": {"id": "CartPole-v1", "floor": 20, "reference": 500, "target": 450},
        "parameters": {"train_batch_size": 1024, "minibatch_size": 128, "num_epochs": 6, "lr": 0.001},
        "budget": {"env_steps": 40_000},
    },
    "Acrobot-v1": {
        "environment": {"id": "Acrobot-v1", "floor": -500, "reference": -80, "target": -100},
        "parameters": {
            "train_batch_size": 2048,
            "minibatch_size": 256,
            "num_epochs": 6,
            "lr": 0.001,
            "entropy_coeff": 0.01,
        },
        "budget": {"env_steps": 200_000},
    },
    "LunarLander-v3": {
        "environment": {"id": "LunarLander-v3", "floor": -200, "reference": 250, "target": 200},
        "parameters": {
            "train_batch_size": 4096,
            "minibatch_size": 256,
            "num_epochs": 6,
            "lr": 0.001,
            "gamma": 0.995,
            "lambda": 0.97,
            "entropy_coeff": 0.005,
            "kl_coeff": 0.0,
        },
        "budget": {"env_steps": 600_000},
    },
}
"""Settings at which each environment is learnt within the budget, so that a difference would show."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1, help="for more seeds than an earlier call had")
    parser.add_argument("--environments", nargs="+", choices=list(SPACES), default=list(SPACES))
    parser.add_argument("--first", choices=list(ENGINES), default="batched+fused")
    parser.add_argument("--second", choices=list(ENGINES), default="stock+fused")
    parser.add_argument("--runners", type=int, metavar="N", help="emulated runners; without it one, of 16 environments")
    parser.add_argument("--keep", type=Path, help="folder for the studies; a second call resumes them")
    options = parser.parse_args()
    from tests.benchmarks.timing import about, end_on_sigterm

    end_on_sigterm()
    rows = []
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for environment in options.environments:
            row = _compare(environment, (options.first, options.second), seeds, options.runners, folder)
            rows.append(row)
            print(_sentence(environment, row, options.first, options.second), flush=True)
    record = {"benchmark": "equivalence", "margin": MARGIN, "level": LEVEL, "rows": rows}
    print(json.dumps({**record, **about("ray", "torch", "gymnasium")}))


def _sentence(subject: str, row: dict[str, Any], first: str, second: str) -> str:
    moments = [
        f"{name} {row[name]['mean']:.3f} (sd {row[name]['sd']:.3f}, n={row[name]['n']})" for name in (first, second)
    ]
    low, high = row["interval"]
    found = "equivalent" if row["equivalent"] else "NOT SHOWN"
    return (
        f"{subject}: {', '.join(moments)}; difference {row['difference']:+.3f}, "
        f"90 % interval {low:+.3f} to {high:+.3f}, p={row['p']:.4f}: {found} within {MARGIN}"
    )


def _compare(
    environment: str, engines: tuple[str, str], seeds: list[int], runners: int | None, folder: Path
) -> dict[str, Any]:
    running = {name: _start(_space(environment, name, seeds, runners), environment, name, folder) for name in engines}
    try:
        for name, process in running.items():
            if process.wait():
                sys.exit(f"{folder}/{environment}-{name}.log: the study must end well, it did not.")
    finally:
        for process in running.values():
            process.terminate()
            process.wait()
    studies = {name: folder / "studies" / f"{environment}-{name.replace('+', '-')}" for name in engines}
    test = equivalence(*(pd.read_csv(study / "trials.csv")["score"].to_list() for study in studies.values()))
    return {"environment": environment, **dict(zip(engines, test.pop("samples"), strict=True)), **test}


def _space(environment: str, engine: str, seeds: list[int], runners: int | None) -> dict[str, Any]:
    space, stack = SPACES[environment], ENGINES[engine]
    scale = {"num_env_runners": 1, "num_envs_per_env_runner": 16}
    parameters, budget = space["parameters"], space["budget"]
    if runners is not None:
        emulated = stack["execution"] == "emulated"
        scale = {"num_env_runners": runners if emulated else 1, "num_envs_per_env_runner": 1 if emulated else runners}
        batch = max(parameters["train_batch_size"], 4 * runners)
        budget = {"env_steps": budget["env_steps"] * batch // parameters["train_batch_size"]}
        parameters = {**parameters, "train_batch_size": batch}
    return {
        **space,
        **stack,
        "parameters": {**scale, **parameters},
        "budget": budget,
        "search": {"sampler": "grid", "seeds": seeds},
        "evaluation": {"episodes": 50, "num_evaluations": 10},
    }


def _start(content: dict[str, Any], environment: str, engine: str, folder: Path) -> "subprocess.Popen[bytes]":
    name = engine.replace("+", "-")
    file = folder / f"{environment}-{name}.yaml"
    file.write_text(json.dumps(content))  # JSON is YAML
    command = [sys.executable, "run_study.py", "--space", str(file), "--out", str(folder / "studies")]
    command += ["--name", f"{environment}-{name}", "--tracking-uri", f"sqlite:///{folder}/{environment}-{name}.db"]
    with (folder / f"{environment}-{name}.log").open("ab") as log:
        return subprocess.Popen([*command, "--resume-or-start"], stdout=log, stderr=subprocess.STDOUT)


def equivalence(first: list[float], second: list[float]) -> dict[str, Any]:
    """Return both samples' moments, their difference with its 90 % interval, and the larger of the two p values."""
    import numpy as np
    from scipy import stats

    lower = stats.ttest_ind(np.array(first) + MARGIN, second, equal_var=False, alternative="greater").pvalue
    upper = stats.ttest_ind(np.array(first) - MARGIN, second, equal_var=False, alternative="less").pvalue
    interval = stats.ttest_ind(first, second, equal_var=False).confidence_interval(1 - 2 * LEVEL)
    p = float(max(lower, upper))
    return {
        "samples": [
            {"mean": float(np.mean(each)), "sd": float(np.std(each, ddof=1)), "n": len(each), "scores": each}
            for each in (first, second)
        ],
        "difference": float(np.mean(first) - np.mean(second)),
        "interval": [float(interval.low), float(interval.high)],
        "p": p,
        "equivalent": p < LEVEL,
    }


if __name__ == "__main__":
    main()
