"""Where the processes of a trial run, which of them are lost, and the other load of their nodes. Imports Ray, no RLlib.

One process on each machine reads its load: the main process on its own, elsewhere a runner or a learner of the trial.
Nothing is read while an iteration is timed.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from study.machine.host import cpu_model, machine_key
from study.machine.load import LoadSnapshot, NodeLoad, OwnProcesses, load_between, snapshot

LOOK_TIMEOUT_S = 60.0
"""Reading the load takes milliseconds; without an answer it is not known."""
NODE_DEATH_S = 30.0
"""How long Ray takes to notice that a node is gone, at the most: by its health check, or at once by a broken line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A process of a trial and where it is."""

    process: str
    """`main`, `runner` or `learner`."""
    number: int
    """Among the processes of its kind, from 1; 0 for the main process."""
    runners: tuple[int, ...]
    """Runners of the trial, from 1, whose lanes it steps: several when they are emulated."""
    node: str
    """Identity of the node, as Ray knows it."""
    address: str
    host: str
    """Its name, which another machine may have too."""
    cpu_model: str
    machine: str
    """Where it is, by `machine_key`: several nodes of Ray may be on one machine."""
    pid: int
    num_cpus: int
    """CPUs that it reserves."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the records."""
        return {
            "process": self.process,
            "number": self.number,
            "runners": list(self.runners),
            "node": self.address,
            "host": self.host,
            "machine": self.machine,
            "cpu_model": self.cpu_model,
            "num_cpus": self.num_cpus,
        }


def here(process: str, *, number: int = 0, runners: tuple[int, ...] = (), num_cpus: int) -> Place:
    """Return where the calling process is."""
    return Place(
        process=process,
        number=number,
        runners=runners,
        node=ray.get_runtime_context().get_node_id(),
        address=ray.util.get_node_ip_address(),
        host=os.uname().nodename,
        cpu_model=cpu_model(),
        machine=machine_key(),
        pid=os.getpid(),
        num_cpus=num_cpus,
    )


def lost(places: Iterable[Place], *, wait_s: float) -> str:
    """Return in words which processes of a trial went with their nodes; empty when all nodes are there.

    Ray may take `wait_s` seconds to notice.
    """
    deadline = time.monotonic() + wait_s
    while True:
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        gone = [place for place in places if place.node not in alive]
        if gone or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    lines = []
    for address, host in dict.fromkeys((place.address, place.host) for place in gone):
        there = [f"{place.process} {place.number}".removesuffix(" 0") for place in gone if place.address == address]
        lines.append(f"{', '.join(there)} on {address} ({host})")
    return "; ".join(lines)


class NodeWatch:
    """Reads the load of every machine of a trial when its timed part begins and when it ends."""

    def __init__(
        self,
        places: Sequence[Place],
        actor_of: Callable[[Place], Any],
        *,
        driver: tuple[str, int] | None,
        alone: bool,
    ) -> None:
        """Choose the process that reads the load of each machine.

        Args:
            places: The trial's processes, the main one first.
            actor_of: Returns RLlib's actor of a process other than the main one.
            driver: Machine, by `machine_key`, and process of the driver; None where there is none.
            alone: Whether other work in this Ray is foreign.
        """
        first_at = {place.machine: place for place in reversed(places)}
        self._lookers = [actor_of(place) for machine, place in first_at.items() if machine != places[0].machine]
        pids = {machine: tuple(place.pid for place in places if place.machine == machine) for machine in first_at}
        self._ours = OwnProcesses(
            session=ray.get_runtime_context().get_session_name(), driver=driver, trial=pids, alone=alone
        )
        self._first: list[LoadSnapshot | None] = []

    def begin(self) -> None:
        """Read the loads for the first time."""
        self._first = self._look(last=False)

    def end(self) -> list[NodeLoad]:
        """Read the loads again; return those of the time between, as far as they are known."""
        if not self._first:
            return []
        loads = [load_between(*pair) for pair in zip(self._first, self._look(last=True), strict=True)]
        return [load for load in loads if load is not None]

    def _look(self, *, last: bool) -> list[LoadSnapshot | None]:
        asked = [actor.apply.remote(_look, self._ours, last) for actor in self._lookers]
        own = _look(None, self._ours, last)
        try:
            return [own, *ray.get(asked, timeout=LOOK_TIMEOUT_S)]
        except ray.exceptions.RayError:
            return [own, *[None] * len(asked)]  # who is gone will be missed when it is to sample


def _look(_: Any, ours: OwnProcesses, last: bool) -> LoadSnapshot | None:
    """Read the load, in any process; raise nothing, since RLlib ends a process that raises."""
    try:
        return snapshot(ours, last=last)
    except Exception:  # noqa: BLE001 (a load that is not known ends no trial)
        return None
