"""A trial of 46 runners on two cores: emulated in one process against 46 real processes of stock RLlib.

    python -m tests.benchmarks.emulation [--repetitions 5] [--runners 46]

Acrobot-v1, ten iterations of 8000 steps with the shipped constants of PPO. The time is that of the whole trial, from
an empty process to the end: imports, start-up, iterations. Memory is the proportional set size of the whole process
tree, Ray's own processes included. Each trial has a fresh process and a private Ray; they take turns. The last line is
JSON.
"""

import argparse
import json
import threading
import time
from typing import Any

TARGET_RATIO, TARGET_MB = 10.0, 2500.0
KINDS = {
    "emulated": {"runner": "batched", "learner": "fused", "execution": "emulated"},
    "stock": {"runner": "stock", "learner": "rllib", "execution": "real"},
}
ITERATIONS, BATCH = 10, 8000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--runners", type=int, default=46)
    parser.add_argument("--child", choices=list(KINDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_trial(options.child, options.runners)))
        return
    from tests.benchmarks.timing import in_a_process, in_turns, machine, ratios, versions

    about = machine()
    runs = in_turns(
        list(KINDS),
        options.repetitions,
        lambda kind, _: in_a_process("emulation", "--child", kind, "--runners", str(options.runners)),
        shown=("whole_s", "memory_mb"),
    )
    found = ratios(runs, {("stock", "emulated"): TARGET_RATIO}, "whole_s")
    print(f"memory of an emulated trial: target under {TARGET_MB:g} MB")
    record = {"benchmark": "emulation", "runners": options.runners, "runs": runs, "ratios": found}
    print(json.dumps({**record, **about, "versions": versions(["ray", "torch", "gymnasium"])}))


def _trial(kind: str, runners: int) -> dict[str, float]:
    """Run one trial in this process and return what it took."""
    from study.cluster.connection import private_ray
    from study.space.algorithms import ALGORITHMS
    from study.space.parameters import PARAMETERS
    from tests.spaces import spec

    changes = dict(KINDS[kind])
    space = spec(
        environment__id="Acrobot-v1",
        environment__floor=-500,
        environment__reference=-80,
        environment__target=-100,
        parameters__num_env_runners=runners,
        parameters__num_envs_per_env_runner=4,
        parameters__train_batch_size=BATCH,
        budget__env_steps=None,
        budget__iterations=ITERATIONS,
        evaluation__num_evaluations=1,
        evaluation__episodes=1,
        **changes,
    )
    setting = {name: PARAMETERS[name].default for name in ALGORITHMS["PPO"].parameters}
    setting |= {"num_env_runners": runners, "train_batch_size": BATCH, "num_envs_per_env_runner": 4}
    with private_ray(num_cpus=runners + 1, verbose=False), _Memory() as memory:
        started = time.perf_counter()
        # RLlib and torch are imported here: a trial's process begins without them.
        from study.records.records import Evaluation, Iteration
        from study.trial.messages import TrialConfig
        from study.trial.run import TrialRun

        config = TrialConfig(
            spec=space,
            setting=setting,
            seed=1,
            iterations=ITERATIONS,
            execution=changes["execution"],  # type: ignore[arg-type]
            trial=0,
            attempt=1,
        )
        trial = TrialRun(config, started_s=started)
        try:
            records: list[Any] = []
            for _ in range(ITERATIONS):
                records += trial.advance().records
            whole_s = time.perf_counter() - started
            memory.look()
        finally:
            trial.close()
    assert sum(isinstance(record, Iteration) for record in records) == ITERATIONS
    evaluation_s = sum(record.eval_time_s for record in records if isinstance(record, Evaluation))
    return {"whole_s": whole_s - evaluation_s, "memory_mb": memory.peak_mb}


class _Memory:
    """Watches the proportional set size of this process and everything below it, Ray included."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        # Seldom: to read the memory map of a hundred processes takes a second of a core.
        while not self._ended.wait(20):
            self.look()

    def look(self) -> None:
        import psutil

        own = psutil.Process()
        total = 0
        for process in [own, *own.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue  # it ended meanwhile
        self.peak_mb = max(self.peak_mb, total / 1e6)


if __name__ == "__main__":
    main()
