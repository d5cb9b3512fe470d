"""The main program of a job: starts Ray on its hosts, runs the study, stops Ray. Imports no engine.

    python -m study.launch.supervisor JOB/launch.json

The scheduler's signals reach it and only it. Any of them ends the study cleanly; so does the approaching walltime,
which it watches itself, and the loss of a node of Ray. A study that is not complete is then submitted again where the
scheduler can do that, and resumes.
"""

import contextlib
import queue
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from study.console import write
from study.errors import ExitCode, LaunchError, StudyError
from study.launch.job import Allocation
from study.launch.launcher import BatchScheduler, Launcher
from study.launch.ray_cluster import Agent, AgentEvent, Inbox, RayCluster, Stopped
from study.launch.schedulers import dashboard_line, read_launcher
from study.records.folder import StudyFolder
from study.records.records import Record, StudyClosed, StudyOpened, TrialEnded, read_lines

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
LEAST_S = 30.0
"""With less time left than this, a study is not even begun."""
DRIVER_TIMEOUT_S = 60.0
"""How long a driver may take to end after a signal: it ends itself within `study.driver.signals.ANSWER_S`."""
NEAR_THE_END_S = BatchScheduler.notice_s + BatchScheduler.early_s
"""A signal with less time left than this announces the end of the walltime."""
MARGIN_S = 90.0
"""So long before the walltime the study ends itself."""


