"""What reading a script gives: its configuration, pickled, and what is known of it. Imports no Ray."""

import os
from dataclasses import dataclass
from pathlib import Path

from study.space.script import ScriptFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A script's configuration. Only a trial, or whoever plays a policy, unpickles it.

    Attributes:
        pickled: What `study.trial.adopted.pickled` returns for the `AlgorithmConfig`.
        facts: What is known of it.
        folder: Where the script lies; what it imports from there travels to the nodes. None: an installed module.
        imported: Top-level modules that the script has imported and that are not installed.
    """

    pickled: bytes
    facts: ScriptFacts
    folder: Path | None = None
    imported: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a process that runs the configuration, beside those that this one has."""
        if self.folder is None:
            return {}
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))}
