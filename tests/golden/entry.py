"""How the golden tests enter the program: its command line and Ray Tune's own interfaces; a stand-in for `Tuner` gets
the program's searcher, callback, stopper and trainable from the program itself. The rest is read from files.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from typer.testing import CliRunner

from study.cli import commands as command_line
from study.machine.shape import ClusterShape, NodeShape
from study.records.derived import write_table
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of

Node = tuple[str, int, int, int, float]
"""Address, CPUs that Ray hands out, cores, memory in MB, GPUs."""


def run_command(*words: str) -> tuple[int, str]:
    """Run a command of `python -m study` in this process; return its exit code and what it printed."""
    result = CliRunner().invoke(command_line.app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@contextlib.contextmanager
def on_cluster(nodes: Sequence[Node], tuner: Any = None) -> Iterator[None]:
    """Let `--address` lead to a described cluster, and `ray.tune.Tuner` be `tuner`; start no Ray and no mirror."""
    names = ("address", "num_cpus", "physical_cpus", "memory_mb", "num_gpus")
    shape = ClusterShape(nodes=tuple(NodeShape(**dict(zip(names, node, strict=True))) for node in nodes))
    stand_ins = {
        "resolve_address": lambda given: given,
        "joined_ray": lambda *_, **__: contextlib.nullcontext(shape),
        "servers_of_ray": dict,
        "speeds_of": lambda _: None,  # what it measures is another number each time
        # The process that writes to MLflow and the like: the records are what is compared.
        "MirrorProcess": lambda _: SimpleNamespace(mirrors={}, finish=lambda *_, **__: ()),
    }
    with mock.patch.multiple("study.driver.run", **stand_ins), mock.patch("ray.tune.Tuner", tuner):
        yield


def in_one_line(values: Mapping[str, Any]) -> str:
    """Return parameters in one line, in the order of their names."""
    return ",".join(f"{name}:{value:.9g}" for name, value in sorted(values.items()))


# --- a trial, as Tune carries it -------------------------------------------------------------------------------------


OWN = ("trial", "attempt", "seed", "setting", "execution", "iterations", "first_episode")


def asked(config: Mapping[str, Any]) -> SimpleNamespace:
    """Return what a trial is asked to be by its configuration in Tune: `OWN`, its space's budget and evaluations.

    `num_evaluations` is 0 where the trial is timed and not judged.
    """
    spec = json.loads(config["trial"].space)
    budget, evaluation = spec.get("budget", {}), spec["evaluation"]
    return SimpleNamespace(
        **{name: getattr(config["trial"].started, name) for name in OWN},
        env_steps=budget.get("env_steps"),
        time_s=budget.get("time_s"),
        episodes=evaluation["episodes"],
        num_evaluations=0 if spec.get("kind") == "throughput" else evaluation["num_evaluations"],
    )


# --- recorded studies ------------------------------------------------------------------------------------------------


def write_trials_csv(study_folder: Path, target: Path) -> None:
    """Write the table of trials of a recorded study anew."""
    write_table(target, ledger_of(StudyFolder(study_folder).records).rows.values())
