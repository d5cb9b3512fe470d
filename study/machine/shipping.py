"""Which code of the user's own a study needs, and how it gets to nodes that do not have it. No Ray.

A space names `module:Class`. Where that module is no installed one, it and the modules beside it that it has imported
travel to every node of a joined cluster. What is installed on this machine must be installed on every node.
"""

import hashlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.errors import ClusterError
from study.machine.apart import loaded_names
from study.space.sections import EnvironmentSpec

LEFT_OUT = ("__pycache__", ".git", ".venv")
"""Names of files and folders that do not travel."""
_HERE = frozenset({"study", "analysis", "__main__", "__mp_main__", "sitecustomize", "usercustomize"})
"""Top-level modules that every node has already: this project's, a process's own program, and what a Python
runs at its start."""
_INSTALLED = {"site-packages", "dist-packages", "runtime_resources"}
"""Folders of what nodes have; the last one is of what Ray has brought there itself, as for `ray job submit`."""
_PATHS = [*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), site.getusersitepackages()]
_ROOTS = tuple({Path(path).resolve() for path in _PATHS if path})
"""Where the standard library and installed packages are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModule:
    """A top-level module that is not installed."""

    name: str
    path: Path
    """The file, or the folder of the package."""

    @property
    def travels(self) -> bool:
        """Whether Ray can bring it to a node."""
        return self.path.is_dir() or self.path.suffix == ".py"

    @property
    def digest(self) -> str | None:
        """SHA-256 over names and contents of its files, in hexadecimal; None where one cannot be read."""
        total, parent = hashlib.sha256(), self.path.parent
        try:
            for file in sorted(self.path.rglob("*")) if self.path.is_dir() else [self.path]:
                name = file.relative_to(parent)
                if file.is_file() and not set(LEFT_OUT) & set(name.parts):
                    total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        except OSError:
            return None
        return total.hexdigest()


def own_modules(environment: EnvironmentSpec) -> tuple[OwnModule, ...]:
    """Return the user's own modules that an environment needs, its own first; none where it is installed.

    To be called once the environment was made and stepped here: only then is known what else it imports.
    """
    module, colon, _ = environment.id.partition(":")
    if not colon or environment.backend == "envpool" or (first := _own(module.partition(".")[0])) is None:
        return ()
    beside = [each for each in loaded_modules() if each.path.parent == first.path.parent and each.travels]
    return (first, *(each for each in beside if each != first))


def loaded_modules() -> tuple[OwnModule, ...]:
    """Return the user's own modules among `loaded_names`."""
    return tuple(each for name in sorted(loaded_names()) if (each := _own(name)) is not None)


def runtime_env(
    modules: Sequence[OwnModule], variables: Mapping[str, str | None] | None = None
) -> dict[str, Any] | None:
    """Return Ray's runtime environment that brings modules to every node, None where there is nothing to bring.

    Every process has the variables, but for those that are None.

    Raises:
        ClusterError: A module cannot travel.
    """
    for module in (each for each in modules if not each.travels):
        rule, fix = "must be a folder or a .py file, so that nodes can get it", "Install it on every node."
        raise ClusterError(where=f"module '{module.name}'", rule=rule, got=module.path, fix=fix)
    brought: dict[str, Any] = {}
    if modules:
        brought = {"excludes": list(LEFT_OUT), "py_modules": [str(module.path) for module in modules]}
    if given := {name: value for name, value in (variables or {}).items() if value is not None}:
        brought["env_vars"] = given
    return brought or None


def _own(name: str) -> OwnModule | None:
    """Return a top-level module where it is the user's own; None where it is installed, or not there at all."""
    if name in _HERE or name in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
    for place in places:  # a package without `__init__.py` may have several, of which the first one travels
        path = Path(place).resolve()
        installed = bool(_INSTALLED & set(path.parts)) or any(map(path.is_relative_to, _ROOTS))
        return None if installed else OwnModule(name=name, path=path)
    return None
