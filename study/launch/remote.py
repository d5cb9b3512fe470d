"""Agents on the hosts, as the supervisor sees them: the messages between both, and the remote shell that carries them.

Messages are JSON lines on the standard input and output of an agent:

supervisor -> agent    a task; then {"do": "terminate"}: send the child SIGTERM; the end of the input: see that it ends
agent -> supervisor    {"event": "started", …}   {"event": "line", "text": …}   {"event": "exited", "code": …}
                       {"event": "failed", "reason": …, "fix": …}   {"event": "again", "reason": …}: Ray starts again
"""

import collections
import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic

from study.errors import LaunchError

LOOK_AT_LINES = (
    "Look in its last lines above for what it lacked, such as memory, disk, time or a port, and launch again."
)


class _Task(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    job: str
    """Name of the job, for folders and ports."""
    temp_root: str
    environment: dict[str, str]
    """Secrets too: what goes over standard input is on no command line and in no file."""


class RayTask(_Task):
    """Run one node of Ray until the supervisor orders its end."""

    kind: Literal["ray"] = "ray"
    address: str = ""
    """Of the head; empty: be the head."""
    num_cpus: int | None
    """CPUs that Ray hands out; None: the cores that this process may use."""
    granted: int | None = None
    """CPUs that the scheduler gave, perhaps hyper-threads: the most that Ray hands out where `num_cpus` is None."""
    interface: str = ""
    peer: str = ""
    """A host that must be reached from here; empty: there is none, and Ray stays on loopback."""
    port_base: int | None = None
    dashboard: bool = False
    remove: str = ""
    """Folder to remove at the end: the copy of an environment."""


class CommandTask(_Task):
    """Run a command, pass on what it prints, report its exit code."""

    kind: Literal["command"] = "command"
    command: tuple[str, ...]
    """`{python}` stands for the interpreter on that host, `{folder}` for a folder with the files."""
    files: dict[str, str] = {}
    """Name -> content."""


TASK: pydantic.TypeAdapter[RayTask | CommandTask] = pydantic.TypeAdapter(
    Annotated[RayTask | CommandTask, pydantic.Field(discriminator="kind")]
)


TERMINATE = {"do": "terminate"}
"""The order to send SIGTERM to the child."""


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """A message of an agent, or the end of its remote shell: the kind `gone`."""

    agent: "Agent"
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        """Which message it is: started, line, exited, failed, again, gone."""
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
        self.failed = False
        """Whether it has said so itself, before it ended."""
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
            self.failed = self.failed or content["event"] == "failed"
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
