"""The program on every host of a launched cluster (`python -m study.launch.agent`): runs a child and ends it.

Messages are JSON lines on its standard input and output:

supervisor -> agent    a task; then {"do": "terminate"}: send the child SIGTERM; the end of the input: see that it ends
agent -> supervisor    {"event": "started", …}   {"event": "line", "text": …}   {"event": "exited", "code": …}
                       {"event": "failed", "reason": …, "fix": …}

Whatever ends its input ends the child: an order, a lost connection, or the death of the supervisor, so that nothing is
left behind. It ignores the signals by which schedulers end jobs: the supervisor gets them too, and ends the study
before Ray. Imports no engine.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pydantic

from study.errors import LaunchError, in_one_line
from study.launch.job import TASK, TERMINATE, CommandTask, RayTask
from study.launch.node import RayNode, die_with_parent

POLL_S = 0.25
CHECK_EVERY_S = 2.0
"""How often a node that has started is checked."""
COMMAND_STOP_TIMEOUT_S = 60.0
"""How long a study may take to end cleanly."""

_said = threading.Lock()


def say(event: str, **content: Any) -> None:
    """Send an event to the supervisor; does nothing if it is gone."""
    line = json.dumps({"event": event, "host": socket.gethostname(), **content}) + "\n"
    with _said, contextlib.suppress(OSError):
        sys.stdout.write(line)
        sys.stdout.flush()


def main() -> int:
    """Do what the first line of standard input says."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)  # a handler, since children would inherit SIG_IGN
    line = sys.stdin.readline()
    if not line:
        return 0
    try:
        task = TASK.validate_json(line)
        return _run_ray(task) if isinstance(task, RayTask) else _run_command(task)
    except pydantic.ValidationError as error:
        say("failed", reason=f"the supervisor must be of the same version: {str(error).splitlines()[0]}")
    except LaunchError as error:
        say("failed", reason=in_one_line(where=error.where, rule=error.rule, got=error.got, fix=""), fix=error.fix)
    except OSError as error:
        say("failed", reason=str(error))
    return 1


def _run_ray(task: RayTask) -> int:
    """Run a node until its end is ordered, or it dies."""
    node, orders, is_up = RayNode(task), _orders(), False
    reason = None
    try:
        while True:
            with contextlib.suppress(queue.Empty):
                if orders.get(timeout=CHECK_EVERY_S if is_up else POLL_S):
                    break
            if (reason := node.death()) is not None:
                say("failed", reason=reason, logs=str(node.folder))
                return 1
            if not is_up and (is_up := node.is_up()):
                about = {"address": node.address, "dashboard": node.dashboard, "folder": str(node.folder)}
                say("started", ip=node.ip, num_cpus=node.num_cpus, **about)
    finally:
        node.stop(keep_logs=reason is not None)
    say("exited", code=0)
    return 0


def _run_command(task: CommandTask) -> int:
    with tempfile.TemporaryDirectory(prefix=f"rl-{os.getuid()}-", dir=task.temp_root) as folder:
        for name, content in task.files.items():
            (Path(folder) / name).write_text(content)
        process = subprocess.Popen(
            [word.replace("{folder}", folder).replace("{python}", sys.executable) for word in task.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **task.environment},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        say("started", pid=process.pid)
        reader = threading.Thread(target=_pass_on, args=[process], daemon=True)
        reader.start()
        orders = _orders()
        while process.poll() is None:
            with contextlib.suppress(queue.Empty):
                if orders.get(timeout=POLL_S):
                    _end(process)
                else:
                    process.send_signal(signal.SIGTERM)
        reader.join(5)
        say("exited", code=process.returncode)
    return 0


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(COMMAND_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _pass_on(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        say("line", text=line.decode(errors="replace").rstrip("\n"))


def _orders() -> "queue.Queue[bool]":
    """Return a queue of orders from now on: False to send the child SIGTERM, True, the last, to see that it ends."""
    orders: queue.Queue[bool] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            with contextlib.suppress(ValueError):  # other lines are ignored
                if json.loads(line) == TERMINATE:
                    orders.put(False)
        orders.put(True)

    threading.Thread(target=read, daemon=True).start()
    return orders


if __name__ == "__main__":
    sys.exit(main())
