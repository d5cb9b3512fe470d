"""The launchers that there are. A new one is a file with a class, and its name in `LAUNCHERS`."""

from pathlib import Path

from study.errors import LaunchError
from study.launch.base import Launcher
from study.launch.job import LaunchJob
from study.launch.oar import Oar
from study.launch.pbs import Pbs
from study.launch.slurm import Slurm
from study.launch.ssh import Ssh

LAUNCHERS: dict[str, type[Launcher]] = {each.name: each for each in (Slurm, Oar, Pbs, Ssh)}


def read_launcher(file: Path) -> Launcher:
    """Return the launcher of a job from its `launch.json`.

    Raises:
        LaunchError: The file cannot be read, or names a launcher that does not exist.
    """
    job = LaunchJob.read(file)
    if job.launcher not in LAUNCHERS:
        rule = f"must name a launcher, one of {', '.join(LAUNCHERS)}"
        raise LaunchError(where=str(file), rule=rule, got=job.launcher, fix="Launch it again.")
    return LAUNCHERS[job.launcher](job, file.resolve().parent)
