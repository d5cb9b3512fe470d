"""OAR. Facts observed on 2.5.9."""

import contextlib
import re
import shlex
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from study.errors import LaunchError
from study.launch.base import BatchScheduler, ask, clock, is_here
from study.launch.job import Allocation, Host, LaunchJob, hosts_of_file
from study.launch.options import BatchOptions

RESUBMIT = 99
"""Exit code by which an idempotent job asks to be submitted again."""
YOUNGEST_S = 65.0
"""A job that ends sooner is not submitted again (OAR takes 60 s of its own clock)."""
FORESIGHT_S = 10.0
"""How long OAR's scheduler may take to foresee a start."""


@dataclass(frozen=True, kw_only=True)
class OarOptions(BatchOptions):
    """Submit a study to OAR. Options after `--` go to oarsub."""

    example = (
        """python -m study launch oar scaling.yaml --nodes 2 --walltime 4:00:00 --besteffort -- -p "cluster='gros'\""""
    )
    besteffort: Annotated[
        bool, typer.Option("--besteffort", help="Use idle resources; the job is killed when somebody wants them.")
    ] = False

    def job(self, launcher: str) -> LaunchJob:
        """Return the job; `--besteffort` is short for an option of OAR."""
        job, besteffort = super().job(launcher), ("-t", "besteffort") if self.besteffort else ()
        return job.model_copy(update={"scheduler_options": (*besteffort, *job.scheduler_options)})


class Oar(BatchScheduler):
    """The job of `OAR_JOB_ID`."""

    name = "oar"
    Options = OarOptions
    mark = "#OAR"
    size_options = ("-l", "--resource")
    submit_command = ("oarsub", "-S")
    id_pattern = r"OAR_JOB_ID=(\d+)"

    def directives(self) -> list[str]:
        """Return size, name and log; a signal before the walltime and a besteffort kill; idempotent jobs live again.

        Raises:
            LaunchError: OAR would not find the folder again: it unquotes no file name, and a shell reads some of them.
        """
        job = self.job
        if re.search(r"[^\w@%+=:,./-]", str(self.folder)):
            raise LaunchError(
                where="--out",
                rule="must have no blanks, quotes or other signs of a shell, which OAR does not quote",
                got=self.folder,
                fix="Choose another --out, --workdir or --name.",
            )
        cores = f"/core={job.cpus_per_node}" if job.cpus_per_node else ""
        # A second -l would be an alternative, and OAR takes the one that starts first.
        size = [] if self.has_own_size else [f"-l /host={job.nodes}{cores},walltime={clock(job.walltime_s or 0)}"]
        log = shlex.quote(f"{self.folder}/job-")
        again = ["-t idempotent"] if job.resubmit else []
        requeue = [f"--checkpoint {self.notice_s}", *again]
        return [f"-n {job.name}", *size, *requeue, f"-O {log}%jobid%.log", f"-E {log}%jobid%.log"]

    def directive_of(self, option: list[str]) -> str:
        """Return an option as OAR's scan_script takes it: as it stands, and without `=` after a long option."""
        return re.sub(r"^(--[\w-]+)=", r"\1 ", " ".join(option))

    def foreseen_start_of(self, job_id: str) -> str:
        """Return what `oarstat` says; OAR foresees a start only after the submission."""
        deadline = time.monotonic() + FORESIGHT_S
        while time.monotonic() < deadline:
            said = ""
            with contextlib.suppress(LaunchError):
                said = ask("oarstat", "-fj", job_id)
            if state := re.search(r"state = (\w+)", said):
                if state[1] in ("Running", "Launching", "toLaunch"):
                    return "now"
                if match := re.search(r"(?:scheduledStart|scheduled_start|startTime) = (\d{4}\S+ \S+|\d{9,})", said):
                    value = match[1]
                    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(int(value))) if value.isdigit() else value
            time.sleep(1)
        return ""

    def allocation(self) -> Allocation:
        """Return the hosts of the node file, one line for each core; the script runs on the first."""
        job = self.here
        return Allocation(hosts=hosts_of_file(job.node_file), job=job.id, ends_at=job.ends_at)

    def remote_shell(self, host: Host, line: str) -> list[str]:
        """Return a remote shell within the job's cpuset on that host."""
        return ["bash", "-c", line] if is_here(host) else ["oarsh", host.name, line]

    def resubmit(self, started_at: float) -> int:
        """Wait until the job is old enough, and ask for the resubmission by the exit code."""
        time.sleep(max(0.0, YOUNGEST_S - (time.time() - started_at)))
        return RESUBMIT
