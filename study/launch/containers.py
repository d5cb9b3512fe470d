"""Recipes of containers with this project: for Kubernetes, and Apptainer for clusters without Docker. Pure."""

import re
import shlex
from dataclasses import dataclass

from study.errors import LaunchError
from study.launch.manifest import Step, fill

HOME = "/opt/study"
"""Where the project is in the container; `run_study.py` and `search_spaces/` are there too."""
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "run_study.py", "study", "analysis", "search_spaces")
"""What of the project goes in."""
DEBIAN_PACKAGES = ("procps", "rsync", "wget")
"""`ps` for Ray, rsync for results, and wget, with which KubeRay before 1.6 asks a pod for its health."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a container is to hold beside the project."""

    python: str = "3.11"
    """Version; must be that of all other nodes of a cluster."""
    extras: tuple[str, ...] = ()
    """Optional parts of the project, such as `envpool`."""
    debian_packages: tuple[str, ...] = ()
    """More of them, such as `libqt5gui5` for Procgen."""

    def __post_init__(self) -> None:
        """Refuse words that a recipe would read as something else.

        Raises:
            LaunchError: One is not plain.
        """
        for what, words, pattern in (
            ("Python version", (self.python,), r"3\.\d+(\.\d+)?"),
            ("extra", self.extras, r"[a-z][a-z0-9-]*"),
            ("Debian package", self.debian_packages, r"[a-z0-9][a-z0-9+.-]+"),
        ):
            for word in words:
                if not re.fullmatch(pattern, word):
                    raise LaunchError(f"container: {what}: must match {pattern}, got '{word}'. Fix: correct it.")


def render_containerfile(recipe: Recipe | None = None) -> str:
    """Return a Containerfile (or Dockerfile), to be built in the project's folder."""
    return fill("Containerfile.j2", **_values(recipe or Recipe()))


def render_apptainer(recipe: Recipe | None = None) -> str:
    """Return an Apptainer (or Singularity) definition, to be built in the project's folder."""
    return fill("apptainer.def.j2", **_values(recipe or Recipe()))


def containerfile_commands(file: str, image: str) -> tuple[Step, ...]:
    """Return what to type in the project's folder; `docker` does as well as `podman`.

    Args:
        file: Where the Containerfile was written.
        image: Name to give it, with the place to push it to.
    """
    index = "--build-arg PIP_EXTRA_INDEX_URL=…"
    return (
        Step(
            shlex.join(["podman", "build", "-f", file, "-t", image, "."]),
            f"in the project's folder; {index} names an index with PyTorch for CPUs, which is gigabytes smaller",
        ),
        Step(shlex.join(["podman", "push", image]), "to where the cluster gets its images"),
    )


def apptainer_commands(file: str, image: str) -> tuple[Step, ...]:
    """Return what to type in the project's folder.

    Args:
        file: Where the definition was written.
        image: File to make, `….sif`.
    """
    program = shlex.join(["apptainer", "exec", image, "python"])
    return (
        Step(
            shlex.join(["apptainer", "build", "--fakeroot", image, file]),
            "for a cluster without Docker, instead of all above; in the project's folder",
        ),
        Step(f"{program} -m study run --space quickstart.yaml --dry-run", "try it"),
    )


def _values(recipe: Recipe) -> dict[str, object]:
    extras = f"[{','.join(recipe.extras)}]" if recipe.extras else ""
    return {
        "python": recipe.python,
        "home": HOME,
        "files": [name for name in SOURCES if "." in name or name.isupper()],
        "folders": [name for name in SOURCES if "." not in name and not name.isupper()],
        "packages": " ".join(sorted({*DEBIAN_PACKAGES, *recipe.debian_packages})),
        # ray[default] is for the dashboard and Ray Jobs; the project pins the version.
        "requirements": f"'.{extras}' 'ray[default]'",
    }
