"""What the process that reads a script is asked for, and what it gives. Imports no Ray."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from study.cluster.shipping import OwnModule
from study.errors import Fault
from study.space.script import ScriptFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A script's configuration, and what a process must have to run it as the script's own would.

    Attributes:
        pickled: What `study.trial.script_config.pickled` returns for the `AlgorithmConfig`; only a trial, or whoever
            plays a policy, unpickles it.
        facts: What is known of it.
        paths: Folders from which the script imports: its own, and what it has added to `sys.path`.
        modules: What it has imported that is not installed; travels to the nodes of a joined cluster.
        variables: Environment variables that the script sets, also by `ray.init`; None where it removes one.
        folder: That of the command, which travels to the nodes of a joined cluster, where the script names it as
            `working_dir`; else empty.
        jax_obstacle: Why JAX cannot serve a learner beside the script's own code; empty where it can.
    """

    pickled: bytes
    facts: ScriptFacts
    paths: tuple[str, ...] = ()
    modules: tuple[OwnModule, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)
    folder: str = ""
    jax_obstacle: str = ""

    @property
    def environment(self) -> dict[str, str | None]:
        """Environment variables of a process that runs the configuration, beside those that this one has."""
        path = os.pathsep.join(filter(None, [*self.paths, os.environ.get("PYTHONPATH")]))
        return {**self.variables, **({"PYTHONPATH": path} if self.paths else {})}

    def enter(self) -> None:
        """Let this process import what the script imports, and give it the script's environment variables."""
        sys.path[:0] = [path for path in self.paths if path not in sys.path]
        for name, value in self.variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the process shall do.

    Attributes:
        target: A file, or the name of a module.
        name: Object of it, or the number of a choice from 1; empty to look for one.
        args: Arguments of the script.
        kwargs: Arguments of the function `name`.
        timeout_s: Seconds that the script may take.
        episodes: Episodes of a random policy to play.
        play_s: Seconds after which no further episode begins.
    """

    target: str
    name: str = ""
    args: tuple[str, ...] = ()
    kwargs: Mapping[str, Any]
    timeout_s: float
    episodes: int = 0
    play_s: float


class MistakeError(Exception):
    """Ends the reading with a fault for the person.

    Attributes:
        fault: Its parts.
    """

    def __init__(self, *, rule: str, where: str = "", got: object = "", fix: str) -> None:
        super().__init__(rule)
        self.fault = Fault(where=where, rule=rule, got=one_line(got), fix=fix)


def one_line(text: object) -> str:
    """Return a text on one line of bounded length."""
    line = " ".join(str(text).split())
    return line if len(line) <= 300 else f"{line[:297]}..."
