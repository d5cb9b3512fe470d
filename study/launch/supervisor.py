"""The main program of a job: starts Ray on its hosts, runs the study, stops Ray. Imports no engine.

    python -m study.launch.supervisor JOB/launch.json

The scheduler's signals reach it and only it. Any of them ends the study cleanly; so does the approaching walltime,
which it watches itself, and the loss of a node of Ray. A study that is not complete is then submitted again where the
scheduler can do that, and resumes. What runs on a host, Ray or the study, runs below an agent there (`node.py`), which
ends when this program does.
"""

import collections
import contextlib
import json
import os
import queue
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from study.console import write
from study.errors import ExitCode, LaunchError, StudyError
from study.launch.job import Job
from study.launch.node import CommandTask, RayTask
from study.launch.schedulers import Host, Launcher, dashboard_line, launcher_of
from study.records.files import write_atomically
from study.records.folder import StudyFolder
from study.records.records import Record, StudyClosed, StudyOpened, TrialEnded, read_lines

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
LEAST_S = 30.0
"""With less time left than this, a study is not even begun."""
MARGIN_S = 90.0
"""So long before the walltime the study ends itself."""
NEAR_THE_END_S = 180.0
"""A signal with less time left than this announces the end of the walltime."""
DRIVER_TIMEOUT_S = 75.0
"""How long a driver may take to end after a signal: it ends itself within `study.driver.signals.ANSWER_S`, and its
agent kills it after a minute."""
NODE_TIMEOUT_S = 70.0
"""How long an agent may take to end a node of Ray."""
TOKEN_FILE, ADDRESS_FILE = "ray.token", "ray.json"
LOOK_AT_LINES = (
    "Look in its last lines above for what it lacked, such as memory, disk, time or a port, and launch again."
)


class Stopped(Exception):  # noqa: N818 (no error)
    """A signal came while Ray was starting."""


class AgentEvent(msgspec.Struct, frozen=True):
    """A message of an agent, or the end of its remote shell: the kind `gone`."""

    agent: "Agent"
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        """Which message it is: started, line, exited, failed, gone."""
        return str(self.content["event"])

    @property
    def is_end(self) -> bool:
        """Whether the agent's child has failed, or its remote shell has ended."""
        return self.kind in ("failed", "gone")

    @property
    def reason(self) -> str:
        """The agent's reason of a failure; else how its remote shell ended."""
        reason = self.content.get("reason") or f"the end of its remote shell with code {self.content.get('code')}"
        lines = f": {self.agent.last_lines}" if self.kind == "gone" and self.agent.last_lines else ""
        where = f". Its logs are in {self.agent.host}:{self.content['logs']}" if "logs" in self.content else ""
        return f"{(reason + lines).removesuffix('.')}{where}"

    def error(self, *, rule: str, fix: str = LOOK_AT_LINES) -> LaunchError:
        """Return the error that the event is; a fix of the agent's own comes first."""
        return LaunchError(where=self.agent.host, rule=rule, got=self.reason, fix=self.content.get("fix") or fix)


