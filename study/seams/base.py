"""What a seam is, and how it is checked. Imports no engine.

A seam is a place where this project uses something that an engine (Ray, RLlib, JAX, MLflow, tensorboardX)
does not promise: a private attribute, a patch, an overridden private method, a variable of the environment. Each one
states what it needs of the engine, so that a release that has changed is noticed at start-up and by
`python -m study seams`, and not by a wrong number.
"""

import dis
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from packaging.specifiers import SpecifierSet

from study.errors import EngineError

Need = Callable[[], str]
"""Returns what is missing in the installed engine; empty when nothing is."""
Engine = Literal["ray", "rllib", "jax", "mlflow", "tensorboardx"]
"""One module of this package each. Of Optuna nothing private is used."""
ENGINES: tuple[Engine, ...] = ("ray", "rllib", "jax", "mlflow", "tensorboardx")
NONE_KNOWN = "none known"

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """One use of something that an engine does not promise.

    Attributes:
        name: Short name in kebab-case, of the engine's module first: `ray-signal-handlers`.
        distribution: Name of the engine's package for pip.
        versions: Releases with which the tests of this project pass, as a specifier of PEP 440.
        does: What this project does there.
        why: Why the public interface does not suffice.
        upstream: An issue or pull request of the engine, or `none known`.
        needs: What the engine must have for it.
    """

    name: str
    distribution: str
    versions: str
    does: str
    why: str
    upstream: str = NONE_KNOWN
    needs: tuple[Need, ...]

    @property
    def version(self) -> str:
        """Release of the installed engine; empty where it is not installed."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return ""

    @property
    def is_tested(self) -> bool:
        """Whether the tests of this project pass with the installed release."""
        return bool(self.version) and SpecifierSet(self.versions).contains(self.version, prereleases=True)

    def missing(self) -> list[str]:
        """Return what the installed engine, which is imported, lacks for this; empty when the seam holds."""
        if not self.version:
            return [f"the package {self.distribution} is not installed"]
        return [found for need in self.needs if (found := need())]


def seams_of(*engines: Engine) -> tuple[Seam, ...]:
    """Return the seams of some engines."""
    modules = (importlib.import_module(f"study.seams.{engine}") for engine in engines)
    return tuple(each for module in modules for each in vars(module).values() if isinstance(each, Seam))


def require(*engines: Engine) -> None:
    """Check the seams of some engines, as a driver or a trial does when it starts.

    Raises:
        EngineError: An installed engine lacks something. The code is the name of the first such seam.
    """
    broken = [(seam, missing) for seam in seams_of(*engines) if (missing := seam.missing())]
    if broken:
        seam, missing = broken[0]
        others = f" ({len(broken) - 1} more: see `python -m study seams`)" if len(broken) > 1 else ""
        raise EngineError(
            where=f"{seam.distribution} {seam.version or '(not installed)'}",
            rule=f"must have what this project needs to {seam.does}",
            got=f"{'; '.join(missing)}{others}",
            fix=f"Install a tested release: pip install '{seam.distribution}{seam.versions}'.",
            code=seam.name,
        )


# --- what a seam may need ------------------------------------------------------------------------------------------


def has(path: str, *parameters: str) -> Need:
    """Need an attribute, and where parameters are named, that it is called with these.

    Args:
        path: `package.module:Name.attribute`.
        parameters: All parameters in their order, `self` and `cls` included.
    """

    def missing() -> str:
        try:
            found = _resolved(path)
        except (ImportError, AttributeError) as error:
            return f"{path} is gone ({error})"
        if parameters and (got := parameters_of(found)) != parameters:
            return f"{path} must take ({', '.join(parameters)}), it takes ({', '.join(got)})"
        return ""

    return missing


def uses(path: str, *attributes: str) -> Need:
    """Need that a class, or a class that it is derived from, has attributes or gives them to its instances."""

    def missing() -> str:
        try:
            kind = _resolved(path)
        except (ImportError, AttributeError) as error:
            return f"{path} is gone ({error})"
        absent = [name for name in attributes if not has_or_sets(kind, name)]
        return f"{path} no longer has {', '.join(absent)}" if absent else ""

    return missing


def mentions(package: str, file: str, *words: str) -> Need:
    """Need that a file of an engine has some words, such as a variable of the environment that it reads."""

    def missing() -> str:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return f"{package} is not installed"
        try:
            text = (Path(spec.origin).parent / file).read_text()
        except OSError:
            return f"{package}/{file} is gone"
        absent = [word for word in words if word not in text]
        return f"{package}/{file} no longer reads {', '.join(absent)}" if absent else ""

    return missing


def overrides(seam: Seam) -> Callable[[Method], Method]:
    """Mark a method that replaces a private one of an engine's class, and which seam asserts that it is there."""

    def mark(method: Method) -> Method:
        method.__seam__ = seam.name  # type: ignore[attr-defined]
        return method

    return mark


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, without the one that Ray adds to the methods of actors."""
    return tuple(name for name in inspect.signature(function).parameters if name != "_ray_trace_ctx")


def _resolved(path: str) -> Any:
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def has_or_sets(kind: type, attribute: str) -> bool:
    """Return whether a class has an attribute, or one of its methods sets it, as its constructor may."""
    return any(
        attribute in vars(each) or any(_sets(member, attribute) for member in vars(each).values())
        for each in kind.__mro__
    )


def _sets(member: Any, attribute: str) -> bool:
    code = getattr(inspect.unwrap(member) if inspect.isfunction(member) else member, "__code__", None)
    if code is None or attribute not in code.co_names:
        return False
    return any(each.opname == "STORE_ATTR" and each.argval == attribute for each in dis.get_instructions(code))
