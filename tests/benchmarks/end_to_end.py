"""Environment steps per second of whole PPO training: this project, stock RLlib, Stable-Baselines3, a single file.

Every column trains the same workload (`tests/benchmarks/peers/workload.py`: batch 4000, minibatch 128, 10 epochs, two
separate 256x256 tanh networks) in a fresh process that is pinned to nothing; each repetition runs all columns, every
second one backwards. Sampling and update count; start-up and the first iteration do not. Ratios are of the columns of
one repetition.

    pip install -e '.[benchmarks]'       # Stable-Baselines3; its columns are skipped without it
    python -m tests.benchmarks.end_to_end [--repetitions 5] [--env LunarLander-v3] [--threads 2] [--iterations 6]

Prints a table, the ratios beside their targets, and everything as one last line of JSON.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks import timing
from tests.benchmarks.peers import REQUIRED_MODULE
from tests.benchmarks.peers.workload import Workload
from tests.benchmarks.timing import Spread

VERSIONS = ("ray", "torch", "gymnasium", "numpy", "box2d", "stable-baselines3")

VARIED = ("env_id", "num_runners", "envs_per_runner", "threads", "iterations", "seed")
"""Fields of a workload that the options, the column or the repetition set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One way of training the workload."""

    key: str
    label: str
    peer: str
    """Module of `tests.benchmarks.peers`."""
    num_runners: int = 1
    envs_per_runner: int
    options: Mapping[str, Any] = field(default_factory=dict)


COLUMNS = (
    Column(key="ours_k1", label="ours, 2 runners x 1 env", peer="ours", num_runners=2, envs_per_runner=1),
    Column(key="stock_k1", label="RLlib PPO, 2 runners x 1 env", peer="stock_rllib", num_runners=2, envs_per_runner=1),
    Column(key="ours_k8", label="ours, 2 runners x 8 envs", peer="ours", num_runners=2, envs_per_runner=8),
    Column(key="stock_k8", label="RLlib PPO, 2 runners x 8 envs", peer="stock_rllib", num_runners=2, envs_per_runner=8),
    Column(
        key="sb3_dummy",
        label="SB3 PPO, DummyVecEnv, 16 envs",
        peer="sb3",
        envs_per_runner=16,
        options={"vec_env": "dummy"},
    ),
    Column(
        key="sb3_subproc",
        label="SB3 PPO, SubprocVecEnv, 16 envs",
        peer="sb3",
        envs_per_runner=16,
        options={"vec_env": "subproc"},
    ),
    Column(
        key="single_file",
        label="CleanRL-style single file (own re-implementation), 16 envs",
        peer="single_file",
        envs_per_runner=16,
    ),
)
DISTURBED = 1.5
"""An iteration that takes so many times the median of its run is told, since something else may have had the cores."""
SB3 = ("sb3_dummy", "sb3_subproc")
"""The faster of these is what Stable-Baselines3 is compared by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A ratio of steps per second, and the least that it should be."""

    column: str
    base: str
    target: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One column of one repetition, without its warm-up iteration."""

    env_steps: tuple[int, ...]
    """Shape (iterations,)."""
    seconds: tuple[float, ...]
    """Shape (iterations,)."""
    torch_threads: int
    """Of the process that learns, asked there."""
    num_parameters: int
    gradient_updates_per_iteration: float
    details: dict[str, Any]

    @property
    def steps_per_s(self) -> float:
        return sum(self.env_steps) / sum(self.seconds)


Runs = dict[str, list[Run]]
"""Column -> its runs, in the order of the repetitions."""


