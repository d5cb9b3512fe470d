"""Which code of the user's own a study needs, and how it gets to nodes that do not have it. No Ray.

A space names `module:Class`. Where that module is no installed one, it and the modules beside it that it has imported
travel to every node of a joined cluster. What is installed on this machine must be installed on every node.
"""

import functools
import hashlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from study.errors import ClusterError
from study.space.sections import EnvironmentSpec

LEFT_OUT = ("__pycache__", ".git", ".venv")
"""Names of files and folders that do not travel."""
_HERE = frozenset({"study", "analysis", "__main__", "__mp_main__", "sitecustomize", "usercustomize"})
"""Top-level modules that every node has already: this project's, a process's own program, and what a Python
runs at its start."""
_UNPACKED_BY_RAY = "runtime_resources"
"""Folder of what Ray has brought to a node by itself: the working directory of a `ray job submit`."""
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModule:
    """A top-level module that is not installed.

    Attributes:
        name: Its name.
        paths: The file, or the folder of the package; several for a package without `__init__.py`.
    """

    name: str
    paths: tuple[Path, ...]

    @property
    def travels(self) -> bool:
        """Whether Ray can bring it to a node."""
        path = self.paths[0]
        return len(self.paths) == 1 and (path.is_dir() or (path.is_file() and path.suffix == ".py"))

    @property
    def digest(self) -> str | None:
        """SHA-256 over names and contents of its files, in hexadecimal; None where one cannot be read."""
        try:
            total = hashlib.sha256()
            for name, file in sorted(self._files()):
                total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        except OSError:
            return None
        return total.hexdigest()

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield every file with its name from the module's own folder on."""
        for path in self.paths:
            if not path.is_dir():
                yield path.name, path
            for folder, folders, files in os.walk(path):
                folders[:] = [name for name in folders if name not in LEFT_OUT]
                for file in (Path(folder, name) for name in files if name not in LEFT_OUT):
                    if file.is_file():
                        yield file.relative_to(path).as_posix(), file


def own_modules(environment: EnvironmentSpec) -> tuple[OwnModule, ...]:
    """Return the user's own modules that an environment needs, its own first; none where it is installed.

    To be called once the environment was made and stepped here: only then is known what else it imports.
    """
    module, colon, _ = environment.id.partition(":")
    if not colon or environment.backend == "envpool":
        return ()
    first = _own(module.partition(".")[0])
    if first is None:
        return ()
    beside = first.paths[0].parent
    others = (other for other in loaded_modules() if other.name != first.name and other.paths[0].parent == beside)
    return (first, *(other for other in others if other.travels))


_imported_elsewhere: set[str] = set()
"""Top-level modules that other processes imported, which played an environment for this one."""


def loaded_names() -> set[str]:
    """Return the top-level modules that this process has imported, or another one for it."""
    return {name.partition(".")[0] for name in tuple(sys.modules)} | _imported_elsewhere


def note_imports(names: Iterable[str]) -> None:
    """Remember what a process has imported that played an environment for this one."""
    _imported_elsewhere.update(names)


def loaded_modules() -> tuple[OwnModule, ...]:
    """Return the user's own modules among `loaded_names`."""
    found = (_own(name) for name in sorted(loaded_names()))
    return tuple(each for each in found if each is not None)


def runtime_env(modules: Sequence[OwnModule], variables: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """Return Ray's runtime environment that brings modules to every node, None where there is nothing to bring.

    Args:
        modules: Of the user's own.
        variables: Environment variables of every process.

    Raises:
        ClusterError: A module cannot travel.
    """
    for module in modules:
        if not module.travels:
            where, got = f"module '{module.name}'", ", ".join(map(str, module.paths))
            rule = "must be one folder or one .py file, so that nodes can get it"
            fix = "Make it a folder with an __init__.py, or install it on every node."
            raise ClusterError(where=where, rule=rule, got=got, fix=fix)
    brought: dict[str, Any] = {"excludes": list(LEFT_OUT)} if modules else {}
    if modules:
        brought["py_modules"] = [str(module.paths[0]) for module in modules]
    if variables:
        brought["env_vars"] = dict(variables)
    return brought or None


def _own(name: str) -> OwnModule | None:
    """Return a top-level module where it is the user's own; None where it is installed, or not there at all."""
    if name in _HERE or name in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    paths = () if spec is None else _paths(spec)
    if not paths or any(map(_is_installed, paths)):
        return None
    return OwnModule(name=name, paths=paths)


def _paths(spec: ModuleSpec) -> tuple[Path, ...]:
    if spec.submodule_search_locations is not None:
        return tuple(dict.fromkeys(Path(place).resolve() for place in spec.submodule_search_locations))
    return (Path(spec.origin).resolve(),) if spec.has_location and spec.origin else ()


def _is_installed(path: Path) -> bool:
    if {_UNPACKED_BY_RAY, *_INSTALLED} & set(path.parts):
        return True
    return any(map(path.is_relative_to, _roots()))


@functools.cache
def _roots() -> tuple[Path, ...]:
    """Return where the standard library and installed packages are."""
    roots = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({Path(root).resolve() for root in [*roots, site.getusersitepackages()] if root})
