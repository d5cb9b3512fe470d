"""A whole trial as a hold-up study runs hundreds of, by each learner, by RLlib's own parts, and by other libraries.

    python -m tests.benchmarks.whole_trial [--repetitions 5] [--env Acrobot-v1] [--steps 200000]
    python -m tests.benchmarks.whole_trial --runners 1024 --steps 5000000 --columns fused --repetitions 1
    python -m tests.benchmarks.whole_trial --columns fused "fused, real runners" "stock RLlib"       # 46 processes each
    python -m tests.benchmarks.whole_trial --runners 4 --steps 4096 --columns fused "stock RLlib"    # time of a start

A setting that held up on Acrobot-v1: 46 runners with 4 environments, emulated unless the column says otherwise, 128
steps of each runner in a batch, two nets of 64 x 64, minibatches of 256, 10 epochs; ten greedy evaluations of 50
episodes. Each column has a fresh process and a private Ray, in turns; its first trial pays for imports and compilation,
the second one is as all later trials of a study. Times are of the second trial: `wall_s` of all of it, CPU seconds of
the process that learns, with all its threads. Memory is the largest proportional set size of the whole process tree,
Ray's own processes included. Stable-Baselines3 trains as many steps and evaluates nothing: it is compared by
training alone, without evaluation and start. The last line is JSON.
"""

import argparse
import contextlib
import json
import os
import threading
import time

OURS = {
    "fused": {"learner": "fused"},
    "fused, EnvPool": {"learner": "fused", "backend": "envpool"},
    "RLlib's learner": {"learner": "rllib"},
    "fused, real runners": {"learner": "fused", "execution": "real"},
    "stock RLlib": {"runner": "stock", "learner": "rllib", "execution": "real"},
}
DEFAULT = ("fused", "RLlib's learner", "SB3")
PEERS = ("SB3",)
RETURNS = {"Acrobot-v1": (-500, -75, -100), "LunarLander-v3": (-200, 250, 200), "CartPole-v1": (20, 500, 475)}
"""Floor, reference, target."""
SETTING = {
    "num_envs_per_env_runner": 4,
    "steps_per_env_runner": 128,
    "minibatch_size": 256,
    "num_epochs": 10,
    "lr": 0.0018856888846815767,
    "lambda": 0.95,
    "entropy_coeff": 0.0,
}
SHOWN = ("wall_s", "cpu_s", "start_s", "sampling_s", "learning_s", "evaluation_s", "memory_mb", "final_return")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--env", default="Acrobot-v1", choices=list(RETURNS))
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--runners", type=int, default=46)
    parser.add_argument("--columns", nargs="+", choices=[*OURS, *PEERS], default=DEFAULT, metavar="COLUMN")
    parser.add_argument("--child", choices=[*OURS, *PEERS], help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_sb3(options) if options.child in PEERS else _trials(OURS[options.child], options)))
        return
    from tests.benchmarks.timing import about, as_words, in_a_process, in_turns, ratios

    def run(name: str, repetition: int) -> dict[str, float]:
        words = as_words(options, "env", "steps", "runners")
        return in_a_process("whole_trial", "--child", name, "--seed", str(repetition), *words)

    chosen = [*options.columns]
    runs = in_turns(chosen, options.repetitions, run, shown=SHOWN)
    found = {}
    for key in ("cpu_s", "wall_s", "start_s", "first_start_s", "training_cpu_s"):
        others = [name for name in chosen if name != "fused" and (name in PEERS) is (key == "training_cpu_s")]
        found |= ratios(runs, {(name, "fused"): None for name in others}, key)
    asked = {name: getattr(options, name) for name in ("env", "steps", "runners", "repetitions")}
    here = about("ray", "torch", "gymnasium", "numpy", "jax", "envpool", "stable-baselines3")
    print(json.dumps({"benchmark": "whole_trial", **asked, "ratios": found, "runs": runs, **here}))


