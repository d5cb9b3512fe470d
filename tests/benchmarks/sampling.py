"""Sampling of one runner on one core: environment steps per second, batched against RLlib's stock runner.

    python -m tests.benchmarks.sampling [--repetitions 7]

Beside them Gymnasium's bare vector environment with random actions and no policy (the ceiling of what a runner of
Python environments can reach), and the batched runner on EnvPool where that is installed. All live in one process
pinned to one core, take turns, and sample the same number of steps. The last line is JSON.
"""

import argparse
import json
import os
import time
from collections.abc import Callable

LANES = (1, 8, 32)
STEPS = {1: 3000, 8: 8000, 32: 16000}
"""Environment steps of one sample, by number of lanes: a third of a second and more."""
ENVIRONMENTS = ("LunarLander-v3", "Acrobot-v1")
TARGETS = {
    ("LunarLander-v3", 1): 3.0,
    ("LunarLander-v3", 8): 2.7,
    ("LunarLander-v3", 32): 2.3,
    ("Acrobot-v1", 1): 3.0,
    ("Acrobot-v1", 8): 2.3,
    ("Acrobot-v1", 32): 1.9,
}
"""Batched over stock, at least."""
TARGET_BARE = 0.8
"""Share of the bare vector environment's rate at 32 lanes, at least."""
TARGET_ENVPOOL = 5.0
"""Batched on EnvPool over stock on Gymnasium, Acrobot-v1 with 32 lanes, at least."""
HIDDENS = [64, 64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    repetitions = parser.parse_args().repetitions
    # Ray's own processes are started before this one confines itself to a core.
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    from tests.benchmarks.timing import in_turns, machine, ratios, versions

    about = machine()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = []
    for environment in ENVIRONMENTS:
        for lanes in LANES:
            print(f"{environment}, k={lanes}")
            samplers = {
                "stock": _runner(environment, lanes, "stock", "gymnasium"),
                "batched": _runner(environment, lanes, "batched", "gymnasium"),
                "bare": _bare(environment, lanes),
                "envpool": _runner(environment, lanes, "batched", "envpool"),
            }
            present = {name: sample for name, sample in samplers.items() if sample is not None}
            for sample in present.values():
                sample()  # warm up: first resets, lazy imports

            def run(name: str, _: int, present: dict[str, Callable[[], int]] = present) -> dict[str, float]:
                started = time.perf_counter()
                steps = present[name]()
                return {"steps_per_s": steps / (time.perf_counter() - started)}

            runs = in_turns(list(present), repetitions, run, shown=("steps_per_s",))
            pairs = {("batched", "stock"): TARGETS[environment, lanes]}
            pairs["batched", "bare"] = TARGET_BARE if lanes == 32 else None
            pairs["envpool", "stock"] = TARGET_ENVPOOL if (environment, lanes) == ("Acrobot-v1", 32) else None
            found = ratios(runs, pairs, "steps_per_s")
            rows.append({"environment": environment, "lanes": lanes, "runs": runs, "ratios": found})
    ray.shutdown()
    record = {"benchmark": "sampling", "hidden_layers": HIDDENS, "rows": rows}
    packages = versions(["ray", "torch", "gymnasium", "numpy", "envpool"])
    print(json.dumps({**record, **about, "versions": packages}))


def _runner(environment: str, lanes: int, runner: str, backend: str) -> Callable[[], int] | None:
    """Return a function that samples once and returns the steps, None where the backend is not installed."""
    from importlib.util import find_spec

    from study.errors import SpaceError
    from study.space.parameters import ALGORITHMS, PARAMETERS
    from study.trial.engine.envs.probing import probe
    from tests.integration.trials import config_of
    from tests.spaces import spec

    if backend == "envpool" and find_spec("envpool") is None:
        return None
    space = spec(
        environment__id=environment,
        environment__backend=backend,
        environment__floor=-1000,
        runner=runner,
        model__fcnet_hiddens=HIDDENS,
        parameters__num_env_runners=1,
        parameters__num_envs_per_env_runner=lanes,
        parameters__train_batch_size=STEPS[lanes],
    )
    setting = {
        name: PARAMETERS[name].default for name in ALGORITHMS["PPO"].parameters if not PARAMETERS[name].optional
    } | {
        "num_env_runners": 1,
        "num_envs_per_env_runner": lanes,
        "train_batch_size": STEPS[lanes],
    }
    try:
        probe(space.environment, "benchmark")
    except SpaceError as error:
        print(f"{environment} on {backend}: {error}")
        return None
    config = config_of(space, setting=setting)
    worker = config.env_runner_cls(config=config, worker_index=1, num_workers=1)

    def sample() -> int:
        episodes, _, _ = worker.measured_sample()
        return sum(map(len, episodes))

    return sample


def _bare(environment: str, lanes: int) -> Callable[[], int]:
    import gymnasium

    envs = gymnasium.make_vec(environment, num_envs=lanes, vectorization_mode="sync")
    envs.reset(seed=1)
    envs.action_space.seed(1)
    actions = [envs.action_space.sample() for _ in range(256)]  # drawn before: the bare environment only steps

    def sample() -> int:
        for step in range(STEPS[lanes] // lanes):
            envs.step(actions[step % len(actions)])
        return STEPS[lanes]

    return sample


if __name__ == "__main__":
    main()
