"""Where the processes of a trial run, and what else their machines did. Imports Ray, no RLlib.

One process on each machine reads its load: the main process on its own, elsewhere a runner or a learner of the trial.
Nothing is read while an iteration is timed.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import ray

from study.machine.host import cpu_model, machine_key
from study.machine.load import LoadSnapshot, NodeLoad, OwnProcesses, load_between, snapshot

LOOK_TIMEOUT_S = 60.0
"""Reading the load takes milliseconds; without an answer it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A process of a trial and where it is."""

    process: str
    """`main`, `runner` or `learner`."""
    number: int
    """Among the processes of its kind, from 1; 0 for the main process."""
    runners: tuple[int, ...]
    """Runners of the trial, from 1, whose lanes it steps: several when they are emulated."""
    num_cpus: int
    """CPUs that it reserves."""
    node: str = field(default_factory=lambda: ray.util.get_node_ip_address())
    """Address, by which Ray knows the node."""
    host: str = field(default_factory=lambda: os.uname().nodename)
    """Its name, which another machine may have too."""
    machine: str = field(default_factory=machine_key)
    """Several nodes of Ray may be on one machine."""
    cpu_model: str = field(default_factory=cpu_model)
    pid: int = field(default_factory=os.getpid)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for the records."""
        written = {name: value for name, value in asdict(self).items() if name != "pid"}
        return written | {"runners": list(self.runners)}


def here(process: str, *, num_cpus: int, number: int = 0, runners: tuple[int, ...] = ()) -> Place:
    """Return where the calling process is."""
    return Place(process=process, number=number, runners=runners, num_cpus=num_cpus)


class NodeWatch:
    """Reads the load of every machine of a trial when its timed part begins and when it ends."""

    def __init__(
        self, places: Sequence[Place], actor_of: Callable[[Place], Any], *, driver: tuple[str, int] | None
    ) -> None:
        """Choose the process that reads the load of each machine.

        Args:
            places: The trial's processes, the main one first.
            actor_of: Returns RLlib's actor of a process other than the main one.
            driver: Machine, by `machine_key`, and process of the driver; None where there is none.
        """
        first_at = {place.machine: place for place in reversed(places)}
        self._lookers = [actor_of(place) for machine, place in first_at.items() if machine != places[0].machine]
        pids = {machine: tuple(place.pid for place in places if place.machine == machine) for machine in first_at}
        self._ours = OwnProcesses(session=ray.get_runtime_context().get_session_name(), driver=driver, trial=pids)
        self._first: list[LoadSnapshot | None] = []

    def begin(self) -> None:
        """Read the loads for the first time."""
        self._first = self._look(last=False)

    def end(self) -> list[NodeLoad]:
        """Read the loads again; return those of the time between, as far as they are known."""
        both = zip(self._first, self._look(last=True), strict=True) if self._first else ()
        return [load for load in (load_between(*pair) for pair in both) if load is not None]

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
