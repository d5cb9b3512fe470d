"""Why a trial ended, from what Ray says of it: an error of its own, or a node or process that died under it. Pure.

A setting is not to blame for the machine it ran on. So a trial that was lost is taken back and runs again, as a new
attempt of the same number, setting and seed (`study.driver.conductor`).
"""

import re
from types import MappingProxyType
from typing import Literal

from study.errors import TrialError, TrialLostError

Loss = Literal["node", "process"]
"""What died under a trial."""
TAKEN_BACK: MappingProxyType[Loss, int] = MappingProxyType({"node": 3, "process": 1})
"""How often a trial that was lost runs again in one session; after that it has failed.

Nodes go for reasons of their own, and on preemptible machines often. A process that dies alone may have been killed by
a person or for want of memory, but it may also be the trial that kills it, each time anew.
"""


def reason_of(text: str, *, address: str = "") -> str:
    """Return in one line why a trial failed, as near to the cause as Ray tells.

    Ray hands over the tracebacks of every process on the way, the cause last. A `TrialError` was written for people
    and stands for itself; of any other exception the name is given too. Where a process died, nothing was raised.

    Args:
        text: What Tune wrote about the failure.
        address: The node of the trial's main process, as far as it is known.
    """
    text = _ANSI.sub("", text)
    raised = list(_RAISED.finditer(text))
    if raised:
        name, message = raised[-1].group(1).rpartition(".")[2], raised[-1].group(2).strip()
        return (message if name in _FOR_PEOPLE else f"{name}: {message}")[:500]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _GONE.search(text):
        said = next((line for line in lines if _SAID.match(line)), lines[0])
        where = next((line.removeprefix("ip: ") for line in lines if line.startswith("ip: ")), address)
        rule = "its main process must stay alive"
        if loss_of(text) == "node":
            rule = "the node of its main process must stay in reach"
        return f"trial: {rule}{f' ({where})' if where else ''}, got: {said}"[:500]
    return lines[0][:500] if lines else "a process of the trial ended without a word"


def loss_of(text: str) -> Loss | None:
    """Return what died under a trial, or None where it failed by itself.

    Args:
        text: What Tune wrote about the trial's failure: a traceback from inside the trial, or, where its main process
            is gone, what Ray knows of the end of that process.
    """
    text = _ANSI.sub("", text)
    raised = list(_RAISED.finditer(text))
    name = raised[-1].group(1).rpartition(".")[2] if raised else ""
    if name == TrialLostError.__name__:
        return "node" if _NODE.search(text) else "process"
    if name or not _GONE.search(text):
        return None
    return "process" if _PROCESS.search(text) else "node"


_FOR_PEOPLE = (TrialError.__name__, TrialLostError.__name__)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)): ?(.*)$", re.MULTILINE)
"""The line of a traceback that names what was raised."""
# Ray 2.60's own words (gcs_server, `ray.exceptions`).
_SAID = re.compile(r"The actor is dead because|The actor \w+ is unavailable")
_GONE = re.compile(r"^\s*(?:The actor died unexpectedly|The actor \w+ is unavailable|The actor is dead)", re.MULTILINE)
_NODE = re.compile(r"(?:its|actor's) node (?:has died|was terminated)|is (?:temporarily )?unavailable")
# The node reports a process that dies alone; where nobody reports, the node has died too, or the network.
_PROCESS = re.compile(r"its worker process has died|was killed by `ray\.kill`|references to the actor were removed")
