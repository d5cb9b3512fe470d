"""What the supervisor tells an agent to do, and the words between them: JSON lines on the agent's stdin and stdout.

supervisor -> agent    a task; then {"do": "signal", "name": "SIGTERM"} or {"do": "stop"}; the end of input is a stop
agent -> supervisor    {"event": "started", …} · {"event": "line", "text": …} · {"event": "exited", "code": …}
                       or {"event": "failed", "reason": …}; {"event": "again", "reason": …} where Ray is started again
"""

from typing import Annotated, Any, Literal

import pydantic


class _Task(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    job: str
    """Name of the job, for folders and ports."""
    temp_root: str
    environment: dict[str, str]
    """Secrets too: what goes over stdin is on no command line and in no file."""


class RayTask(_Task):
    """Run one node of Ray until told to stop."""

    kind: Literal["ray"] = "ray"
    address: str = ""
    """Of the head; empty: be the head."""
    num_cpus: int | None
    """CPUs that Ray hands out; None: the cores that this process may use."""
    granted: int | None = None
    """CPUs that the scheduler gave, perhaps hyper-threads: the most that Ray hands out where `num_cpus` is None."""
    ip: str = ""
    """Of this host, where it is known."""
    interface: str = ""
    peer: str = ""
    """A host that must be reached from here; empty: there is none, and Ray stays on loopback."""
    port_base: int | None = None
    dashboard: bool = False
    remove: str = ""
    """Folder to remove at the end: the copy of an environment."""


class CommandTask(_Task):
    """Run a command, pass on what it prints, tell how it ended."""

    kind: Literal["command"] = "command"
    command: tuple[str, ...]
    """`{python}` stands for the interpreter on that host, `{folder}` for a folder with the files."""
    files: dict[str, str] = {}
    """Name -> content."""


Task = Annotated[RayTask | CommandTask, pydantic.Field(discriminator="kind")]
_TASK: pydantic.TypeAdapter[RayTask | CommandTask] = pydantic.TypeAdapter(Task)


def parse_task(line: str) -> RayTask | CommandTask:
    """Read a task.

    Raises:
        pydantic.ValidationError: It is none of this version.
    """
    return _TASK.validate_json(line)


class Order(pydantic.BaseModel):
    """What an agent is told about its child while that runs."""

    do: Literal["signal", "stop"]
    name: Literal["SIGTERM", "SIGINT", "SIGUSR1"] = "SIGTERM"


Event = dict[str, Any]