def run(column: Column, options: argparse.Namespace, repetition: int) -> Run:
    workload = Workload(
        env_id=options.env,
        num_runners=column.num_runners,
        envs_per_runner=column.envs_per_runner,
        threads=options.threads,
        iterations=options.iterations + 1,
        seed=repetition,
    )
    order = {"peer": column.peer, "workload": asdict(workload), "options": dict(column.options)}
    with tempfile.TemporaryDirectory(prefix="end-to-end-") as home:
        command = [sys.executable, "-m", "tests.benchmarks.peers", json.dumps(order)]
        training = json.loads(timing.last_line_of(command, home=Path(home)))
    if len(training["seconds"]) != workload.iterations:
        sys.exit(f"{column.key}: must train {workload.iterations} iterations, got {len(training['seconds'])}.")
    return Run(
        env_steps=tuple(training["env_steps"][1:]),
        seconds=tuple(training["seconds"][1:]),
        torch_threads=training["torch_threads"],
        num_parameters=training["num_parameters"],
        gradient_updates_per_iteration=round(training["num_gradient_updates"] / workload.iterations, 1),
        details=training["details"],
    )


def available(columns: Sequence[Column]) -> list[Column]:
    """Return the columns whose library is installed, and say which are not."""
    missing = [column for column in columns if importlib.util.find_spec(REQUIRED_MODULE[column.peer]) is None]
    for column in missing:
        module = REQUIRED_MODULE[column.peer]
        print(f"{column.key}: skipped, {module} is not installed. Fix: pip install -e '.[benchmarks]'")
    return [column for column in columns if column not in missing]


def faster_sb3(runs: Runs) -> str:
    """Return the Stable-Baselines3 column with the higher median."""
    medians = {key: statistics.median(run.steps_per_s for run in runs[key]) for key in SB3 if runs.get(key)}
    return max(medians, key=lambda key: medians[key], default=SB3[0])


def comparisons(sb3: str) -> tuple[Comparison, ...]:
    return (
        Comparison(column="ours_k1", base="stock_k1", target=2.5),
        Comparison(column="ours_k8", base="stock_k8", target=2.2),
        Comparison(column="ours_k8", base=sb3, target=2.0),
        Comparison(column="ours_k8", base="single_file", target=None),
    )


def ratio(comparison: Comparison, runs: Runs) -> Spread | None:
    """Return the spread of the ratio over paired repetitions; None where a column did not run."""
    pairs = zip(runs.get(comparison.column, ()), runs.get(comparison.base, ()), strict=False)
    ratios = [ours.steps_per_s / base.steps_per_s for ours, base in pairs]
    return Spread.of(ratios, digits=3) if ratios else None


def unequal(runs: Runs) -> list[str]:
    """Return a line for each law of a fair comparison that does not hold."""
    every = {key: run for key, (run, *_) in runs.items()}
    lines = []
    for name in ("torch_threads", "num_parameters"):
        values = {key: getattr(run, name) for key, run in every.items()}
        if len(set(values.values())) > 1:
            lines.append(f"{name} must be the same for all columns, got {values}")
    for key, run in every.items():
        if fallbacks := run.details.get("fallbacks"):
            lines.append(f"{key} must run this project's own parts, got {'; '.join(fallbacks)}")
    return lines


def disturbed(runs: Runs) -> list[str]:
    """Return a line for each run with an iteration far slower than its others: something else had the machine."""
    return [
        f"{key}, repetition {number}: an iteration took {max(run.seconds):.1f} s, their median is "
        f"{statistics.median(run.seconds):.1f} s"
        for key, done in runs.items()
        for number, run in enumerate(done, start=1)
        if max(run.seconds) > DISTURBED * statistics.median(run.seconds)
    ]


