"""What reading a script gives: its configuration, pickled, and what is known of it. Imports no Ray."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from study.cluster.shipping import OwnModule
from study.space.script import ScriptFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A script's configuration, and what a process must have to run it as the script's own would.

    Attributes:
        pickled: What `study.trial.adopted.pickled` returns for the `AlgorithmConfig`; only a trial, or whoever plays a
            policy, unpickles it.
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
