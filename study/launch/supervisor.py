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
import os
import queue
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from study.console import say
from study.errors import ClusterError, ExitCode, SpaceError, StudyError
from study.launch.job import BATCH, Host, Job
from study.launch.node import SIGNALS, UP, Task
from study.launch.schedulers import LAUNCHERS, Launcher
from study.records.folder import StudyFolder
from study.records.ledger import ledger_of
from study.text import count

START_TIMEOUT_S = 600.0
"""How long Ray may take to start, on the head and then on all other hosts: network file systems are slow."""
MARGIN_S = 90.0
"""So long before the walltime the study ends itself."""
NEAR_THE_END_S = 180.0
"""A signal with less time left than this announces the end of the walltime."""
AGENT_TIMEOUT_S = 75.0
"""How long an agent may take to end a driver or a node of Ray, which it kills after a minute."""


class Agent:
    """A program on a host that ends when this object is stopped, or this process dies."""

    def __init__(self, launcher: Launcher, host: Host, task: Task, inbox: "queue.SimpleQueue[Agent | str]") -> None:
        """Start it; it is put into the inbox when its node of Ray has started, and when it has ended.

        What a driver prints is printed here.
        """
        self.host, job = host.name, launcher.job
        self.started: dict[str, Any] = {}
        """What its node of Ray said when it had started; empty before."""
        self.code: int | None = None
        """Its exit code; None while it runs."""
        self._lines: collections.deque[str] = collections.deque(maxlen=12)
        self._inbox, self._is_driver = inbox, bool(task.command)
        program = f"exec {shlex.quote(job.python)} -u -m study.launch.node"  # nothing secret is in it
        line = " && ".join(filter(None, [f"cd {shlex.quote(job.workdir)}", job.activate, program]))
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        pipes |= {"text": True, "encoding": "utf-8", "errors": "replace"}
        # In a session of its own: not ended by Ctrl-C, which is for the supervisor to order.
        self._process = subprocess.Popen(launcher.remote_shell(host, line), start_new_session=True, **pipes)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        threading.Thread(target=self._read, daemon=True).start()
        with contextlib.suppress(OSError):  # it is gone; its end is in the inbox
            self._input.write(msgspec.json.encode(task).decode() + "\n")
            self._input.flush()

    @property
    def reason(self) -> str:
        """Its last lines: of Ray, of the remote shell, its login, the environment's activation."""
        return "\n".join(self._lines) or "no word"

    def error(self, rule: str) -> ClusterError:
        """Return the error that its end is, with its last lines; a fix of its own comes first."""
        look = "Look in these lines for what it lacked, such as memory, disk, time or a port, and launch again."
        return ClusterError(where=self.host, rule=rule, got=self.reason, fix="" if "Fix: " in self.reason else look)

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
                self._inbox.put(self)
                continue
            if self._is_driver and not line.startswith("srun: error: "):  # which repeats the code
                _print(line.rstrip("\n"))
            if line.strip():
                self._lines.append(line.strip())
        self.code = self._process.wait()
        self._inbox.put(self)