def show(runs: Runs, columns: Sequence[Column], sb3: str) -> None:
    print(f"\n{'':<60}{'steps/s':>9}{'min':>8}{'max':>8}{'threads':>9}{'updates/it':>12}")
    for column in columns:
        if not (done := runs.get(column.key)):
            print(f"{column.label:<60}{'-':>9}")
            continue
        spread = Spread.of((run.steps_per_s for run in done), digits=0)
        print(
            f"{column.label:<60}{spread.median:>9,.0f}{spread.min:>8,.0f}{spread.max:>8,.0f}"
            f"{done[0].torch_threads:>9}{done[0].gradient_updates_per_iteration:>12.1f}"
        )
    print(f"\n{'ratio':<60}{'median':>9}{'min':>8}{'max':>8}{'target':>9}")
    for comparison in comparisons(sb3):
        name, found = f"{comparison.column} / {comparison.base}", ratio(comparison, runs)
        target = f">= {comparison.target:g}" if comparison.target else ""
        if found is None:
            print(f"{name:<60}{'-':>9}{'':>16}{target:>9}")
        else:
            print(f"{name:<60}{found.median:>9.2f}{found.min:>8.2f}{found.max:>8.2f}{target:>9}")
    if runs.get(sb3):
        print(f"Stable-Baselines3 is compared by its faster variant, {sb3}.")


def result(runs: Runs, options: argparse.Namespace, sb3: str, machine: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": "end_to_end",
        "env": options.env,
        "repetitions": options.repetitions,
        "iterations": options.iterations,
        "threads": options.threads,
        "hyperparameters": {name: value for name, value in asdict(Workload()).items() if name not in VARIED},
        "columns": {column.key: _column(column, runs.get(column.key, [])) for column in COLUMNS},
        "sb3_compared": sb3 if runs.get(sb3) else None,
        "ratios": {
            f"{comparison.column}/{comparison.base}": {
                "target": comparison.target,
                **(asdict(spread) if (spread := ratio(comparison, runs)) else {"median": None}),
            }
            for comparison in comparisons(sb3)
        },
        "unequal": unequal(runs),
        "disturbed": disturbed(runs),
        "versions": timing.versions(VERSIONS),
        **machine,
    }


def _column(column: Column, runs: Sequence[Run]) -> dict[str, Any] | None:
    if not runs:
        return None
    return {
        "label": column.label,
        "num_runners": column.num_runners,
        "envs_per_runner": column.envs_per_runner,
        "steps_per_s": asdict(Spread.of((run.steps_per_s for run in runs), digits=1)),
        "torch_threads": runs[0].torch_threads,
        "num_parameters": runs[0].num_parameters,
        "gradient_updates_per_iteration": runs[0].gradient_updates_per_iteration,
        "details": runs[0].details,
        "runs": [
            {
                "steps_per_s": round(run.steps_per_s, 1),
                "env_steps": run.env_steps,
                "seconds": [round(second, 4) for second in run.seconds],
            }
            for run in runs
        ],
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="at least 5 for figures that are told")
    parser.add_argument("--env", default="LunarLander-v3", help="flat observations, discrete actions")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of every process that learns")
    parser.add_argument("--iterations", type=int, default=6, help="timed iterations, after one that warms up")
    keys = [column.key for column in COLUMNS]
    parser.add_argument("--columns", nargs="+", choices=keys, default=keys, metavar="COLUMN", help=", ".join(keys))
    options = parser.parse_args()
    for name in ("repetitions", "threads", "iterations"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}.")
    return options


def main() -> None:
    options = parse_options()
    timing.end_on_sigterm()
    machine = timing.machine()
    print(f"{machine['cpu_model']}, {machine['num_cpus']} cores, load {machine['load_1min_before']} before")
    chosen = [column for column in COLUMNS if column.key in options.columns]
    columns = available(chosen)
    runs: Runs = {column.key: [] for column in columns}
    for repetition in range(options.repetitions):
        for column in timing.alternated(columns, repetition):
            done = run(column, options, repetition)
            runs[column.key].append(done)
            print(f"{repetition + 1}: {column.label}: {done.steps_per_s:,.0f} steps/s", flush=True)
    sb3 = faster_sb3(runs)
    show(runs, chosen, sb3)
    for line in unequal(runs):
        print(f"NOT A FAIR COMPARISON: {line}")
    for line in disturbed(runs):
        print(f"NOT A QUIET MACHINE: {line}")
    print(json.dumps(result(runs, options, sb3, machine)))


if __name__ == "__main__":
    main()
