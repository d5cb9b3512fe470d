"""What a script adds to its process beside the configuration: folders, modules, variables. Imports RLlib."""

import hashlib
import inspect
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnasium.envs.registration import registry as gymnasium_registry

from study.adopted.facts import MistakeError
from study.adopted.interception import Interception, Launch
from study.cluster.shipping import loaded_modules

_OF_THE_STUDY = ("RAY_", "TUNE_", "PYTHONPATH")
"""How environment variables begin that the study sets by itself."""


class Surroundings:
    """What was there before a script ran, to tell what it has added."""

    def __init__(self, file: Path | None) -> None:
        """Note what is there; to be made before the script runs.

        Args:
            file: The script; None for an importable module.
        """
        self._began_in = str(Path.cwd())
        self._folder = str(file.parent if file else self._began_in)
        self._variables = dict(os.environ)
        self._paths = {*sys.path, *_entries(self._variables)} - {self._folder}
        self._modules = {name.partition(".")[0] for name in sys.modules}
        self._environments = set(gymnasium_registry)

    def check_left_alone(self, launch: Launch, ran: Interception, module: ModuleType) -> None:
        """Refuse a script that changes what the processes of a trial have anew.

        Args:
            launch: The training that was found.
            ran: What the script did.
            module: The script's own.

        Raises:
            MistakeError: It trains in another folder, or has replaced a part of RLlib in place.
        """
        for folder in filter(None, [launch.folder, ran.folder]):
            if folder != self._began_in:
                rule = "must train in the folder in which the command is typed: trials and evaluations run there"
                raise MistakeError(rule=rule, got=folder, fix=f"Type the command in {folder}.")
        if (replaced := _replaced_in_rllib({"__main__", module.__name__, *self._own()})) is not None:
            rule = "must leave RLlib's own classes as they are: the processes of a trial import them anew"
            fix = "Derive a class of your own, and give it to the configuration."
            raise MistakeError(rule=rule, got=f"{replaced} of the script's own", fix=fix)

    def digests(self) -> dict[str, str]:
        """Return module of the user's own that the script has imported -> digest of what was imported of it."""
        return {name: _digest(name) for name in self._own()}

    def _own(self) -> list[str]:
        """Return the user's own modules; what RLlib has imported before is none, wherever it is installed."""
        return [each.name for each in loaded_modules() if each.name not in self._modules]

    def registered(self, name: Any) -> Any | None:
        """Return Gymnasium's entry of an environment that the script has registered; None of another one."""
        is_own = isinstance(name, str) and name in gymnasium_registry and name not in self._environments
        return gymnasium_registry[name] if is_own else None

    def added(self, ran: Interception) -> dict[str, Any]:
        """Return the folders, modules and variables that the script has added, as JSON values of `Adopted`.

        Args:
            ran: What the script did.
        """
        given = {**os.environ, **ran.variables}
        found = [str(Path(each).resolve()) for each in [*sys.path, *_entries(given)] if each not in self._paths]
        paths = list(dict.fromkeys([*found, self._folder]))
        beside = {Path(path).resolve() for path in paths}
        modules = [each for each in loaded_modules() if each.paths[0].parent in beside or each.obstacle is None]
        modules += [each for each in ran.modules if each not in modules]
        return {
            "paths": paths,
            "modules": [{"name": each.name, "paths": list(map(str, each.paths))} for each in modules],
            "folder": ran.folder,
            "variables": {
                name: given.get(name)
                for name in sorted({*given, *self._variables})
                if given.get(name) != self._variables.get(name) and not name.startswith(_OF_THE_STUDY)
            },
        }


def _entries(variables: Mapping[str, str]) -> list[str]:
    """Return the folders of `PYTHONPATH`."""
    return [each for each in variables.get("PYTHONPATH", "").split(os.pathsep) if each]


def _replaced_in_rllib(own: set[str]) -> str | None:
    """Return the name of a part of RLlib that is now of one of some modules; None where there is none.

    Args:
        own: Top-level modules of the script.
    """
    for name, module in sorted(sys.modules.items()):
        if name.startswith("ray.rllib."):
            classes = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == name]
            places: list[Any] = [module, *classes]
            for place in places:
                for attribute, value in list(vars(place).items()):
                    if str(getattr(value, "__module__", "")).partition(".")[0] in own:
                        return f"{place.__name__}.{attribute}"
    return None


def _digest(name: str) -> str:
    """Return the SHA-256 of the files of a module, and of those of its package, that this process has imported."""
    total = hashlib.sha256()
    for each, module in sorted(sys.modules.items()):
        if (each == name or each.startswith(f"{name}.")) and getattr(module, "__file__", None):
            total.update(f"{each} {hashlib.sha256(_content(module)).hexdigest()}\n".encode())
    return total.hexdigest()


def _content(module: Any) -> bytes:
    """Return the content of a module's file, which may be in an archive; nothing of one that has none any more."""
    read = getattr(getattr(module, "__loader__", None), "get_data", None) or (lambda file: Path(file).read_bytes())
    with suppress(OSError):
        return bytes(read(module.__file__))
    return b""
