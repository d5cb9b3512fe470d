"""Persons' scripts for tests: facts, spaces and specs of one, and many that are read in forks of one process."""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from study.machine import apart
from study.space.spec import ScriptFacts, StudySpec
from tests.spaces import spec_of, with_changes

FACTS: dict[str, Any] = {
    "source": {"file": "my_train.py", "sha256": "0" * 64},
    "found_as": "module level, config",
    "algorithm": "PPO",
    "base_algorithm": "PPO",
    "environment": "CartPole-v1",
    "values": {
        "num_env_runners": 2,
        "num_envs_per_env_runner": 1,
        "train_batch_size": 400,
        "minibatch_size": 100,
        "num_epochs": 2,
        "lr": 0.001,
        "gamma": 0.99,
        "grad_clip": None,
        "vf_clip_param": 10.0,
    },
}
SPACE: dict[str, Any] = {
    "config": "my_train.py",
    "parameters": {"num_env_runners": [1, 2], "lr": [0.001, 0.002]},
    "budget": {"env_steps": 800},
    "search": {"sampler": "random", "num_trials": 4},
    "evaluation": {"episodes": 3, "num_evaluations": 2},
}


def facts(**changes: Any) -> ScriptFacts:
    """Return facts of a script, with some of them replaced."""
    return ScriptFacts.model_validate({**FACTS, **changes})


def as_of_script(space: StudySpec, **changes: Any) -> StudySpec:
    """Return a space as if a script with these facts had been named in it."""
    return space.model_copy(update={"script": facts(**changes)})


def script_spec(found: ScriptFacts | None = None, **changes: Any) -> StudySpec:
    """Return the spec of a space that names a script in which this was found, with changes as of `with_changes`."""
    return spec_of(with_changes(SPACE, script=(found or facts()).model_dump(mode="json"), **changes))


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["study.adopted.finding"])


def _read(place: str, folder: str) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(f"{place}/output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    sys.path.insert(0, folder)
    apart.answer_call(place)


@contextlib.contextmanager
def forked_readings() -> Iterator[None]:
    """Let `read_script` fork one process that has imported RLlib, in place of a new interpreter for each script."""

    def run(place: Path, limit_s: float) -> int | None:
        process = _FORKS.Process(target=_read, args=(str(place), str(Path.cwd())))
        process.start()
        process.join()
        return process.exitcode

    before, apart._run = apart._run, run
    try:
        yield
    finally:
        apart._run = before
