"""The main program of a job: starts Ray on its hosts, runs the study, stops Ray.

    python -m study.launch.supervisor JOB/launch.json

The scheduler's signals reach it and only it. Any of them ends the study cleanly; so does the approaching walltime,
which it watches itself, and the loss of a node of Ray. A study that is not complete is then submitted again where the
scheduler can do that, and resumes. What runs on a host, Ray or the study, runs below an agent there (`node.py`), which
ends when this program does.
"""

import collections
import contextlib
import json
import math
import os
import queue
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from study.console import say
from study.errors import ClusterError, ExitCode, StudyError
from study.launch.job import BATCH, Host, Job
from study.launch.node import SIGNALS, UP, Task
from study.launch.schedulers import LAUNCHERS, Launcher
from study.records.folder import StudyFolder
from study.records.records import StudyClosed, StudyOpened, TrialEnded, read_lines
from study.text import count

START_TIMEOUT_S = 600.0
"""How long Ray may take to start on all hosts: network file systems are slow."""
LEAST_S = 30.0
"""With less time left than this, a study is not even begun."""
MARGIN_S = 90.0
"""So long before the walltime the study ends itself."""
NEAR_THE_END_S = 180.0
"""A signal with less time left than this announces the end of the walltime."""
AGENT_TIMEOUT_S = 75.0
"""How long an agent may take to end a driver or a node of Ray, which it kills after a minute."""
LOOK_AT_LINES = "Look in these lines for what it lacked, such as memory, disk, time or a port, and launch again."


class Agent:
    """A program on a host that ends when this object is stopped, or this process dies."""

    def __init__(self, launcher: Launcher, host: Host, task: Task, inbox: "queue.SimpleQueue[Event]") -> None:
        """Start it; each line that it prints, and at the end its exit code, goes to the inbox."""
        self.host, job = host.name, launcher.job
        self.started: dict[str, Any] = {}
        """What its node of Ray said when it had started; empty before."""
        self._lines: collections.deque[str] = collections.deque(maxlen=12)
        self._inbox = inbox
        program = f"exec {shlex.quote(job.python)} -u -m study.launch.node"  # nothing secret is in it
        line = " && ".join(filter(None, [f"cd {shlex.quote(job.workdir)}", job.activate, program]))
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        pipes |= {"text": True, "encoding": "utf-8", "errors": "replace"}
        try:  # in a session of its own: not ended by Ctrl-C, which is for the supervisor to order
            self._process = subprocess.Popen(launcher.remote_shell(host, line), start_new_session=True, **pipes)
        except OSError as error:
            rule, fix = "a remote shell must start there", "Put its command on this host's PATH."
            raise ClusterError(where=self.host, rule=rule, got=error, fix=fix) from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        threading.Thread(target=self._read, daemon=True).start()
        with contextlib.suppress(OSError):  # it is gone; its end is in the inbox
            self._input.write(msgspec.json.encode(task).decode() + "\n")
            self._input.flush()

    def error(self, rule: str) -> ClusterError:
        """Return the error that its end is, with its last lines; a fix of its own comes first."""
        fix = "" if "Fix: " in self.reason else LOOK_AT_LINES
        return ClusterError(where=self.host, rule=rule, got=self.reason, fix=fix)

    @property
    def reason(self) -> str:
        """Its last lines: of Ray, of the remote shell, its login, the environment's activation."""
        return "\n".join(self._lines) or "no word"

    def stop(self) -> None:
        """Order it to end its child; its exit code follows when that is done."""
        with contextlib.suppress(OSError):
            self._input.close()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end; after so long kill its remote shell."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):  # oarsh belongs to another user
                os.killpg(self._process.pid, signal.SIGKILL)  # srun has a process of its own below

    def _read(self) -> None:
        for line in self._output:
            if line.startswith(UP):
                self.started = json.loads(line.removeprefix(UP))
            elif line.strip():
                self._lines.append(line.strip())
            self._inbox.put((self, line.rstrip("\n")))
        self._inbox.put((self, self._process.wait()))


Event = tuple[Agent | None, str | int]
"""A line of an agent, or its exit code; without an agent the name of a signal."""


