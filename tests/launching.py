"""Launches as tests need them: the launcher of a job, and a scheduler's programs on the PATH."""

from pathlib import Path

from study.launch.job import Job
from study.launch.schedulers import LAUNCHERS

JOB = {"name": "s", "out": "/w/studies", "space": "/w/s.yaml", "workdir": "/w", "python": "python", "walltime": "2h"}


def launcher(name, *scheduler_options, folder="/w/studies/s.launch", kind=None, variables=None, **fields):
    """Return a launcher, or one of class `kind`, as the supervisor makes it; `fields` are those of its job."""
    job = Job(launcher=name, scheduler_options=scheduler_options, **{**JOB, **fields})
    return (kind or LAUNCHERS[name])(job, Path(folder), variables or {})


def install(place, programs):
    """Put programs, name -> text of a shell, into the folder `bin` of a place."""
    (place / "bin").mkdir(exist_ok=True)
    for name, text in programs.items():
        (place / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (place / "bin" / name).chmod(0o755)