def _sb3(options: argparse.Namespace) -> dict[str, float]:
    """Train by Stable-Baselines3's PPO, from its first step to its last update; `.[benchmarks]` brings it."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    num_envs = options.runners * int(SETTING["num_envs_per_env_runner"])
    batch = options.runners * int(SETTING["steps_per_env_runner"])
    model = PPO(
        "MlpPolicy",
        make_vec_env(options.env, n_envs=num_envs, seed=options.seed),
        n_steps=batch // num_envs,
        batch_size=SETTING["minibatch_size"],
        n_epochs=SETTING["num_epochs"],
        learning_rate=SETTING["lr"],
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
        seed=options.seed,
        device="cpu",
    )
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(total_timesteps=-(-options.steps // batch) * batch)
    return {"wall_s": time.perf_counter() - wall, "training_cpu_s": time.process_time() - cpu}


def _trials(own: dict[str, str], options: argparse.Namespace) -> dict[str, float]:
    """Run two trials in this process, as one that Tune uses again, and measure the second."""
    os.environ["OMP_NUM_THREADS"] = "1"  # as Ray does for a process that reserves one CPU, before NumPy is imported
    from study.machine.cluster import private_ray
    from study.machine.host import forget_trial

    real = own.get("execution") == "real"
    with private_ray(num_cpus=1 + options.runners if real else 1, verbose=False), _Memory() as memory:
        first = _trial(own, options, seed=1)
        forget_trial()
        second = _trial(own, options, seed=2)
        memory.look()
        firsts = {f"first_{name}": first[name] for name in ("start_s", "cpu_s", "wall_s")}
        return {**second, **firsts, "memory_mb": memory.peak_mb}


def _trial(own: dict[str, str], options: argparse.Namespace, *, seed: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    from study.records.records import Evaluation, Iteration
    from study.space.parameters import SCALE
    from study.space.parsing import Source, parse_space
    from study.space.settings import runnable
    from study.trial.run import TrialRun
    from study.trial.trainable import TrialConfig
    from tests.integration.trials import asked

    floor, reference, target = RETURNS[options.env]
    environment = {"id": options.env, "floor": floor, "reference": reference, "target": target}
    stack = {"execution": "emulated", **own}
    if (backend := stack.pop("backend", None)) is not None:
        environment["backend"] = backend
    content = {
        "environment": environment,
        "parameters": {SCALE: options.runners, **SETTING},
        **stack,
        "budget": {"env_steps": options.steps},
        "search": {"num_trials": 1},
        "evaluation": {"episodes": 50, "num_evaluations": 10},
    }
    spec = parse_space(Source(name="benchmark", content=content))
    setting = runnable(spec, {**spec.fixed, SCALE: options.runners})
    config = TrialConfig(
        space=json.dumps(spec.to_json()), started=asked(setting, seed=seed, execution=stack["execution"])
    )
    trial = TrialRun(config, started_s=time.perf_counter())
    start_s, records, done = time.perf_counter() - wall, [], False
    started_cpu_s = time.process_time() - cpu
    try:
        while not done:
            result = trial.advance()
            records += result.records
            done = result.done
    finally:
        trial.close()
    iterations = [record for record in records if isinstance(record, Iteration)]
    evaluations = [record for record in records if isinstance(record, Evaluation)]
    cpu_s, evaluation_s = time.process_time() - cpu, sum(each.eval_time_s for each in evaluations)
    wall_s = time.perf_counter() - wall
    share = 1 - evaluation_s / (wall_s - start_s)
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "start_s": start_s,
        "training_cpu_s": (cpu_s - started_cpu_s) * share,
        "sampling_s": sum(each.metrics["sampling_time_s"] for each in iterations),
        "learning_s": sum(each.metrics["learning_time_s"] for each in iterations),
        "evaluation_s": evaluation_s,
        "final_return": sum(evaluations[-1].returns) / len(evaluations[-1].returns),
    }


class _Memory:
    """Watches the proportional set size of this process and everything below it, Ray included."""

    def __enter__(self) -> "_Memory":
        self.peak_mb, self._ended = 0.0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        # Seldom: to read the memory map of a hundred processes takes a second of a core.
        while not self._ended.wait(20):
            self.look()

    def look(self) -> None:
        import psutil

        total = 0
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                total += process.memory_full_info().pss
        self.peak_mb = max(self.peak_mb, total / 1e6)


if __name__ == "__main__":
    main()