class Supervisor:
    """One run of a job."""

    def __init__(self, launcher: Launcher) -> None:
        """Read nothing yet."""
        self.inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._launcher, self._job = launcher, launcher.job
        self._hosts: tuple[Host, ...] = ()
        self._environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_urlsafe(32)}
        self._nodes: list[Agent] = []
        """Of Ray, the head's first."""
        self._signals: list[str] = []
        self._out_of_time = self._is_broken = False
        self._started_at = time.time()
        self._ends_at: float | None = None

    def run(self) -> int:
        """Run the study as far as this job lets it; return the code to exit with. Takes the signals of the process.

        Raises:
            ClusterError: Ray does not start, or the scheduler refuses to queue the study again.
        """
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:  # under `nohup` this outlives its terminal
                signal.signal(each, lambda number, _: self.inbox.put((None, signal.Signals(number).name)))
        name, self._hosts, self._ends_at = self._launcher.allocation()
        hosts = ", ".join(f"{host.name} ({host.num_cpus or '?'} CPUs)" for host in self._hosts)
        note(f"Job {name}: {hosts}.")
        if self._ends_at is not None:
            note(f"It may last until {time.strftime('%H:%M:%S', time.localtime(self._ends_at))}.")
        ended_before, _ = self.progress()
        code: int = ExitCode.STOPPED
        try:
            if self.start_ray():
                code = self.drive()
        finally:
            self.stop_ray()
        return self.end(code, ended_before)

    # --- Ray ---------------------------------------------------------------------------------------------------

    def start_ray(self) -> bool:
        """Bring Ray up on all hosts, the head first; return False where a signal came before that was done.

        Raises:
            ClusterError: It does not come up; says on which host and why.
        """
        head, *workers = self._hosts
        deadline = time.monotonic() + START_TIMEOUT_S
        self._start_node(head, peer=workers[0].name if workers else "")
        if not self._await_started(deadline):
            return False
        about = self._nodes[0].started
        note(f"Ray's head listens on {about['address']} ({head.name}).")
        for host in workers:
            self._start_node(host, peer=about["ip"], address=about["address"])
        if not self._await_started(deadline):
            return False
        num_cpus = sum(each.started["num_cpus"] for each in self._nodes)
        note(f"Ray is up: {count(len(self._nodes), 'node')} with {num_cpus} CPUs.")
        return True

    def _start_node(self, host: Host, *, peer: str, address: str = "") -> None:
        # A scheduler may count hyper-threads: then the host counts its cores.
        num_cpus = self._job.cpus_per_node or (host.num_cpus if self._job.launcher == "ssh" else None)
        if not (address or self._job.use_head or len(self._hosts) == 1):
            num_cpus = 0
        self._nodes.append(self._agent(host, address=address, num_cpus=num_cpus, granted=host.num_cpus, peer=peer))

    def _agent(self, host: Host, **task: Any) -> Agent:
        return Agent(self._launcher, host, Task(environment=self._environment, **task), self.inbox)

    def _next(self, deadline: float) -> Event | None:
        """Return what happens next, and note a signal; None where nothing happens until then."""
        try:
            agent, said = self.inbox.get(timeout=min(max(deadline - time.monotonic(), 0.01), threading.TIMEOUT_MAX))
        except queue.Empty:
            return None
        if agent is None:
            if not self._signals:  # OAR repeats its signal
                note(f"Received {said}; the study ends cleanly.")
            self._signals.append(str(said))
        return agent, said

    def _await_started(self, deadline: float) -> bool:
        """Return whether all nodes have started; False where a signal came first."""
        while missing := [agent.host for agent in self._nodes if not agent.started]:
            if (event := self._next(deadline)) is None:
                rule = f"Ray must start there within {START_TIMEOUT_S:g} s"
                fix = "Where file systems are slow, copy the environment to each host in --activate."
                raise ClusterError(where=", ".join(missing), rule=rule, fix=fix)
            agent, said = event
            if agent is None:
                return False
            if isinstance(said, int):
                rule = f"{self._role(agent)} must go on running there" if agent.started else "Ray must start there"
                note(f"{agent.host}: {rule}.")  # told before the others are taken down, which takes a while
                raise agent.error(rule)
        return True

    def _role(self, agent: Agent) -> str:
        return "Ray's head" if agent is self._nodes[0] else "a node of Ray"

    def stop_ray(self) -> None:
        """Take Ray down: workers first, since without a head they wait for half a minute."""
        for group in (self._nodes[1:], self._nodes[:1]):
            for agent in group:
                agent.stop()
            for agent in group:
                agent.wait(AGENT_TIMEOUT_S)

    # --- the study ---------------------------------------------------------------------------------------------

    def drive(self) -> int:
        """Run the study's driver to its end; return its exit code.

        Raises:
            ClusterError: It did not start, or the connection to it broke.
        """
        job = self._job
        budget = None if self._ends_at is None else self._ends_at - time.time() - MARGIN_S
        if budget is not None and budget < LEAST_S:
            self._out_of_time = True
            return ExitCode.STOPPED
        space = job.space if not job.space_text else f"{{folder}}/{Path(job.space).name}"
        words = ["{python}", "-u", "-m", "study", "run", "--space", space, "--name", job.name, "--out", job.out]
        words += [*job.arguments, "--resume-or-start", "--address", self._nodes[0].started["address"]]
        words += [] if budget is None else ["--time-budget", f"{int(budget)}s"]
        files = {Path(job.space).name: job.space_text} if job.space_text else {}
        driver = self._agent(self._hosts[0], command=tuple(words), files=files)
        code = self._follow(driver)
        if code not in set(ExitCode) and not self._signals:
            if code - 128 not in signal.valid_signals():
                raise driver.error("the study's driver must start there and stay connected; no record is lost")
            note(f"The study's driver was killed by signal {code - 128}.")  # as by the kernel, for lack of memory
            self._is_broken = True
        self._out_of_time = budget is not None and self.progress()[1] == "time budget" and not self._is_broken
        return code if code in set(ExitCode) else ExitCode.STOPPED

    def _follow(self, driver: Agent) -> int:
        """Pass on what the driver prints until it ends; end it when a signal comes, or a node of Ray dies."""
        give_up_at = math.inf
        while (event := self._next(give_up_at)) is not None:
            agent, said = event
            if agent is driver:
                if isinstance(said, int):
                    return said
                if not said.startswith("srun: error: "):  # which repeats the code
                    _print(said)
            elif agent is not None and isinstance(said, int) and not self._is_broken:
                self._is_broken = True
                note(f"{agent.host}: {self._role(agent)} is lost: {agent.reason}")
                note("This job ends: the study goes on in the next one.")
            if give_up_at == math.inf and (self._signals or self._is_broken):
                driver.stop()
                give_up_at = time.monotonic() + AGENT_TIMEOUT_S
        driver.wait(0)
        return ExitCode.STOPPED

    # --- the end -----------------------------------------------------------------------------------------------

    def end(self, code: int, ended_before: int) -> int:
        """Return the code to exit with; resubmit first where the study is not complete, and another job can help.

        It can after a preemption; and where a trial ended in this one, after the walltime or the loss of a node. A
        driver that stopped for a reason of its own, such as a full disk, would do so again.

        Args:
            code: Of the study.
            ended_before: Trials that had ended when the job began.
        """
        if code != ExitCode.STOPPED or not (self._job.resubmit and self._job.launcher in BATCH):
            return code
        while self._next(0) is not None:  # a signal may come while Ray is taken down
            pass
        if not all(map(self._launcher.may_resume, self._signals)):
            note("The job was cancelled; the study can be resumed by launching it again.")
        elif self._signals or self._out_of_time or self._is_broken:
            # A signal near the end of the walltime announces it; another one is a preemption.
            is_near = self._ends_at is not None and self._ends_at - time.time() < NEAR_THE_END_S
            if (self._signals and not is_near) or self.progress()[0] > ended_before:
                note("The study is not complete; the job is submitted again.")
                return self._launcher.resubmit(self._started_at)
            rule = "a trial must end in a job, so that it is submitted again"
            fix = "Raise --walltime, or lower the space's budget; the same launch resumes the study."
            raise ClusterError(where=self._job.study, rule=rule, got="none", fix=fix)
        return code

    def progress(self) -> tuple[int, str]:
        """Return the trials that have ended so far, and why the latest session closed, empty if it did not.

        By the study's records, as far as they can be read from here: with ssh they lie on another machine.
        """
        num_ended, reason = 0, ""
        with contextlib.suppress(StudyError, OSError):  # there are none yet
            for record in (line.record for line in read_lines(StudyFolder(Path(self._job.study)).records)):
                num_ended += isinstance(record, TrialEnded) and record.status != "interrupted"
                if isinstance(record, StudyOpened | StudyClosed):
                    reason = record.reason if isinstance(record, StudyClosed) else ""
        return num_ended, reason


def note(text: str) -> None:
    """Print a line of the supervisor's own into the job's log."""
    _print(f"[{time.strftime('%H:%M:%S')}] {text}")


def _print(line: str) -> None:
    """Print a line into the job's log; where that cannot be written, as on a full disk, the study goes on."""
    with contextlib.suppress(OSError):
        say(line)


def supervise(file: Path) -> int:
    """Run the job of a launch file; return the code to exit with."""
    try:
        job = Job.read(file)
        return Supervisor(LAUNCHERS[job.launcher](job, file.resolve().parent)).run()
    except StudyError as error:
        note(str(error))
        return ExitCode.MISTAKE if not isinstance(error, ClusterError) else ExitCode.NO_CLUSTER


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
