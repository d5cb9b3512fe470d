"""A study's driver as a process that tests watch and kill, and the laws that its records keep whatever happened."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from study.records.records import Record, TrialEnded
from tests.e2e import commands
from tests.e2e.clusters import kill_all, workers_below
from tests.waiting import until

TRIAL = """
environment: {id: CartPole-v1, floor: 0, reference: 500, target: 450}
parameters: {num_env_runners: 1, num_envs_per_env_runner: 2, train_batch_size: 400, minibatch_size: 64, num_epochs: 2,
             lr: {low: 1.0e-4, high: 1.0e-2, log: true}}
budget: {env_steps: 2000}
search: {sampler: random, num_trials: 1}
evaluation: {episodes: 2, num_evaluations: 1}
execution: real
"""
"""A trial of a main process and a runner, over in seconds."""


def lasting(seconds: float) -> list[str]:
    """Return the options that let trials of real runners train so long, on however slow a machine."""
    return setting(budget__env_steps=10**9, budget__time_s=seconds)


def setting(**values: object) -> list[str]:
    """Return the options that change the space, a dot written `__`."""
    return [word for name, value in values.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]


class Driver:
    """`run_study.py` in a folder of its own, which it resumes whenever it is started again."""

    def __init__(self, place: Path, *, space: str = TRIAL) -> None:
        self.place, self.folder = place, place / "studies" / "space"
        self.settings: list[str] = []
        """Words before the command."""
        self.uri = f"sqlite:///{place}/mlflow.db"
        self.process: Any = None
        (place / "space.yaml").write_text(space)

    def start(self, *options: object) -> None:
        """Start the driver."""
        words = commands.command("--space", "space.yaml", "--resume-or-start", *options)
        with (self.place / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*self.settings, *words],
                **{"cwd": self.place, "env": commands.environment(), "stdout": log, "stderr": subprocess.STDOUT},
                start_new_session=True,
            )

    def run(self, *options: object, timeout: float = 300.0) -> int:
        """Start the driver and return how it ends."""
        self.start(*options)
        return self.end(timeout)

    def end(self, timeout: float = 300.0) -> int:
        """Wait for the driver and return its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the driver did not end within {timeout:.0f} s:\n{self.said}")

    def kill(self) -> None:
        """End the driver as a power cut would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End a driver that still runs, and wait until the Ray that it started is gone."""
        if self.process is not None and self.process.poll() is None:
            below = psutil.Process(self.process.pid).children(recursive=True)
            self.kill()
            kill_all(below)

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self, title: str = "") -> list[psutil.Process]:
        """Return the processes of trials on a Ray of the driver's own, by the beginning of what Ray calls them."""
        return workers_below(psutil.Process(self.pid), title)

    @property
    def said(self) -> str:
        return (self.place / "log").read_text()

    def records(self) -> list[Record]:
        return commands.records(self.folder)

    def count(self, kind: str) -> int:
        return sum(record.kind == kind for record in self.records())

    def wait_for(self, kind: str, count: int = 1) -> None:
        """Wait until so many records of a kind are written."""

        def come_so_far() -> bool:
            found = self.count(kind) >= count
            assert found or self.process.poll() is None, f"the driver ended by itself before {what}:\n{self.said}"
            return found

        what = f"{count} x {kind}"
        until(come_so_far, lambda: f"{what}:\n{self.said}", 180.0)

    def attempts(self, status: str) -> list[TrialEnded]:
        """Return the ends of attempts with a status."""
        return [record for record in self.records() if isinstance(record, TrialEnded) and record.status == status]

    def assert_whole(self, num_trials: int, failed: Sequence[int] = ()) -> None:
        """Every trial ended once, as `commands.assert_whole` has it."""
        commands.assert_whole(self.folder, self.uri, num_trials, failed=failed)
