"""What others publish of PPO beside what this program gets of the same settings, by its own engine and by RLlib's.

    python -m tests.benchmarks.published [--environment CartPole-v1] [--source cleanrl] [--seeds 10]
    python -m tests.benchmarks.published --engine fused --keep published_studies
    python -m tests.benchmarks.published --list

Each published setting (`study/space/published`) is a study by the real command, at the published budget: `fused`, the
batched runner and the fused learner; `hosted`, RLlib's own runners in one process and RLlib's own learner, but for the
environments of EnvPool. A return is taken as the source takes it: greedy episodes of the trained policy, or the last
episodes of the training. Studies stay in the folder `--keep`; a second call goes on where the first was stopped.

Intervals are 95 % intervals of the mean over seeds (Student's t). Where the published spread is of several seeds, the
difference has Welch's interval. Where it is of the episodes of one agent, or is not published, our spread of seeds
stands for theirs: one agent is one draw of it. A row agrees where the published return lies in our interval or below
our mean. The last line is JSON. Settings that need what this program has not are named and not run.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field

from study.records.records import Iteration, read_lines
from study.space import published as files
from study.space.domains import Section
from study.space.parameters import Value

ENGINES = {"fused": {"runner": "batched", "learner": "fused"}, "hosted": {"runner": "stock", "learner": "rllib"}}
LEVEL = 0.95
GLANCE = {"episodes": 20, "num_evaluations": 1}
"""Evaluation where the published return is of the training."""


class EvaluationSource(Section):
    """What a published return is the mean of: one of the three."""

    episodes: int | None = None
    """Greedy episodes of the trained policy."""
    training_episodes: int | None = None
    """The last episodes of the training."""
    training_steps: int | None = None
    """The episodes that ended in so many last steps of the training."""


class Published(Section):
    """A setting of PPO for one environment, in the parameters of this program, and the return published for it."""

    source: str
    project: str
    """Repository on GitHub."""
    version: str
    """Commit."""
    files: list[str]
    """Where setting and return stand."""
    parameters: dict[str, Value]
    """All but the runners and their environments."""
    model: dict[str, Any]
    """Its network, as the section `model` of a space; a baseline has the network of the space."""
    environment: dict[str, Any] = Field({})
    """Other keys of the section `environment` by which it runs here."""
    num_envs: int
    """Environments in which it was published. Its batch is the same in any other number."""
    env_steps: int
    """Budget."""
    evaluation: EvaluationSource
    mean: float
    sd: float | None = None
    """Standard deviation, where it is published."""
    n: int
    """Of what `over` says."""
    over: Literal["episodes", "seeds"]
    """What `sd` and `n` are of: episodes of one agent, or seeds."""
    lacks: str = ""
    """What this program cannot do of it: no study can have it as a baseline."""
    differs: str = ""
    """What else is not the same here."""


def published() -> Mapping[str, Mapping[str, Published]]:
    """Return source -> environment -> what it publishes."""
    entries = files.published().items()
    return {source: {name: Published(**entry) for name, entry in here.items()} for source, here in entries}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", action="append", help="may be repeated; without it all")
    parser.add_argument("--source", action="append", choices=list(published()), help="may be repeated; without it all")
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="may be repeated; without it both")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--keep", type=Path, default=Path("published_studies"), help="folder of the studies")
    parser.add_argument("--list", action="store_true", help="print the settings and run nothing")
    options = parser.parse_args()
    chosen = [
        (environment, entry)
        for source, entries in published().items()
        for environment, entry in entries.items()
        if source in (options.source or published()) and environment in (options.environment or entries)
    ]
    if options.seeds < 2:
        parser.error("--seeds must be 2 or more: one has no interval")
    if not chosen:
        parser.error("nothing is published for it; --list prints what there is")
    if options.list:
        for environment, entry in chosen:
            print(
                f"{_name(entry, environment)}: {entry.mean} {_spread(entry)}; {entry.env_steps:,} steps{_lacks(entry)}"
            )
        return
    from tests.benchmarks.timing import about, end_on_sigterm

    end_on_sigterm()
    rows = []
    print("| source, environment | published | engine | here | ours less theirs | agrees | CPU-hours |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for environment, entry in chosen:
        if entry.lacks:
            print(f"{_name(entry, environment)}: not run{_lacks(entry)}", flush=True)
        for engine in [engine for engine in engines_of(entry) if engine in (options.engine or ENGINES)]:
            folder = _run(environment, entry, engine, options.seeds, options.keep.resolve())
            rows.append(_row(environment, entry, engine, folder))
            print(_line(rows[-1]), flush=True)
    for words in dict.fromkeys(
        f"{row['source']} {row['environment']}: {row['differs']}." for row in rows if row["differs"]
    ):
        print(words)
    record = {"benchmark": "published", "rows": rows, "cpu_hours": sum(row["cpu_hours"] for row in rows)}
    print(json.dumps({**record, **about("ray", "torch", "jax", "gymnasium", "envpool")}))


def engines_of(entry: Published) -> list[str]:
    """Return the engines that can run a published setting: RLlib's own runners have no EnvPool."""
    compiled = entry.environment.get("backend") == "envpool"
    return [engine for engine in ENGINES if not entry.lacks and not (compiled and engine == "hosted")]


def _name(entry: Published, environment: str) -> str:
    return f"{entry.source} {environment}"


def _lacks(entry: Published) -> str:
    return f"; this program has no {entry.lacks}" if entry.lacks else ""


