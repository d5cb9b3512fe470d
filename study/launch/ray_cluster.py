"""Ray on the hosts of an allocation: head first, then the workers, and down in the reverse order."""

import collections
import json
import queue
import secrets
import shlex
import time
from collections.abc import Callable
from typing import Any

from study.errors import LaunchError
from study.launch.base import Launcher
from study.launch.job import Allocation, Host
from study.launch.node import MARKER, STAGED
from study.launch.remote import LOOK_AT_LINES, Agent, AgentEvent, CommandTask, Inbox, RayTask
from study.records.files import write_atomically

STOP_TIMEOUT_S = 45.0
REPLACE_AFTER_S = (5.0, 20.0, 60.0, 300.0)
"""How long a host is left alone after its node of Ray was lost, the first time and those after it; then for good."""
TOKEN_FILE, ADDRESS_FILE = "ray.token", "ray.json"


class Stopped(Exception):  # noqa: N818 (no error)
    """A signal came while Ray was starting."""


class RayCluster:
    """One Ray cluster of our own, beside whatever else runs on these hosts."""

    def __init__(self, launcher: Launcher, allocation: Allocation, inbox: Inbox, note: Callable[[str], None]) -> None:
        """Start nothing yet."""
        self._launcher, self._job, self._folder = launcher, launcher.job, launcher.folder
        self._allocation, self._inbox, self._note = allocation, inbox, note
        self._token = secrets.token_urlsafe(32)
        self._head: Agent | None = None
        self._workers: list[Agent] = []
        self._lost: list[Agent] = []
        self._losses: collections.Counter[Host] = collections.Counter()
        self._due: dict[Host, float] = {}
        self._deadline = 0.0
        self._early_losses: list[AgentEvent] = []
        """Losses of workers while the cluster came up; they go back into the inbox then, so that they are replaced."""

    @property
    def address(self) -> str:
        """Of the head."""
        assert self._head is not None
        return str(self._head.started["address"])

    @property
    def dashboard_port(self) -> int:
        """Where the head's dashboard listens, on its loopback."""
        assert self._head is not None
        return int(self._head.started["dashboard"].rpartition(":")[2])

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
        allocation = self._allocation
        if self._at_least() > len(allocation.hosts):
            raise LaunchError(
                where="--min-nodes",
                rule=f"must be at most the {len(allocation.hosts)} hosts of the job",
                got=self._at_least(),
                fix="Lower it, or ask for more nodes.",
            )
        self._deadline = time.monotonic() + self._job.wait_s
        # Token and address are for people who want to look inside; no program reads them.
        write_atomically(self._folder / TOKEN_FILE, self._token)
        peer = allocation.workers[0].name if allocation.workers else ""
        self._head = self._launch(allocation.head, self._task(allocation.head, peer=peer))
        self._await_started([self._head])
        self._note(f"Ray's head listens on {self.address} ({allocation.head.name}).")
        ip = str(self._head.started["ip"])
        for host in allocation.workers:
            self._workers.append(self._launch(host, self._task(host, peer=ip, address=self.address)))
        nodes = self._await_started(self._workers, at_least=self._at_least() - 1)
        what = self._await_registered([self._head, *nodes])
        self._write_address([self._head, *nodes])  # before the log says that it is up
        self._note(what)
        self._say_what_is_not_used([self._head, *nodes])
        for event in self._early_losses:
            self._inbox.put(event)

    def _say_what_is_not_used(self, agents: list[Agent]) -> None:
        """Say where Ray has fewer CPUs than the scheduler gave, which may count hyper-threads."""
        if self._job.cpus_per_node is not None:
            return  # as many as were asked for
        given = {host.name: host.num_cpus or 0 for host in self._allocation.hosts}
        for agent in agents:
            used = agent.started.get("num_cpus", 0)
            if 0 < used < given[agent.host]:
                self._note(
                    f"{agent.host}: Ray has {used} of {given[agent.host]} CPUs, one for each core; "
                    f"--cpus-per-node {given[agent.host]} gives it all."
                )

    def _at_least(self) -> int:
        return self._job.min_nodes or len(self._allocation.hosts)

    def run(self, command: tuple[str, ...], *, files: dict[str, str] | None = None) -> Agent:
        """Run a command on the head's host, with what it needs to join."""
        task = CommandTask(
            job=self._allocation.job,
            temp_root=self._job.temp_root,
            environment=self.environment,
            command=command,
            files=files or {},
        )
        return self._launch(self._allocation.head, task)

    @property
    def next_start_at(self) -> float | None:
        """When a lost worker is to be started again, on the monotonic clock."""
        return min(self._due.values(), default=None)

    def replace(self, agent: Agent) -> float | None:
        """Plan the restart of a lost worker; return in how many seconds it is, or None: its host is given up."""
        self._workers.remove(agent)
        self._lost.append(agent)
        host = next(host for host in self._allocation.workers if host.name == agent.host)
        self._losses[host] += 1
        if self._losses[host] > len(REPLACE_AFTER_S):
            return None
        wait_s = REPLACE_AFTER_S[self._losses[host] - 1]
        self._due[host] = time.monotonic() + wait_s
        return wait_s

    def start_due(self) -> None:
        """Start the workers again whose time has come; how that went is in the inbox."""
        assert self._head is not None
        for host in [host for host, at in self._due.items() if at <= time.monotonic()]:
            del self._due[host]
            task = self._task(host, peer=str(self._head.started["ip"]), address=self.address)
            try:
                self._workers.append(self._launch(host, task))
            except LaunchError as error:
                self._note(str(error))

    def is_ours(self, agent: Agent) -> bool:
        """Return whether the agent runs a node of this cluster."""
        return agent is self._head or agent in self._workers

    def is_head(self, agent: Agent) -> bool:
        """Return whether the agent runs the head."""
        return agent is self._head

    def stop(self) -> None:
        """Take it down: workers first, since without a head they wait for half a minute."""
        for group in ([*self._lost, *self._workers], [self._head] if self._head else []):
            for agent in group:
                agent.stop()
            for agent in group:
                if not agent.wait(STOP_TIMEOUT_S):
                    self._note(f"{agent.host}: its agent did not end within {STOP_TIMEOUT_S:.0f} s and is left alone.")
        for name in (TOKEN_FILE, ADDRESS_FILE):
            (self._folder / name).unlink(missing_ok=True)

    def _task(self, host: Host, *, peer: str, address: str = "") -> RayTask:
        job, is_head = self._job, not address
        alone = len(self._allocation.hosts) == 1
        # A scheduler may count hyper-threads: then the host counts its cores.
        num_cpus = job.cpus_per_node or (host.num_cpus if self._launcher.has_exact_cpus else None)
        if is_head and not (alone or job.use_head):
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
            remove=self._staged(host),
        )

    def _staged(self, host: Host) -> str:
        """Return the copy of the environment for a host: each has its own, also where they share the folder."""
        name = STAGED.format(job=self._allocation.job, host=host.name)
        return f"{self._job.temp_root}/{name}" if self._job.stage else ""

    def _launch(self, host: Host, task: RayTask | CommandTask) -> Agent:
        try:
            return Agent(host.name, self._launcher.remote_shell(host, self._line(host)), task, self._inbox)
        except OSError as error:
            raise LaunchError(
                where=host.name,
                rule="a remote shell must start there",
                got=error,
                fix="Put its command on this host's PATH.",
            ) from error

    def _line(self, host: Host) -> str:
        """Return the shell line that becomes the agent on a host; nothing secret is in it."""
        job, python = self._job, shlex.join(shlex.split(self._job.python))
        steps = [f"cd {shlex.quote(job.workdir)}"]
        if job.activate:
            steps.append(job.activate)
        if job.stage:
            here, there = shlex.quote(job.stage), shlex.quote(self._staged(host))
            marker = f"{there}/{MARKER}"
            copy = f"tar -C {here} -cf - . | tar -C {there} -xf - && touch {there}/.staged"
            steps += [
                # One that is there already must be ours, and no link to a folder in which others write.
                f"{{ {{ test ! -L {there} && test -O {there} && test -O {marker}; }}"
                f" || {{ mkdir -m 700 {there} && uname -n > {marker}; }}; }}",
                f"{{ test -e {there}/.staged || {{ {copy}; }} || {{ rm -rf {there}; false; }}; }}",
            ]
            python = f"{there}/bin/python"
        return " && ".join([*steps, f"exec {python} -u -m study.launch.agent"])

    def _await_started(self, agents: list[Agent], *, at_least: int | None = None) -> list[Agent]:
        """Wait until the agents have started Ray; return those that have: `at_least` so many, by default all."""
        wanted = len(agents) if at_least is None else at_least
        failed: dict[Agent, LaunchError] = {}
        while True:
            up = [agent for agent in agents if agent.started and agent not in failed]
            if len(up) == len(agents) or (len(up) >= wanted and len(up) + len(failed) == len(agents)):
                return up
            if len(agents) - len(failed) < wanted:
                raise next(iter(failed.values()))
            event = self._next()
            if event is None:
                if len(up) >= wanted:
                    return up
                missing = ", ".join(agent.host for agent in agents if not agent.started)
                raise LaunchError(
                    where=missing,
                    rule=f"Ray must start there within {self._job.wait_s:.0f} s",
                    fix="Raise --wait where file systems are slow, or copy the environment to the hosts with --stage.",
                )
            if event.kind == "again":
                self._note(f"{event.agent.host}: Ray died while it started, and is started again: {event.reason}.")
            if event.agent in agents and event.is_end:
                failed.setdefault(event.agent, event.error(rule="Ray must start there"))
                self._early_losses.append(event)

    def _ended(self, event: AgentEvent, what: str) -> LaunchError:
        """Note how a node ended, before the others are taken down, which takes a while; return the error to raise."""
        self._note(f"{event.agent.host}: {what} has ended: {event.reason}.")
        rule = f"{what} must go on running there"
        return LaunchError(where=event.agent.host, rule=rule, got="its end", fix=LOOK_AT_LINES)

    def _await_registered(self, agents: list[Agent]) -> str:
        """Wait until Ray's head has counted all, and say what is there.

        A node whose ports are taken never registers and says nothing.
        """
        ips = [str(agent.started["ip"]) for agent in agents]
        left = max(self._deadline - time.monotonic(), 20.0)
        waiter = self.run(
            ("{python}", "-m", "study.launch.await_nodes", self.address, str(self._at_least()), f"{left:.0f}", *ips)
        )
        missing, alive = self.address, set(agents)
        try:
            while (event := self._next(grace_s=30)) is not None:
                if event.agent is waiter and event.kind == "line":
                    missing = str(event.content["text"])
                elif event.agent is waiter and event.kind == "exited":
                    if event.content["code"] == 0:
                        return missing
                    break
                elif event.agent is waiter and event.is_end:
                    raise event.error(rule="a program that waits for all nodes must run there")
                elif event.is_end:
                    self._early_losses.append(event)
                    alive.discard(event.agent)
                    if len(alive) < self._at_least():
                        raise self._ended(event, "a node of Ray")
        finally:
            waiter.stop()
        raise LaunchError(
            where=missing,
            rule=f"must register with Ray's head {self.address} within --wait",
            fix="Check that these hosts reach each other (--interface), or raise --wait.",
        )

    def _next(self, grace_s: float = 0.0) -> AgentEvent | None:
        """Return the next event of an agent; None when the time is over.

        Raises:
            LaunchError: Ray's head, which had started, has ended; nothing that is waited for can come.
            Stopped: A signal came.
        """
        left = self._deadline + grace_s - time.monotonic()
        try:
            event = self._inbox.get(timeout=max(left, 0.01))
        except queue.Empty:
            return None
        if isinstance(event, str):
            raise Stopped(event)
        if event.agent is self._head and event.agent.started and event.is_end:
            raise self._ended(event, "Ray's head")
        return event

    def _write_address(self, agents: list[Agent]) -> None:
        hosts = [{name: agent.started.get(name) for name in ("host", "ip", "num_cpus", "folder")} for agent in agents]
        content: dict[str, Any] = {
            "address": self.address,
            "token_file": str(self._folder / TOKEN_FILE),
            "hosts": hosts,
        }
        if self._job.dashboard:
            content["dashboard"] = agents[0].started["dashboard"]
        write_atomically(self._folder / ADDRESS_FILE, json.dumps(content, indent=1) + "\n")
