"""Small studies launched on simulated hosts, and what became of them."""

import re
from collections import Counter
from pathlib import Path

from study.records.records import Record, TrialEnded, TrialStarted
from tests.e2e.commands import assert_whole, records
from tests.testbed.namespaces import ROOT, Host, Hosts
from tests.waiting import until

NAME = "tiny"
ACTIVATE = ("--activate", f"export PYTHONPATH={ROOT}")
"""Options of a launch that runs this checkout, and not another one that is installed."""
SPACE = """
environment: {{id: CartPole-v1, floor: 0, reference: 500, target: 450}}
parameters:
  num_env_runners: 1
  num_envs_per_env_runner: 2
  train_batch_size: 200
  lr: [{lrs}]
  minibatch_size: 64
  num_epochs: 2
budget: {{env_steps: {env_steps}}}
search: {{sampler: grid, seeds: [1]}}
evaluation: {{episodes: 2, num_evaluations: 1}}
"""


class LaunchedStudy:
    """A study in a folder of `tester`; its trials are known before it runs, since a grid counts them."""

    def __init__(self, hosts: Hosts, place: str, *, num_trials: int, env_steps: int = 400) -> None:
        self._hosts = hosts
        self.num_trials = num_trials
        self.place = hosts.make_place(place)
        self._lrs = [round(0.001 + 0.0001 * number, 4) for number in range(num_trials)]
        lrs = ", ".join(map(str, self._lrs))
        hosts.write(f"{self.place}/{NAME}.yaml", SPACE.format(lrs=lrs, env_steps=env_steps))

    def launch(self, scheduler: str, *options: object) -> str:
        """Launch it as `tester` on `ctl`; return the number of the job."""
        words = ("launch", scheduler, f"{NAME}.yaml", "--out", "studies", "--name", NAME, *ACTIVATE, *options)
        done = self._hosts.study(*words, cwd=self.place)
        found = re.search(r"Submitted as job (\d+)", done.stdout)
        assert done.returncode == 0 and found, done.stdout + done.stderr
        return found[1]

    @property
    def folder(self) -> Path:
        """Of the study, outside the hosts."""
        return self._hosts.outside(self.place) / "studies" / NAME

    def records(self) -> list[Record]:
        """Return what is on record so far."""
        return records(self.folder) if (self.folder / "records.jsonl").exists() else []

    def num_ended(self) -> int:
        """Return the trials that have ended so far."""
        return len(self._ended())

    def _ended(self) -> list[TrialEnded]:
        ends = [record for record in self.records() if isinstance(record, TrialEnded)]
        return [end for end in ends if end.status != "interrupted"]

    def num_sessions(self) -> int:
        """Return the drivers that have worked on it."""
        return Counter(record.kind for record in self.records())["study_opened"]

    def wait_until_midway(self) -> None:
        """Wait until a trial has ended and others have not."""
        until(lambda: self.num_ended() >= 1, "a first trial ended", 600)
        assert self.num_ended() < self.num_trials

    def assert_whole(self) -> None:
        """Every trial of the grid ended well and once: in the records, in Optuna, in MLflow."""
        started = {each.trial: each for each in self.records() if isinstance(each, TrialStarted)}
        assert sorted((trial.seed, trial.setting["lr"]) for trial in started.values()) == [(1, lr) for lr in self._lrs]
        assert_whole(self.folder, f"sqlite:///{self._hosts.outside(self.place)}/mlflow.db", self.num_trials)


def assert_nothing_runs(hosts: list[Host], timeout_s: float = 20) -> None:
    """No process of `tester` runs on these hosts, or none does soon."""

    def processes() -> list[str]:
        return [f"{host.name}: {line}" for host in hosts for line in host.command_lines("tester")]

    until(lambda: not processes(), lambda: f"all processes of tester ended: {processes()}", timeout_s)


def assert_nothing_left(hosts: list[Host]) -> None:
    """No process of `tester` runs on these hosts, and no file of one is left on their own disks."""
    assert_nothing_runs(hosts)
    for host in hosts:
        left = host.run("find", "/tmp", "/var/tmp", "/dev/shm", "!", "-type", "d", "-user", "tester").stdout
        assert not left, f"{host.name}: {left}"