def _spread(entry: Published) -> str:
    of = "episodes of one agent" if entry.over == "episodes" else "seeds"
    return f"(n={entry.n} {of})" if entry.sd is None else f"(sd {entry.sd:g}, n={entry.n} {of})"


def space(environment: str, entry: Published, engine: str, num_seeds: int) -> dict[str, Any]:
    """Return the space that trains a published setting on seeds 1, 2, …, all its environments in one runner."""
    episodes = entry.evaluation.episodes
    return {
        "description": f"{entry.project} at {entry.version}: {environment}",
        "environment": {"id": environment, **entry.environment},
        "parameters": {"num_env_runners": 1, "num_envs_per_env_runner": entry.num_envs, **entry.parameters},
        "model": entry.model,
        **ENGINES[engine],
        "execution": "emulated",
        "budget": {"env_steps": entry.env_steps},
        "search": {"sampler": "grid", "seeds": list(range(1, num_seeds + 1))},
        "evaluation": {"episodes": episodes, "num_evaluations": 1} if episodes else GLANCE,
    }


def _run(environment: str, entry: Published, engine: str, num_seeds: int, keep: Path) -> Path:
    """Run, or finish, the study of a published setting; return its folder."""
    name = f"{entry.source}-{environment}-{engine}-{num_seeds}"
    keep.mkdir(parents=True, exist_ok=True)
    file = keep / f"{name}.yaml"
    file.write_text(json.dumps(space(environment, entry, engine, num_seeds)))  # JSON is YAML
    command = [sys.executable, "run_study.py", "--space", str(file), "--out", str(keep / "studies"), "--name", name]
    command += ["--tracking-uri", f"sqlite:///{keep}/{name}.db", "--resume-or-start"]
    with (keep / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            if process.wait():
                sys.exit(f"{keep}/{name}.log: the study must end well, it did not.")
        finally:
            process.terminate()
            process.wait()
    return keep / "studies" / name


def returns_of(study: Path, entry: Published) -> list[float]:
    """Return the return of each seed, taken as the source takes it."""
    if entry.evaluation.episodes:
        return pd.read_csv(study / "trials.csv")["final_return"].to_list()
    trained: dict[int, list[Iteration]] = defaultdict(list)
    for line in read_lines(study / "records.jsonl"):
        if isinstance(record := line.record, Iteration):
            known = trained[record.trial]
            if known and known[-1].attempt != record.attempt:
                known.clear()
            known.append(record)
    return [_of_training(iterations, entry) for iterations in trained.values()]


def _of_training(iterations: Sequence[Iteration], entry: Published) -> float:
    """Return the mean return of the last episodes of a training."""
    total, episodes, end = 0.0, 0.0, iterations[-1].env_steps
    for each in reversed(iterations):
        total += each.metrics.get("episode_return_sum") or 0.0
        episodes += each.metrics.get("num_episodes") or 0.0
        if entry.evaluation.training_steps is None:
            enough = episodes >= (entry.evaluation.training_episodes or 0)
        else:
            enough = end - each.env_steps >= entry.evaluation.training_steps
        if enough and episodes:
            break
    return total / episodes if episodes else math.nan


def _row(environment: str, entry: Published, engine: str, study: Path) -> dict[str, Any]:
    trials = pd.read_csv(study / "trials.csv")
    return {
        "source": entry.source,
        "environment": environment,
        "engine": engine,
        "published": entry.mean,
        "spread": _spread(entry),
        **compare(returns_of(study, entry), entry),
        "failed": int((trials["status"] != "finished").sum()),
        "cpu_hours": float(trials["cpu_s_spent"].sum()) / 3600,
        "differs": entry.differs,
    }


def compare(returns: Sequence[float], entry: Published) -> dict[str, Any]:
    """Return our mean with its interval, and ours less the published one with its interval; two seeds at the least."""
    import numpy as np
    from scipy import stats

    n, mean, sd = len(returns), float(np.mean(returns)), float(np.std(returns, ddof=1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * sd / math.sqrt(n)
    if entry.over == "seeds" and entry.sd is not None:
        own, other = sd**2 / n, entry.sd**2 / entry.n
        freedom = (own + other) ** 2 / (own**2 / (n - 1) + other**2 / (entry.n - 1)) if own + other else n - 1
        error = math.sqrt(own + other)
    else:
        error, freedom = sd * math.sqrt(1 / n + 1 / (entry.n if entry.over == "seeds" else 1)), n - 1
    wide = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    difference = mean - entry.mean
    return {
        "returns": list(returns),
        "mean": mean,
        "interval": [mean - half, mean + half],
        "difference": difference,
        "difference_interval": [difference - wide, difference + wide],
        "agrees": mean + half >= entry.mean,
    }


def _line(row: Mapping[str, Any]) -> str:
    (low, high), (least, most) = row["interval"], row["difference_interval"]
    failed = f", {row['failed']} failed" if row["failed"] else ""
    words = [
        f"{row['source']} {row['environment']}",
        f"{row['published']:g} {row['spread']}",
        row["engine"],
        f"{row['mean']:.2f} ({low:.2f} to {high:.2f}, n={len(row['returns'])}{failed})",
        f"{row['difference']:+.2f} ({least:+.2f} to {most:+.2f})",
        "yes" if row["agrees"] else "no",
        f"{row['cpu_hours']:.3f}",
    ]
    return f"| {' | '.join(words)} |"


if __name__ == "__main__":
    main()
