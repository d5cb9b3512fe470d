"""Launches as tests need them: the launcher of a job, a scheduler's programs on the PATH, a cluster not yet started."""

import queue
from pathlib import Path

from study.launch.job import Allocation, Host, LaunchJob
from study.launch.ray_cluster import RayCluster
from study.launch.schedulers import LAUNCHERS


def launcher(name, *scheduler_options, folder="/w/studies/s.launch", kind=None, environment=None, **fields):
    """Return a launcher, or one of class `kind`, as the supervisor makes it; `fields` are those of its job."""
    given = {"study": "/w/studies/s", "run": ("run",), "workdir": "/w", "python": "python", "walltime_s": 7200}
    job = LaunchJob(launcher=name, scheduler_options=scheduler_options, **{**given, **fields})
    return (kind or LAUNCHERS[name])(job, Path(folder), environment or {})


def ray_on(launcher, *hosts, inbox=None, note=print):
    """Return a Ray cluster of a launcher on some hosts."""
    allocation = Allocation(hosts=hosts, job="1", ends_at=None)
    return RayCluster(launcher, allocation, inbox or queue.SimpleQueue(), note)


def host(name, num_cpus=None):
    """Return a host of an allocation."""
    return Host(name=name, num_cpus=num_cpus)


def install(place, programs):
    """Put programs, name -> text, into the folder `bin` of a place."""
    (place / "bin").mkdir(exist_ok=True)
    for name, text in programs.items():
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
