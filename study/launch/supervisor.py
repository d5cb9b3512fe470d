"""The main program of a job: starts Ray on its hosts, runs the study, stops Ray. Imports no engine.

    python -m study.launch.supervisor JOB/launch.json

The scheduler's signals reach it and only it. Any of them ends the study cleanly; so does the approaching walltime,
which it watches itself. A study that is not complete is then submitted again where the scheduler can do that.
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
from study.launch.base import BatchScheduler, Launcher
from study.launch.job import Allocation
from study.launch.launchers import read_launcher
from study.launch.ray_cluster import RayCluster, Stopped
from study.launch.remote import Agent, AgentEvent, Inbox
from study.launch.ssh import dashboard_line
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
MOST_RESTARTS = 3
"""How often a driver that was killed (by the kernel, for lack of memory) is started again within one job."""


class Supervisor:
    """One run of a job."""

    def __init__(self, launcher: Launcher) -> None:
        """Read nothing yet."""
        self._launcher, self._job, self._folder = launcher, launcher.job, launcher.folder
        self._inbox: Inbox = queue.SimpleQueue()
        self._signal = ""
        self._out_of_time = self._head_is_lost = False
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
                    line = dashboard_line(allocation.head.name, ray.dashboard_port, **way)
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
        """Run the study's driver to its end, again where it was killed; return its exit code."""
        for restart in range(MOST_RESTARTS + 1):
            budget = None if allocation.ends_at is None else allocation.ends_at - time.time() - MARGIN_S
            if budget is not None and budget < LEAST_S:
                self._out_of_time = True
                return ExitCode.STOPPED
            before = self._num_ended()
            driver = self._start_driver(ray, budget)
            code = self._follow(driver, ray)
            if code >= 0 or self._signal:
                self._out_of_time = budget is not None and self._why_closed() in ("time budget", None)
                return code if code >= 0 else ExitCode.STOPPED
            note(f"The study's driver was killed by signal {-code}.")
            if restart == MOST_RESTARTS or (restart and self._num_ended() == before):
                break
            note("It is started again and resumes.")
        return ExitCode.UNEXPECTED

    def _start_driver(self, ray: RayCluster, budget_s: float | None) -> Agent:
        job = self._job
        limit = () if budget_s is None else ("--time-budget", f"{int(budget_s)}s")
        words = ("{python}", "-u", "-m", "study", *job.run, "--resume-or-start", "--address", ray.address, *limit)
        return ray.run(words, files=job.inputs)

    def _follow(self, driver: Agent, ray: RayCluster) -> int:
        """Pass on what the driver prints until it ends; end it when a signal comes, or Ray's head dies."""
        give_up_at: float | None = None
        while True:
            wake_at = ray.next_start_at if give_up_at is None else give_up_at
            try:
                event = self._inbox.get(timeout=None if wake_at is None else max(wake_at - time.monotonic(), 0.01))
            except queue.Empty:
                if give_up_at is None:
                    ray.start_due()
                    continue
                driver.stop()
                driver.wait(10)
                return ExitCode.STOPPED
            if isinstance(event, str):
                if not self._signal:  # OAR repeats its signal
                    self._signal = event
                    note(f"Received {event}; the study ends cleanly.")
                    driver.terminate()
                    give_up_at = time.monotonic() + DRIVER_TIMEOUT_S
            elif event.agent is driver and (code := self._exit_code(event)) is not None:
                driver.stop()
                driver.wait(10)
                return code
            elif ray.is_ours(event.agent) and event.kind == "started":
                note(f"{event.agent.host}: a node of Ray is back.")
            elif ray.is_ours(event.agent) and event.is_end:
                self._lost(event, ray)
                if ray.is_head(event.agent) and give_up_at is None:
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

    def _lost(self, event: AgentEvent, ray: RayCluster) -> None:
        """Note that a node of Ray is gone; a worker is started again, unless the study ends."""
        is_head, has_reason = ray.is_head(event.agent), "reason" in event.content
        self._head_is_lost |= is_head
        if has_reason or not event.agent.failed:
            what = "Ray's head" if is_head else "a node of Ray"
            why = str(event.content["reason"]) if has_reason else event.agent.last_lines or "its agent ended"
            note(f"{event.agent.host}: {what} is lost: {why}")
        # An agent whose node failed still takes down what is left of it: before it is gone, nothing may start there.
        if is_head or event.kind != "gone":
            return
        wait_s = ray.replace(event.agent)
        if not self._signal:
            when = (
                "was lost too often, and is not started again" if wait_s is None else f"starts again in {wait_s:.0f} s"
            )
            note(f"{event.agent.host}: the node {when}.")

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
        if not (self._signal or self._out_of_time or (self._head_is_lost and has_ended_some)):
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