class Supervisor:
    """One run of a job."""

    def __init__(self, launcher: Launcher) -> None:
        """Read nothing yet."""
        self._launcher, self._job, self._folder = launcher, launcher.job, launcher.folder
        self._inbox: Inbox = queue.SimpleQueue()
        self._signal = ""
        self._out_of_time = self._is_broken = False
        self._started_at = time.time()
        self._ends_at: float | None = None

    def run(self) -> int:
        """Run the study as far as this job lets it; return the code to exit with.

        Raises:
            LaunchError: Ray does not start, or the scheduler refuses to queue the study again.
        """
        with self._taking_signals():
            allocation = self._launcher.allocation()
            self._ends_at = allocation.ends_at
            self._describe(allocation)
            ended_before = self._num_ended()
            ray = RayCluster(self._launcher, allocation, self._inbox, note)
            try:
                ray.start()
                if self._job.dashboard:
                    way = {"jump": self._job.jump, "user": self._job.user}
                    line = dashboard_line(allocation.hosts[0].name, ray.dashboard_port, **way)
                    note(f"From your own machine: {line}")
                code = self._drive(ray, allocation)
            except Stopped as stopped:
                self._signal = str(stopped)
                code = ExitCode.STOPPED
            finally:
                ray.stop()
            return self._end(code, ended_before)

    def _describe(self, allocation: Allocation) -> None:
        hosts = ", ".join(f"{host.name} ({host.num_cpus or '?'} CPUs)" for host in allocation.hosts)
        note(f"Job {allocation.job}: {hosts}.")
        if allocation.ends_at is not None:
            note(f"It may last until {time.strftime('%H:%M:%S', time.localtime(allocation.ends_at))}.")

    # --- the study ---------------------------------------------------------------------------------------------

    def _drive(self, ray: RayCluster, allocation: Allocation) -> int:
        """Run the study's driver to its end; return its exit code."""
        budget = None if allocation.ends_at is None else allocation.ends_at - time.time() - MARGIN_S
        if budget is not None and budget < LEAST_S:
            self._out_of_time = True
            return ExitCode.STOPPED
        code = self._follow(self._start_driver(ray, budget), ray)
        if code < 0 and not self._signal:  # as by the kernel, for lack of memory
            note(f"The study's driver was killed by signal {-code}.")
            self._is_broken = True
        ended_for_time = budget is not None and self._why_closed() in ("time budget", None)
        self._out_of_time = ended_for_time and not self._is_broken
        return code if code >= 0 else ExitCode.STOPPED

    def _start_driver(self, ray: RayCluster, budget_s: float | None) -> Agent:
        job = self._job
        limit = () if budget_s is None else ("--time-budget", f"{int(budget_s)}s")
        words = ("{python}", "-u", "-m", "study", *job.run, "--resume-or-start", "--address", ray.address, *limit)
        return ray.run(words, files=job.inputs)

    def _follow(self, driver: Agent, ray: RayCluster) -> int:
        """Pass on what the driver prints until it ends; end it when a signal comes, or a node of Ray dies."""
        give_up_at: float | None = None
        while True:
            try:
                event = self._inbox.get(timeout=give_up_at and max(give_up_at - time.monotonic(), 0.01))
            except queue.Empty:
                driver.stop()
                driver.wait(10)
                return ExitCode.STOPPED
            if isinstance(event, str):
                if self._signal:  # OAR repeats its signal
                    continue
                self._signal = event
                note(f"Received {event}; the study ends cleanly.")
            elif event.agent is driver and (code := self._exit_code(event)) is not None:
                driver.stop()
                driver.wait(10)
                return code
            elif event.is_end and not self._is_broken and (what := ray.role(event.agent)):
                self._is_broken = True
                note(f"{event.agent.host}: {what} is lost: {event.reason}")
                note("This job ends: the study goes on in the next one.")
            else:
                continue
            if give_up_at is None:
                driver.terminate()
                give_up_at = time.monotonic() + DRIVER_TIMEOUT_S

    def _exit_code(self, event: AgentEvent) -> int | None:
        """Handle an event of the driver's agent; return the exit code once there is one."""
        match event.kind:
            case "line":
                _print(str(event.content["text"]))
            case "exited":
                return int(event.content["code"])
            case "failed":
                raise event.error(rule="the study's driver must start there")
            case "gone" if self._signal:
                return ExitCode.STOPPED
            case "gone":
                rule, fix = "the connection to the study's driver must last", "Launch it again; no record is lost."
                raise event.error(rule=rule, fix=fix)
        return None

    # --- the end -----------------------------------------------------------------------------------------------

    def _end(self, code: int, ended_before: int) -> int:
        """Return the code to exit with; resubmit first where the study is not complete."""
        if code != ExitCode.STOPPED or not self._job.resubmit:
            return code
        signals = [self._signal, *self._late_signals()]
        if not all(self._launcher.may_resume(name) for name in signals if name):
            note("The job was cancelled; the study can be resumed by launching it again.")
            return code
        has_ended_some = self._num_ended() > ended_before
        if self._time_is_up() and not has_ended_some:
            raise LaunchError(
                where=self._job.study,
                rule="a job must be long enough for one trial",
                got="one in which no trial ended, so that it is not submitted again",
                fix="Raise --walltime, or lower the space's budget.",
            )
        if self._is_broken and not (self._signal or has_ended_some):
            note("No trial ended in this job, so that it is not submitted again; launch it to resume the study.")
            return code
        if not (self._signal or self._out_of_time or self._is_broken):
            return code  # the driver stopped for a reason of its own, such as a full disk, and would do so again
        note("The study is not complete; the job is submitted again.")
        return self._launcher.resubmit(self._started_at)

    def _late_signals(self) -> Iterator[str]:
        """Yield the signals that came while Ray was taken down: by then the study had ended for another reason.

        At the end of the walltime they are the scheduler's own, and no cancellation.
        """
        is_near = self._ends_at is not None and self._ends_at - time.time() < LEAST_S
        while not (is_near or self._inbox.empty()):
            if isinstance(event := self._inbox.get(), str):
                yield event

    def _time_is_up(self) -> bool:
        """Return whether the study ends for the end of the walltime, and not for a preemption."""
        near = self._ends_at is not None and self._ends_at - time.time() < NEAR_THE_END_S
        return near if self._signal else self._out_of_time

    def _why_closed(self) -> str | None:
        """Return why the latest session ended, by the records; empty if they do not say; None without records."""
        reason: str | None = None
        for record in self._records():
            if isinstance(record, StudyOpened):
                reason = ""
            elif isinstance(record, StudyClosed):
                reason = record.reason
        return reason

    def _num_ended(self) -> int:
        """Return the trials that have ended so far, by the records."""
        return sum(isinstance(record, TrialEnded) and record.status != "interrupted" for record in self._records())

    def _records(self) -> Iterator[Record]:
        """Yield the study's records, as far as they can be read from here: with ssh they lie on another machine."""
        records = StudyFolder(Path(self._job.study)).records
        if self._launcher.Options.shares_files and records.exists():
            with contextlib.suppress(StudyError, OSError):
                yield from (line.record for line in read_lines(records))

    @contextlib.contextmanager
    def _taking_signals(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self._inbox.put(signal.Signals(number).name)

        heard = [number for number in SIGNALS if not _survives(number)]
        before = {number: signal.signal(number, handle) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                # Later signals are ignored: Ray is down, and the job is ending.
                signal.signal(number, signal.SIG_IGN if self._signal or self._out_of_time else handler)


def _survives(number: int) -> bool:
    """Return whether this process is to outlive its terminal, as under `nohup`."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def note(text: str) -> None:
    """Print a line of the supervisor's own into the job's log."""
    _print(f"[{time.strftime('%H:%M:%S')}] {text}")


def _print(line: str) -> None:
    """Print a line into the job's log; where that cannot be written, as on a full disk, the study goes on."""
    with contextlib.suppress(OSError):
        write(f"{line}\n")


def supervise(file: Path) -> int:
    """Run the job of a launch file; return the code to exit with."""
    try:
        return Supervisor(read_launcher(file)).run()
    except StudyError as error:
        note(str(error))
        return ExitCode.MISTAKE if not isinstance(error, LaunchError) else ExitCode.NO_CLUSTER


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
