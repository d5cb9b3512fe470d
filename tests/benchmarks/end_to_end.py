"""Environment steps per second of whole PPO training: this project, stock RLlib, Stable-Baselines3, a single file.

Every column trains the same workload (`tests/benchmarks/peers/workload.py`: batch 4000, minibatch 128, 10 epochs, two
separate 256x256 tanh networks) in a fresh process that is pinned to nothing; each repetition runs all columns, every
second one backwards. Sampling and update count; start-up and the first iteration do not. Ratios are of the columns of
one repetition; Stable-Baselines3 runs in two variants.

    pip install -e '.[benchmarks]'       # Stable-Baselines3; its columns are skipped without it
    python -m tests.benchmarks.end_to_end [--repetitions 5] [--env LunarLander-v3] [--threads 2] [--iterations 6]

Prints each run, the ratios beside their targets, and everything as one last line of JSON.
"""

import argparse
import json
import statistics

from tests.benchmarks.peers import is_installed, training_of
from tests.benchmarks.timing import Run, in_turns, machine, ratios, versions

TWO = {"num_runners": 2}
COLUMNS = {
    "ours_k1": ("ours", {**TWO, "envs_per_runner": 1}, {}),
    "stock_k1": ("stock_rllib", {**TWO, "envs_per_runner": 1}, {}),
    "ours_k8": ("ours", {**TWO, "envs_per_runner": 8}, {}),
    "stock_k8": ("stock_rllib", {**TWO, "envs_per_runner": 8}, {}),
    "sb3_dummy": ("sb3", {"envs_per_runner": 16}, {"vec_env": "dummy"}),
    "sb3_subproc": ("sb3", {"envs_per_runner": 16}, {"vec_env": "subproc"}),
    "single_file": ("single_file", {"envs_per_runner": 16}, {}),
}
"""The peer, its environments, its options."""
PAIRS = {
    ("ours_k1", "stock_k1"): 2.5,
    ("ours_k8", "stock_k8"): 2.2,
    ("ours_k8", "sb3_dummy"): 2.0,
    ("ours_k8", "sb3_subproc"): 2.0,
    ("ours_k8", "single_file"): None,
}
"""Ratios of steps per second, and the least that each should be."""
ALIKE = ("torch_threads", "num_parameters")
"""What is the same for all columns of a fair comparison."""
DISTURBED = 1.5
"""An iteration that takes so many times the median of its run is told, since something else may have had the cores."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="at least 5 for figures that are told")
    parser.add_argument("--env", default="LunarLander-v3", help="flat observations, discrete actions")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of every process that learns")
    parser.add_argument("--iterations", type=int, default=6, help="timed iterations, after one that warms up")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS), metavar="COLUMN")
    options, about = parser.parse_args(), machine()
    doubts: list[str] = []

    def run(name: str, repetition: int) -> Run:
        peer, environments, own = COLUMNS[name]
        asked = {"env_id": options.env, "threads": options.threads, "iterations": options.iterations + 1}
        training = training_of(peer, {**asked, **environments, "seed": repetition}, own)
        seconds, updates = training["seconds"][1:], training["num_gradient_updates"]
        assert len(seconds) == options.iterations, training
        if fallbacks := training["details"].get("fallbacks"):
            doubts.append(f"NOT A FAIR COMPARISON: {name} ran parts of others: {fallbacks}")
        if max(seconds) > DISTURBED * statistics.median(seconds):
            doubts.append(f"NOT A QUIET MACHINE: {name}, repetition {repetition + 1}: iterations took {seconds} s")
        return {
            "steps_per_s": sum(training["env_steps"][1:]) / sum(seconds),
            "updates_per_it": updates / (options.iterations + 1),
            **{each: training[each] for each in ALIKE},
        }

    columns = [name for name in options.columns if is_installed(COLUMNS[name][0])]
    runs = in_turns(columns, options.repetitions, run, shown=("steps_per_s", "updates_per_it", *ALIKE))
    for each in ALIKE:
        values = {name: done[0][each] for name, done in runs.items()}
        if len(set(values.values())) > 1:
            doubts.append(f"NOT A FAIR COMPARISON: {each} must be the same for all columns, got {values}")
    found = ratios(runs, PAIRS, "steps_per_s")
    print("\n".join(doubts))
    asked = {name: getattr(options, name) for name in ("env", "threads", "iterations", "repetitions")}
    packages = versions(("ray", "torch", "gymnasium", "numpy", "box2d", "stable-baselines3"))
    record = {"benchmark": "end_to_end", **asked, "runs": runs, "ratios": found, "doubts": doubts}
    print(json.dumps({**record, **about, "versions": packages}))


if __name__ == "__main__":
    main()
