"""Ray on the hosts of an allocation, by agents on them: head first, then the workers, and down in the reverse order."""

import collections
import contextlib
import json
import os
import queue
import secrets
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from study.errors import LaunchError
from study.launch.job import TERMINATE, Allocation, CommandTask, Host, RayTask
from study.launch.launcher import Launcher
from study.records.files import write_atomically

STOP_TIMEOUT_S = 45.0
TOKEN_FILE, ADDRESS_FILE = "ray.token", "ray.json"
LOOK_AT_LINES = (
    "Look in its last lines above for what it lacked, such as memory, disk, time or a port, and launch again."
)


class Stopped(Exception):  # noqa: N818 (no error)
    """A signal came while Ray was starting."""


@dataclass(frozen=True, slots=True)
class AgentEvent:
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
        fix = self.content.get("fix") or fix
        return LaunchError(where=self.agent.host, rule=rule, got=self.reason, fix=fix)


Inbox = queue.SimpleQueue[AgentEvent | str]
"""What the supervisor waits for: events of agents, and names of signals, which signal handlers put into it."""


class Agent:
    """A program on a host that ends when this object is closed, or this process dies."""

    def __init__(self, host: str, command: list[str], task: RayTask | CommandTask, inbox: Inbox) -> None:
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
        listener = threading.Thread(target=self._read_events, daemon=True)
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()  # first: the listener waits for it at its end, which comes at once without a host
        listener.start()
        self._write(task.model_dump_json())

    @property
    def last_lines(self) -> str:
        """The last lines that were no answer: of the remote shell, its login, the environment's activation."""
        return " · ".join(self._last_lines)

    def terminate(self) -> None:
        """Ask its child to end."""
        self._write(json.dumps(TERMINATE))

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

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # it is gone; its end is in the inbox
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            content = _event(line)
            if content is None:
                self._last_lines.append(line.strip())
                continue
            if content["event"] == "started":
                self.started = content
            self._inbox.put(AgentEvent(self, content))
        self._errors.join(2)
        self._inbox.put(AgentEvent(self, {"event": "gone", "code": self._process.wait()}))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip():
                self._last_lines.append(line.strip())


def _event(line: str) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) and isinstance(content.get("event"), str) else None


