"""How long a trial takes to start, beside RLlib's stock PPO with as many runners.

    python -m tests.benchmarks.startup [--repetitions 5] [--runners 1 4]

Each repetition starts all of them, in alternating order, in a fresh actor of a private Ray: `stock` is a plain
`PPOConfig` with `build_algo`; `real` is what a trial of a study does, its probe, checks and records included;
`emulated` is the same with all lanes in the main process. The time goes from the request for the actor to the moment
when the first iteration could begin, with every runner up. The stock is given a seed, as a trial has one. The last
line is JSON.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

KINDS = ("stock", "real", "emulated")
PHASES = ("process", "import", "prepare", "runners", "learner", "rest")
"""Process and placement; imports of the main process; up to the runners' creation; until they are up; the learner;
what is left. In seconds of wall clock, and they add up to the total."""


class Start:
    """Starts one algorithm in a process of its own. The only actor here, and it is pickled by value."""

    def stock(self, num_runners: int, seed: int | None) -> dict[str, Any]:
        laps = Laps()
        from ray.rllib.algorithms.ppo import PPOConfig

        laps.end("import")
        laps.watch()
        config = PPOConfig().environment("Acrobot-v1").debugging(seed=seed, log_level="ERROR")
        config.env_runners(num_env_runners=num_runners, num_envs_per_env_runner=8)
        algorithm = config.build_algo()
        return laps.result(algorithm)

    def real(self, num_runners: int, spec: dict[str, Any]) -> dict[str, Any]:
        return self._trial(num_runners, spec, "real")

    def emulated(self, num_runners: int, spec: dict[str, Any]) -> dict[str, Any]:
        return self._trial(num_runners, spec, "emulated")

    def _trial(self, num_runners: int, spec: dict[str, Any], execution: str) -> dict[str, Any]:
        laps = Laps()
        os.environ["OMP_NUM_THREADS"] = "1"  # as `StudyTrial.setup` does
        from study.trial.trainable import StudyTrial

        config = {
            "spec": spec,
            "setting": {**_fixed(spec), "num_env_runners": num_runners},
            "seed": 1,
            "iterations": None,
            "execution": execution,
            "trial": 0,
            "attempt": 1,
        }
        StudyTrial.default_resource_request(config)
        from study.trial.messages import TrialConfig
        from study.trial.run import TrialRun

        laps.end("import")
        laps.watch()
        run = TrialRun(TrialConfig.unpacked(config), started_s=time.perf_counter())
        return laps.result(run._algorithm)


class Laps:
    """Wall-clock time of every phase in the main process."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.started_s = self._last_s = time.perf_counter()

    def end(self, phase: str) -> None:
        """Add the time since the previous end to a phase."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last_s
        self._last_s = now

    def watch(self) -> None:
        """Let RLlib's own steps end the phases."""
        from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
        from ray.rllib.env.env_runner_group import EnvRunnerGroup

        self._around(EnvRunnerGroup, "__init__", before="prepare", after="runners")
        self._around(AlgorithmConfig, "build_learner_group", before="rest", after="learner")

    def _around(self, owner: type, name: str, *, before: str, after: str) -> None:
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.end(before)
            try:
                return original(*args, **kwargs)
            finally:
                self.end(after)

        setattr(owner, name, timed)

    def result(self, algorithm: Any) -> dict[str, Any]:
        """Return times, CPU seconds and peak memory, and stop the algorithm."""
        self.end("rest")
        total_s = time.perf_counter() - self.started_s

        def used(_: Any = None) -> tuple[float, float]:
            import resource
            import time

            return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        main = used()
        runners = algorithm.env_runner_group.foreach_env_runner(used, local_env_runner=False)
        algorithm.stop()
        return {
            "phases": self.seconds,
            "inside_s": total_s,
            "cpu_main_s": main[0],
            "cpu_runners_s": sum(cpu for cpu, _ in runners),
            "rss_main_mib": main[1],
            "rss_runner_mib": max((rss for _, rss in runners), default=0.0),
        }


def _fixed(spec: dict[str, Any]) -> dict[str, Any]:
    from study.space.spec import StudySpec

    return {**StudySpec.model_validate(spec).fixed, "train_batch_size": 1024, "lr": 1e-3}


def measure(kind: str, num_runners: int, argument: Any) -> dict[str, Any]:
    """Start one algorithm in a new placement group, as Tune would; return its phases, CPU seconds and memory."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    started_s = time.perf_counter()
    group = placement_group([{"CPU": 1}] * (1 if kind == "emulated" else num_runners + 1), strategy="PACK")
    place = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    actor = ray.remote(num_cpus=1)(Start).options(scheduling_strategy=place).remote()
    ray.get(actor.__ray_ready__.remote())
    process_s = time.perf_counter() - started_s
    try:
        result: dict[str, Any] = ray.get(getattr(actor, kind).remote(num_runners, argument))
    finally:
        ray.kill(actor)
        remove_placement_group(group)
    result["phases"]["process"] = process_s
    result["start_s"] = process_s + result["inside_s"]
    time.sleep(1.0)  # let the killed processes go
    return result


def summary(results: list[dict[str, Any]]) -> dict[str, float]:
    """Return medians."""
    names = ("start_s", "cpu_main_s", "cpu_runners_s", "rss_main_mib", "rss_runner_mib")
    medians = {name: statistics.median(result[name] for result in results) for name in names}
    for phase in PHASES:
        medians[phase] = statistics.median(result["phases"].get(phase, 0.0) for result in results)
    return {name: round(value, 2) for name, value in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--runners", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    from study import load_space
    from study.cluster.connection import private_ray
    from tests.benchmarks.timing import ROOT, Spread, alternated, machine, versions

    os.environ["PYTHONPATH"] = str(ROOT)
    about = machine()
    spec = load_space(Path(__file__).with_name("acrobot.yaml")).to_json()
    arguments: dict[str, Any] = {"stock": 1, "real": spec, "emulated": spec}
    table: dict[str, dict[str, Any]] = {}
    for num_runners in options.runners:
        results: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        with private_ray(num_cpus=num_runners + 1):
            measure("stock", num_runners, arguments["stock"])  # fills the file caches
            for repetition in range(options.repetitions):
                for kind in alternated(KINDS, repetition):
                    results[kind].append(measure(kind, num_runners, arguments[kind]))
        row: dict[str, Any] = {kind: summary(values) for kind, values in results.items()}
        for kind in ("real", "emulated"):
            pairs = zip(results["stock"], results[kind], strict=True)
            row[f"stock_over_{kind}"] = asdict(Spread.of((a["start_s"] / b["start_s"] for a, b in pairs), digits=2))
        table[str(num_runners)] = row
    print_table(table)
    record = {"benchmark": "startup", "repetitions": options.repetitions, "runners": table}
    print(json.dumps({**record, **about, "versions": versions(["ray", "torch"])}))


def print_table(table: dict[str, dict[str, Any]]) -> None:
    names = ["start_s", *PHASES, "cpu_main_s", "cpu_runners_s", "rss_runner_mib"]
    print(f"{'runners':>7}  {'kind':<9}" + "".join(f"{name:>15}" for name in names))
    for num_runners, row in table.items():
        for kind in KINDS:
            print(f"{num_runners:>7}  {kind:<9}" + "".join(f"{row[kind][name]:>15.2f}" for name in names))


if __name__ == "__main__":
    main()
