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
import time
from pathlib import Path
from typing import Any

KINDS = ("stock", "real", "emulated")


class Start:
    """Starts one algorithm in a process of its own. The only actor here, and it is pickled by value."""

    def begin(self, kind: str, num_runners: int, spec: dict[str, Any]) -> None:
        self._algorithm = self._stock(num_runners) if kind == "stock" else self._trial(num_runners, spec, kind)

    def end(self) -> None:
        self._algorithm.stop()

    def _stock(self, num_runners: int) -> Any:
        from ray.rllib.algorithms.ppo import PPOConfig

        config = PPOConfig().environment("Acrobot-v1").debugging(seed=1, log_level="ERROR")
        config.env_runners(num_env_runners=num_runners, num_envs_per_env_runner=8)
        return config.build_algo()

    def _trial(self, num_runners: int, spec: dict[str, Any], execution: str) -> Any:
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

        return TrialRun(TrialConfig.unpacked(config), started_s=time.perf_counter())._algorithm


def _fixed(spec: dict[str, Any]) -> dict[str, Any]:
    from study.space.spec import StudySpec

    return {**StudySpec.model_validate(spec).fixed, "train_batch_size": 1024, "lr": 1e-3}


def measure(kind: str, num_runners: int, spec: dict[str, Any]) -> float:
    """Start one algorithm in a new placement group, as Tune would; return the seconds."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    started_s = time.perf_counter()
    group = placement_group([{"CPU": 1}] * (1 if kind == "emulated" else num_runners + 1), strategy="PACK")
    place = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    actor = ray.remote(num_cpus=1)(Start).options(scheduling_strategy=place).remote()
    try:
        ray.get(actor.begin.remote(kind, num_runners, spec))
        start_s = time.perf_counter() - started_s
        ray.get(actor.end.remote())
    finally:
        ray.kill(actor)
        remove_placement_group(group)
    time.sleep(1.0)  # let the killed processes go
    return start_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--runners", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    from study import load_space
    from study.cluster.connection import private_ray
    from tests.benchmarks.timing import ROOT, in_turns, machine, ratios, versions

    os.environ["PYTHONPATH"] = str(ROOT)
    about = machine()
    spec = load_space(Path(__file__).with_name("acrobot.yaml")).to_json()
    table: dict[str, Any] = {}
    for num_runners in options.runners:
        print(f"{num_runners} runners")

        def run(kind: str, _: int, num_runners: int = num_runners) -> dict[str, float]:
            return {"start_s": measure(kind, num_runners, spec)}

        with private_ray(num_cpus=num_runners + 1):
            measure("stock", num_runners, spec)  # fills the file caches
            runs = in_turns(KINDS, options.repetitions, run, shown=("start_s",))
        pairs = {("stock", kind): None for kind in KINDS[1:]}
        table[str(num_runners)] = {"runs": runs, "ratios": ratios(runs, pairs, "start_s")}
    record = {"benchmark": "startup", "repetitions": options.repetitions, "runners": table}
    print(json.dumps({**record, **about, "versions": versions(["ray", "torch"])}))


if __name__ == "__main__":
    main()