class RayCluster:
    """One Ray cluster of our own, beside whatever else runs on these hosts."""

    def __init__(self, launcher: Launcher, allocation: Allocation, inbox: Inbox, note: Callable[[str], None]) -> None:
        """Start nothing yet."""
        self._launcher, self._job, self._folder = launcher, launcher.job, launcher.folder
        self._allocation, self._inbox, self._note = allocation, inbox, note
        self._token = secrets.token_urlsafe(32)
        self._agents: list[Agent] = []
        """Of the nodes, the head's first."""
        self._deadline = 0.0

    @property
    def address(self) -> str:
        """Of the head."""
        return str(self._agents[0].started["address"])

    @property
    def dashboard_port(self) -> int:
        """Where the head's dashboard listens, on its loopback."""
        return int(self._agents[0].started["dashboard"].rpartition(":")[2])

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to be let in."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token}

    def start(self) -> None:
        """Bring it up on all hosts.

        Raises:
            LaunchError: It does not come up; says on which host and why.
            Stopped: A signal came first.
        """
        head, *workers = self._allocation.hosts
        self._deadline = time.monotonic() + self._job.wait_s
        # Token and address are for people who want to look inside; no program reads them.
        write_atomically(self._folder / TOKEN_FILE, self._token)
        self._start_node(head, peer=workers[0].name if workers else "")
        self._await_started()
        self._note(f"Ray's head listens on {self.address} ({head.name}).")
        for host in workers:
            self._start_node(host, peer=str(self._agents[0].started["ip"]), address=self.address)
        self._await_started()
        what = self._await_registered()
        self._write_address()  # before the log says that it is up
        self._note(what)

    def run(self, command: tuple[str, ...], *, files: dict[str, str] | None = None) -> Agent:
        """Run a command on the head's host, with what it needs to join."""
        job, root, environment = self._allocation.job, self._job.temp_root, self.environment
        task = CommandTask(job=job, temp_root=root, environment=environment, command=command, files=files or {})
        return self._launch(self._allocation.hosts[0], task)

    def role(self, agent: Agent) -> str:
        """Return what an agent's node is to this cluster, in words; empty where it runs none of its nodes."""
        if agent not in self._agents:
            return ""
        return "Ray's head" if agent is self._agents[0] else "a node of Ray"

    def stop(self) -> None:
        """Take it down: workers first, since without a head they wait for half a minute."""
        for group in (self._agents[1:], self._agents[:1]):
            for agent in group:
                agent.stop()
            for agent in group:
                if not agent.wait(STOP_TIMEOUT_S):
                    self._note(f"{agent.host}: its agent did not end within {STOP_TIMEOUT_S:.0f} s and is left alone.")
        for name in (TOKEN_FILE, ADDRESS_FILE):
            (self._folder / name).unlink(missing_ok=True)

    def _start_node(self, host: Host, *, peer: str, address: str = "") -> None:
        self._agents.append(self._launch(host, self._task(host, peer=peer, address=address)))

    def _task(self, host: Host, *, peer: str, address: str = "") -> RayTask:
        job = self._job
        # A scheduler may count hyper-threads: then the host counts its cores.
        num_cpus = job.cpus_per_node or (host.num_cpus if self._launcher.has_exact_cpus else None)
        if not (address or job.use_head or len(self._allocation.hosts) == 1):
            num_cpus = 0
        return RayTask(
            job=self._allocation.job,
            temp_root=job.temp_root,
            environment=self.environment,
            address=address,
            num_cpus=num_cpus,
            granted=host.num_cpus,
            interface=job.interface,
            peer=peer,
            port_base=job.port_base,
            dashboard=job.dashboard,
        )

    def _launch(self, host: Host, task: RayTask | CommandTask) -> Agent:
        job = self._job
        agent = f"exec {shlex.join(shlex.split(job.python))} -u -m study.launch.agent"  # nothing secret is in it
        line = " && ".join(filter(None, [f"cd {shlex.quote(job.workdir)}", job.activate, agent]))
        try:
            return Agent(host.name, self._launcher.remote_shell(host, line), task, self._inbox)
        except OSError as error:
            rule, fix = "a remote shell must start there", "Put its command on this host's PATH."
            raise LaunchError(where=host.name, rule=rule, got=error, fix=fix) from error

    def _await_started(self) -> None:
        while missing := [agent for agent in self._agents if not agent.started]:
            event = self._next()
            if event is None:
                raise LaunchError(
                    where=", ".join(agent.host for agent in missing),
                    rule=f"Ray must start there within {self._job.wait_s:.0f} s",
                    fix="Raise --wait where file systems are slow, or copy the environment to each host in --activate.",
                )
            if event.is_end:
                raise event.error(rule="Ray must start there")

    def _await_registered(self) -> str:
        """Wait until Ray's head has counted all, and say what is there.

        A node whose ports are taken never registers and says nothing.
        """
        ips = [str(agent.started["ip"]) for agent in self._agents]
        left = max(self._deadline - time.monotonic(), 20.0)
        words = ("study.launch.await_nodes", self.address, str(len(ips)), f"{left:.0f}", *ips)
        waiter = self.run(("{python}", "-m", *words))
        said = self.address
        try:
            while (event := self._next(grace_s=30)) is not None:
                if event.kind == "line":
                    said = str(event.content["text"])
                elif event.kind == "exited" and event.content["code"] == 0:
                    return said
                elif event.kind == "exited":
                    break
                elif event.is_end:
                    raise event.error(rule="a program that waits for all nodes must run there")
        finally:
            waiter.stop()
        raise LaunchError(
            where=said,
            rule=f"must register with Ray's head {self.address} within --wait",
            fix="Check that these hosts reach each other (--interface), or raise --wait.",
        )

    def _next(self, grace_s: float = 0.0) -> AgentEvent | None:
        """Return the next event of an agent; None when the time is over.

        Raises:
            LaunchError: A node of Ray, which had started, has ended; nothing that is waited for can come.
            Stopped: A signal came.
        """
        left = self._deadline + grace_s - time.monotonic()
        try:
            event = self._inbox.get(timeout=max(left, 0.01))
        except queue.Empty:
            return None
        if isinstance(event, str):
            raise Stopped(event)
        if event.agent.started and event.is_end and (what := self.role(event.agent)):
            # Noted before the others are taken down, which takes a while.
            self._note(f"{event.agent.host}: {what} has ended: {event.reason}.")
            rule = f"{what} must go on running there"
            raise LaunchError(where=event.agent.host, rule=rule, got="its end", fix=LOOK_AT_LINES)
        return event

    def _write_address(self) -> None:
        hosts = [
            {name: agent.started.get(name) for name in ("host", "ip", "num_cpus", "folder")} for agent in self._agents
        ]
        content: dict[str, Any] = {
            "address": self.address,
            "token_file": str(self._folder / TOKEN_FILE),
            "hosts": hosts,
        }
        if self._job.dashboard:
            content["dashboard"] = self._agents[0].started["dashboard"]
        write_atomically(self._folder / ADDRESS_FILE, json.dumps(content, indent=1) + "\n")