class Agent:
    """A program on a host that ends when this object is stopped, or this process dies."""

    def __init__(
        self, host: str, command: list[str], task: RayTask | CommandTask, inbox: "queue.SimpleQueue[AgentEvent | str]"
    ) -> None:
        """Start it.

        Raises:
            OSError: There is no such remote shell.
        """
        self.host = host
        self.started: dict[str, Any] = {}
        """What it said when its child had started; empty before."""
        self._inbox = inbox
        self._last_lines: collections.deque[str] = collections.deque(maxlen=6)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # not ended by Ctrl-C, which is for the supervisor to order
        )
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()  # first: the listener waits for it at its end, which comes at once without a host
        threading.Thread(target=self._read_events, daemon=True).start()
        with contextlib.suppress(OSError):  # it is gone; its end is in the inbox
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(task).decode() + "\n")
            self._process.stdin.flush()

    @property
    def last_lines(self) -> str:
        """The last lines that were no event: of the remote shell, its login, the environment's activation."""
        return " · ".join(self._last_lines)

    def stop(self) -> None:
        """Order it to end its child; an event follows when that is done."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended by then; after that its remote shell is killed."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):  # oarsh belongs to another user
                os.killpg(self._process.pid, signal.SIGKILL)  # srun has a process of its own below
            return False
        return True

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                content = json.loads(line)
                kind = content["event"]
            except (ValueError, TypeError, KeyError):
                self._last_lines.append(line.strip())
                continue
            if kind == "started":
                self.started = content
            self._inbox.put(AgentEvent(self, content))
        self._errors.join(2)
        self._inbox.put(AgentEvent(self, {"event": "gone", "code": self._process.wait()}))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip():
                self._last_lines.append(line.strip())


class Supervisor:
    """One run of a job."""

    def __init__(self, launcher: Launcher) -> None:
        """Read nothing yet."""
        self.inbox: queue.SimpleQueue[AgentEvent | str] = queue.SimpleQueue()
        """Events of agents, and names of signals."""
        self._launcher, self._job, self._folder = launcher, launcher.job, launcher.folder
        self._hosts: tuple[Host, ...] = ()
        self._job_id = ""
        self._environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_urlsafe(32)}
        self._nodes: list[Agent] = []
        """Of Ray, the head's first."""
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
            self._job_id, self._hosts, self._ends_at = self._launcher.allocation()
            hosts = ", ".join(f"{host.name} ({host.num_cpus or '?'} CPUs)" for host in self._hosts)
            note(f"Job {self._job_id}: {hosts}.")
            if self._ends_at is not None:
                note(f"It may last until {time.strftime('%H:%M:%S', time.localtime(self._ends_at))}.")
            ended_before = self.num_ended()
            try:
                self.start_ray()
                code = self.drive()
            except Stopped as stopped:
                self._signal = str(stopped)
                code = ExitCode.STOPPED
            finally:
                self.stop_ray()
            return self.end(code, ended_before)

    @contextlib.contextmanager
    def _taking_signals(self) -> Iterator[None]:
        def handle(number: int, frame: FrameType | None) -> None:
            self.inbox.put(signal.Signals(number).name)

        # Under `nohup` this process is to outlive its terminal.
        heard = [each for each in SIGNALS if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                # Later signals are ignored: Ray is down, and the job is ending.
                signal.signal(number, signal.SIG_IGN if self._signal or self._out_of_time else handler)

    # --- Ray ---------------------------------------------------------------------------------------------------

    def start_ray(self) -> None:
        """Bring Ray up on all hosts, beside whatever else runs there: the head first, then the others.

        Raises:
            LaunchError: It does not come up; says on which host and why.
            Stopped: A signal came first.
        """
        head, *workers = self._hosts
        deadline = time.monotonic() + self._job.wait_s
        # Token and address are for people who want to look inside; no program reads them.
        write_atomically(self._folder / TOKEN_FILE, self._environment["RAY_AUTH_TOKEN"])
        self._start_node(head, peer=workers[0].name if workers else "")
        self._await_started(deadline)
        about = self._nodes[0].started
        note(f"Ray's head listens on {about['address']} ({head.name}).")
        for host in workers:
            self._start_node(host, peer=about["ip"], address=about["address"])
        self._await_started(deadline)
        nodes = [{"host": each.host, **each.started} for each in self._nodes]
        content = {"address": about["address"], "token_file": str(self._folder / TOKEN_FILE), "hosts": nodes}
        write_atomically(self._folder / ADDRESS_FILE, json.dumps(content, indent=1) + "\n")
        plural = "s" if workers else ""
        num_cpus = sum(each.started["num_cpus"] for each in self._nodes)
        note(f"Ray is up: {len(self._nodes)} node{plural} with {num_cpus} CPUs.")
        if self._job.dashboard:
            note(f"From your own machine: {dashboard_line(head.name, about['dashboard'])}")

    def _start_node(self, host: Host, *, peer: str, address: str = "") -> None:
        job = self._job
        # A scheduler may count hyper-threads: then the host counts its cores.
        num_cpus = job.cpus_per_node or (host.num_cpus if self._launcher.has_exact_cpus else None)
        if not (address or job.use_head or len(self._hosts) == 1):
            num_cpus = 0
        task = RayTask(
            job=self._job_id,
            temp_root=job.temp_root,
            environment=self._environment,
            address=address,
            num_cpus=num_cpus,
            granted=host.num_cpus,
            interface=job.interface,
            peer=peer,
            port_base=job.port_base,
            dashboard=job.dashboard,
        )
        self._nodes.append(self._agent(host, task))

    def _agent(self, host: Host, task: RayTask | CommandTask) -> Agent:
        job = self._job
        agent = f"exec {shlex.join(shlex.split(job.python))} -u -m study.launch.node"  # nothing secret is in it
        line = " && ".join(filter(None, [f"cd {shlex.quote(job.workdir)}", job.activate, agent]))
        try:
            return Agent(host.name, self._launcher.remote_shell(host, line), task, self.inbox)
        except OSError as error:
            rule, fix = "a remote shell must start there", "Put its command on this host's PATH."
            raise LaunchError(where=host.name, rule=rule, got=error, fix=fix) from error

    def _await_started(self, deadline: float) -> None:
        while missing := [agent for agent in self._nodes if not agent.started]:
            try:
                event = self.inbox.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                where, rule = ", ".join(agent.host for agent in missing), "Ray must start there within"
                fix = "Raise --wait where file systems are slow, or copy the environment to each host in --activate."
                raise LaunchError(where=where, rule=f"{rule} {self._job.wait_s:.0f} s", fix=fix) from None
            if isinstance(event, str):
                raise Stopped(event)
            if event.is_end and event.agent.started:
                # Noted before the others are taken down, which takes a while.
                what = self._role(event.agent)
                note(f"{event.agent.host}: {what} has ended: {event.reason}.")
                rule = f"{what} must go on running there"
                raise LaunchError(where=event.agent.host, rule=rule, got="its end", fix=LOOK_AT_LINES)
            if event.is_end:
                raise event.error(rule="Ray must start there")

    def _role(self, agent: Agent) -> str:
        """Return what an agent's node is to this cluster, in words; empty where it runs none of its nodes."""
        if agent not in self._nodes:
            return ""
        return "Ray's head" if agent is self._nodes[0] else "a node of Ray"

    def stop_ray(self) -> None:
        """Take Ray down: workers first, since without a head they wait for half a minute."""
        for group in (self._nodes[1:], self._nodes[:1]):
            for agent in group:
                agent.stop()
            for agent in group:
                if not agent.wait(NODE_TIMEOUT_S):
                    note(f"{agent.host}: its agent did not end within {NODE_TIMEOUT_S:.0f} s and is left alone.")
        for name in (TOKEN_FILE, ADDRESS_FILE):
            (self._folder / name).unlink(missing_ok=True)

    # --- the study ---------------------------------------------------------------------------------------------

    def drive(self) -> int:
        """Run the study's driver to its end; return its exit code."""
        job = self._job
        budget = None if self._ends_at is None else self._ends_at - time.time() - MARGIN_S
        if budget is not None and budget < LEAST_S:
            self._out_of_time = True
            return ExitCode.STOPPED
        space = job.space if not job.space_text else f"{{folder}}/{Path(job.space).name}"
        words = ["{python}", "-u", "-m", "study", "run", "--space", space, "--name", job.name, "--out", job.out]
        words += [*job.arguments, "--resume-or-start", "--address", self._nodes[0].started["address"]]
        words += [] if budget is None else ["--time-budget", f"{int(budget)}s"]
        task = CommandTask(
            job=self._job_id,
            temp_root=job.temp_root,
            environment=self._environment,
            command=tuple(words),
            files={Path(job.space).name: job.space_text} if job.space_text else {},
        )
        code = self._follow(self._agent(self._hosts[0], task))
        if code < 0 and not self._signal:  # as by the kernel, for lack of memory
            note(f"The study's driver was killed by signal {-code}.")
            self._is_broken = True
        ended_for_time = budget is not None and self._why_closed() in ("time budget", None)
        self._out_of_time = ended_for_time and not self._is_broken
        return code if code >= 0 else ExitCode.STOPPED

    def _follow(self, driver: Agent) -> int:
        """Pass on what the driver prints until it ends; end it when a signal comes, or a node of Ray dies."""
        give_up_at: float | None = None
        while True:
            try:
                event = self.inbox.get(timeout=give_up_at and max(give_up_at - time.monotonic(), 0.01))
            except queue.Empty:
                driver.wait(0)
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
            elif event.is_end and not self._is_broken and (what := self._role(event.agent)):
                self._is_broken = True
                note(f"{event.agent.host}: {what} is lost: {event.reason}")
                note("This job ends: the study goes on in the next one.")
            else:
                continue
            if give_up_at is None:
                driver.stop()
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

    def end(self, code: int, ended_before: int) -> int:
        """Return the code to exit with; resubmit first where the study is not complete.

        Args:
            code: Of the study.
            ended_before: Trials that had ended when the job began.
        """
        if code != ExitCode.STOPPED or not self._job.resubmit:
            return code
        if not all(self._launcher.may_resume(name) for name in (self._signal, *self._late_signals()) if name):
            note("The job was cancelled; the study can be resumed by launching it again.")
            return code
        has_ended_some = self.num_ended() > ended_before
        # A signal near the end of the walltime announces it; another one is a preemption.
        near = self._ends_at is not None and self._ends_at - time.time() < NEAR_THE_END_S
        if (near if self._signal else self._out_of_time) and not has_ended_some:
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
        while not (is_near or self.inbox.empty()):
            if isinstance(event := self.inbox.get(), str):
                yield event

    def _why_closed(self) -> str | None:
        """Return why the latest session ended, by the records; empty if they do not say; None without records."""
        reason: str | None = None
        for record in self._records():
            if isinstance(record, StudyOpened):
                reason = ""
            elif isinstance(record, StudyClosed):
                reason = record.reason
        return reason

    def num_ended(self) -> int:
        """Return the trials that have ended so far, by the records."""
        return sum(isinstance(record, TrialEnded) and record.status != "interrupted" for record in self._records())

    def _records(self) -> Iterator[Record]:
        """Yield the study's records, as far as they can be read from here: with ssh they lie on another machine."""
        records = StudyFolder(Path(self._job.study)).records
        if not self._job.space_text and records.exists():
            with contextlib.suppress(StudyError, OSError):
                yield from (line.record for line in read_lines(records))


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
        return Supervisor(launcher_of(Job.read(file), file.resolve().parent)).run()
    except StudyError as error:
        note(str(error))
        return ExitCode.MISTAKE if not isinstance(error, LaunchError) else ExitCode.NO_CLUSTER


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
