"""The only file of the golden tests that imports the program: whoever moves or renames a module corrects it here.

What is entered: the command line (`study.cli.app`) and Ray Tune's own interfaces: a stand-in for `Tuner` gets the
program's searcher, callback, stopper and trainable from the program itself.
Everything else that the golden tests compare is read from files.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import ray.tune
from typer.testing import CliRunner

import analysis
import study.driver.run  # noqa: F401 (it has names that `on_cluster` replaces)
from study.cli import commands as command_line
from study.machine import cluster as machine_cluster
from study.machine.shape import ClusterShape, NodeShape
from study.mirrors import process
from study.records.derived import write_table
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of
from study.trial.engine.envs import probing

Node = tuple[str, int, int, int, float]
"""Address, CPUs that Ray hands out, cores, memory in MB, GPUs."""


def described(nodes: Sequence[Node]) -> ClusterShape:
    """Return a cluster that nobody has."""
    return ClusterShape(
        nodes=tuple(
            NodeShape(address=name, num_cpus=cpus, physical_cpus=cores, memory_mb=memory, num_gpus=gpus)
            for name, cpus, cores, memory, gpus in nodes
        )
    )


def run_command(*words: str) -> tuple[int, str]:
    """Run a command of `python -m study` in this process; return its exit code and what it printed."""
    result = CliRunner().invoke(command_line.app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@contextlib.contextmanager
def on_cluster(nodes: Sequence[Node]) -> Iterator[None]:
    """Let `--address` lead to a described cluster; start no Ray and no mirror, and measure nothing."""
    shape = described(nodes)

    @contextlib.contextmanager
    def joined(*_: Any, **__: Any) -> Iterator[ClusterShape]:
        yield shape

    stand_ins = [
        (machine_cluster.resolve_address, lambda given: given),
        (machine_cluster.joined_ray, joined),
        (machine_cluster.servers_of_ray, dict),
        (process.MirrorProcess, _NoMirror),
        (probing.speeds_of, lambda _: None),  # what it measures is another number each time
    ]
    _exchange({id(original): stand_in for original, stand_in in stand_ins})
    try:
        yield
    finally:
        _exchange({id(stand_in): original for original, stand_in in stand_ins})


class _NoMirror:
    """Stands for the process that writes to MLflow and the like: the records are what is compared."""

    mirrors: Mapping[str, Any] = {}

    def __init__(self, _: Any) -> None: ...

    def finish(self, *_: Any, **__: Any) -> tuple[Any, ...]:
        return ()


@contextlib.contextmanager
def tuner(stand_in: Any) -> Iterator[None]:
    """Let the driver meet this class as `ray.tune.Tuner`."""
    before = ray.tune.Tuner
    ray.tune.Tuner = stand_in
    try:
        yield
    finally:
        ray.tune.Tuner = before


def _exchange(others: Mapping[int, Any]) -> None:
    """Give every module of the program another function or class for each of these, by its `id`."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("study."):
            for name, value in list(vars(module).items()):
                if id(value) in others:
                    setattr(module, name, others[id(value)])


def in_one_line(values: Mapping[str, Any]) -> str:
    """Return parameters in one line, in the order of their names."""
    return ",".join(f"{name}:{value:.9g}" for name, value in sorted(values.items()))


# --- a trial, as Tune carries it -------------------------------------------------------------------------------------


OWN = ("trial", "attempt", "seed", "setting", "execution", "iterations", "first_episode")


def asked(config: Mapping[str, Any]) -> SimpleNamespace:
    """Return what a trial is asked to be by its configuration in Tune: `OWN`, its space's budget and evaluations.

    `num_evaluations` is 0 where the trial is timed and not judged.
    """
    spec = json.loads(config["spec"])
    budget, evaluation = spec.get("budget", {}), spec["evaluation"]
    return SimpleNamespace(
        **{name: getattr(config["started"], name) for name in OWN},
        env_steps=budget.get("env_steps"),
        time_s=budget.get("time_s"),
        episodes=evaluation["episodes"],
        num_evaluations=0 if spec.get("kind") == "throughput" else evaluation["num_evaluations"],
    )


# --- recorded studies ------------------------------------------------------------------------------------------------


def write_trials_csv(study_folder: Path, target: Path) -> None:
    """Write the table of trials of a recorded study anew."""
    write_table(target, ledger_of(StudyFolder(study_folder).records).rows.values())


def frame_of(study_folder: Path) -> pd.DataFrame:
    """Return a recorded study's trials as the analysis has them."""
    return analysis.open(study_folder).trials