class Supervisor:
    """One run of a job."""

    def __init__(self, launcher: Launcher) -> None:
        """Read nothing yet."""
        self._launcher, self._job = launcher, launcher.job
        self._inbox: queue.SimpleQueue[Agent | str] = queue.SimpleQueue()
        """Agents of which something is new, and the names of signals."""
        self._environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_urlsafe(32)}
        self._nodes: list[Agent] = []
        """Of Ray, the head's first."""
        self._signals: list[str] = []
        self._lost: Agent | None = None
        """What ended without an order, and the job with it: a node of Ray, or the driver by a signal."""

    def run(self) -> int:
        """Run the study as far as this job lets it; return the code to exit with. Takes the signals of the process.

        Raises:
            ClusterError: Ray does not start, the driver cannot be reached, or the scheduler refuses to queue the study
                again.
        """
        started_at = time.time()
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:  # under `nohup` this outlives its terminal
                signal.signal(each, lambda number, _: self._inbox.put(signal.Signals(number).name))
        name, hosts, ends_at = self._launcher.allocation()
        note(f"Job {name}: " + ", ".join(f"{host.name} ({host.num_cpus or '?'} CPUs)" for host in hosts))
        ended_before, _ = self._progress()
        code: int = ExitCode.STOPPED
        try:
            if self._start_ray(hosts):
                code = self._drive(hosts[0], ends_at)
        finally:
            self._stop_ray()
        self._listen(lambda: False, 0)  # a signal may come while Ray is taken down
        if code == ExitCode.STOPPED and self._job.resubmit and self._job.launcher in BATCH:
            is_near = ends_at is not None and ends_at - time.time() < NEAR_THE_END_S
            if self._may_go_on(ended_before, is_near=is_near):
                note("The study is not complete; the job is submitted again.")
                return self._launcher.resubmit(started_at)
        return code

    def _listen(self, until: Callable[[], object], timeout_s: float) -> None:
        """Take in signals, and what is new of agents, until something is so; so many seconds at most."""
        deadline = time.monotonic() + timeout_s
        while not until():
            try:
                new = self._inbox.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                return
            if isinstance(new, str):
                if not self._signals:  # OAR repeats its signal
                    note(f"Received {new}; the study ends cleanly.")
                self._signals.append(new)
            elif new in self._nodes and new.code is not None and self._lost is None:
                self._lost = new
                note(f"{new.host}: Ray has ended there: {new.reason}")

    def _agent(self, host: Host, **task: Any) -> Agent:
        return Agent(self._launcher, host, Task(environment=self._environment, **task), self._inbox)

    # --- Ray ---------------------------------------------------------------------------------------------------

    def _start_ray(self, hosts: tuple[Host, ...]) -> bool:
        """Bring Ray up on all hosts, the head first; return False where a signal came before that was done."""
        head, *workers = hosts
        self._start_node(
            head, peer=workers[0].name if workers else "", is_idle=bool(workers) and not self._job.use_head
        )
        if not self._are_up():
            return False
        about = self._nodes[0].started
        note(f"Ray's head listens on {about['address']} ({head.name}).")
        for host in workers:
            self._start_node(host, peer=about["ip"], address=about["address"])
        if not self._are_up():
            return False
        num_cpus = sum(each.started["num_cpus"] for each in self._nodes)
        note(f"Ray is up: {count(len(self._nodes), 'node')} with {num_cpus} CPUs.")
        return True

    def _start_node(self, host: Host, *, is_idle: bool = False, **task: Any) -> None:
        # A scheduler may count hyper-threads: then the host counts its cores.
        num_cpus = self._job.cpus_per_node or (host.num_cpus if self._job.launcher == "ssh" else None)
        self._nodes.append(self._agent(host, num_cpus=0 if is_idle else num_cpus, granted=host.num_cpus, **task))

    def _are_up(self) -> bool:
        """Wait until all nodes that were begun have started; return False where a signal came first."""

        def missing() -> list[str]:
            return [agent.host for agent in self._nodes if not agent.started]

        self._listen(lambda: self._signals or self._lost or not missing(), START_TIMEOUT_S)
        if self._lost is not None:
            raise self._lost.error("Ray must start there, and go on")
        if not self._signals and missing():
            rule = f"Ray must start there within {START_TIMEOUT_S:g} s"
            fix = "Where file systems are slow, copy the environment to each host in --activate."
            raise ClusterError(where=", ".join(missing()), rule=rule, fix=fix)
        return not self._signals

    def _stop_ray(self) -> None:
        """Take Ray down: workers first, since without a head they wait for half a minute."""
        nodes, self._nodes = self._nodes, []
        for group in (nodes[1:], nodes[:1]):
            for agent in group:
                agent.stop()
            for agent in group:
                agent.wait(AGENT_TIMEOUT_S)

    # --- the study ---------------------------------------------------------------------------------------------

    def _drive(self, host: Host, ends_at: float | None) -> int:
        """Run the study's driver until it ends, a signal comes, or a node of Ray dies; return its exit code."""
        job = self._job
        space = job.space if not job.space_text else f"{{folder}}/{Path(job.space).name}"
        words = ["{python}", "-u", "-m", "study", "run", "--space", space, "--name", job.name, "--out", job.out]
        words += [*job.arguments, "--resume-or-start", "--address", self._nodes[0].started["address"]]
        if ends_at is not None:
            words += ["--time-budget", f"{max(int(ends_at - time.time() - MARGIN_S), 1)}s"]
        files = {Path(job.space).name: job.space_text} if job.space_text else {}
        driver = self._agent(host, command=tuple(words), files=files)
        self._listen(lambda: driver.code is not None or self._signals or self._lost, threading.TIMEOUT_MAX)
        if driver.code is None:
            driver.stop()
            self._listen(lambda: driver.code is not None, AGENT_TIMEOUT_S)
            driver.wait(0)
        if driver.code in set(ExitCode):
            return driver.code
        if not (self._signals or self._lost):
            if driver.code is None or driver.code - 128 not in signal.valid_signals():
                raise driver.error("the study's driver must start there and stay connected; no record is lost")
            # As by the kernel, for lack of memory.
            note(f"The study's driver was killed by signal {driver.code - 128}.")
            self._lost = driver
        return ExitCode.STOPPED

    def _may_go_on(self, ended_before: int, *, is_near: bool) -> bool:
        """Return whether another job can help: after a preemption, the walltime, or the loss of a node or the driver.

        A driver that stopped for a reason of its own, such as a full disk, would do so again. `ended_before` trials
        had ended when this job began; `is_near` says that its time is almost over.

        Raises:
            ClusterError: No trial ended in this job, and so none would in the next one.
        """
        num_ended, reason = self._progress()
        if not all(map(self._launcher.may_resume, self._signals)):
            note("The job was cancelled; the study can be resumed by launching it again.")
            return False
        if not (self._signals or self._lost or reason == "time budget"):
            return False
        if num_ended > ended_before or (self._signals and not is_near):  # a signal near the end announces it
            return True
        rule = "a trial must end in a job, so that it is submitted again"
        fix = "Raise --walltime, or lower the space's budget; the same launch resumes the study."
        raise ClusterError(where=self._job.study, rule=rule, got="none", fix=fix)

    def _progress(self) -> tuple[int, str]:
        """Return the trials that have ended so far, and why the latest session closed, empty if it did not.

        By the study's records, as far as they can be read from here: with ssh they lie on another machine.
        """
        try:
            ledger = ledger_of(StudyFolder(Path(self._job.study)).records)
        except (StudyError, OSError):
            return 0, ""
        ended = ledger.counts()["finished"] + ledger.counts()["failed"]
        return ended, "" if ledger.closed is None else ledger.closed.reason


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
    except (StudyError, OSError) as error:  # such as a remote shell that is not on the PATH
        note(str(error))
        return ExitCode.MISTAKE if isinstance(error, SpaceError) else ExitCode.NO_CLUSTER


if __name__ == "__main__":
    sys.exit(supervise(Path(sys.argv[1])))
