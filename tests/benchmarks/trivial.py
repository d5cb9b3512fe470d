"""Trials that do nothing but report what real ones report, for benchmarks of what surrounds trials. Imports Ray Tune.

A trial sleeps and reports: with such trials CPUs are only numbers, and a laptop stands for a cluster.
"""

import os
import time
from typing import Any

from ray.tune import PlacementGroupFactory, Trainable

from study.metrics import METRICS
from study.trial.trainable import StudyTrial
from tests.reported import packed

EFFECTIVE = {f"parameter_{number}": 0.1 * number for number in range(30)}
"""As many values as a built algorithm is asked for."""
MEASURED = {name: 1.0 for name, metric in METRICS.items() if metric.grain == "iteration"}


def report(number: int, count: int, trial: int) -> dict[str, Any]:
    """Return what a trial hands to Tune after iteration `number` of `count`: see `study.trial.run.TrialRun.advance`."""
    steps, progress = 400 * number, number / count
    records: list[dict[str, Any]] = []
    if number == 1:
        built = {"startup_time_s": 1.0, "effective": EFFECTIVE, "processes_per_node": {"local": 1}}
        records.append({"kind": "trial_built", **built})
    metrics = {**MEASURED, "train_batch_size_actual": 400, "iteration_time_s": 0.1, "num_healthy_env_runners": None}
    common = {"iteration": number, "env_steps": steps, "wall_time_s": 0.1 * number}
    records.append({"kind": "iteration", **common, "metrics": metrics})
    if number == count:
        found = {"progress": progress, "returns": [100.0] * 4, "num_cut": 0, "eval_time_s": 0.01}
        records.append({"kind": "evaluation", **common, **found})
    return packed(records, trial=trial, attempt=1, progress=progress, policy=None)


class TrivialTrial(Trainable):
    """Stands for `study.trial.trainable.StudyTrial`: takes `TRIVIAL_SECONDS` and reports `TRIVIAL_RESULTS` times.

    A study gives it a trial's configuration, a bare Tuner a `job` with `trial` and `num_cpus`.
    """

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return what a real trial of a study reserves."""
        if "job" in config:
            return PlacementGroupFactory([{"CPU": 1}] * config["job"]["num_cpus"])
        return StudyTrial.default_resource_request(config)

    def setup(self, config: dict[str, Any]) -> None:
        self._number = 0
        self._seconds, self._count = float(os.environ["TRIVIAL_SECONDS"]), int(os.environ["TRIVIAL_RESULTS"])

    def step(self) -> dict[str, Any]:
        time.sleep(self._seconds / self._count)
        self._number += 1
        trial = self.config["job"]["trial"] if "job" in self.config else self.config["started"].trial
        return report(self._number, self._count, trial)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True
