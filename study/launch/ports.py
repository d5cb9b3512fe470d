"""A block of free ports for one Ray node, which no other node on this host takes. Imports no engine.

Ray picks its ports at random and dies, or never registers, where another program took one in between; two jobs that
share a host collide in the same way. So every node gets a block of its own, of whole cells of one grid. The agent
listens on the first port of each cell as long as Ray runs: the process that holds it owns the cell, and a lock that
ends with its process can never be stale.
"""

import contextlib
import socket
import zlib
from dataclasses import dataclass

from study.errors import LaunchError

LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000
"""Above the ports of Ray's own choice (10002 to 19999) and below Linux's ephemeral ones (32768 to 60999)."""
CELL = 100
"""Ports from one lock to the next; the grid is the same for all, so that blocks of any two sizes meet in a lock."""
_NAMED = [
    "lock",
    "gcs",
    "node_manager",
    "object_manager",
    "metrics",
    "agent_http",
    "agent_grpc",
    "runtime_env",
    "dashboard",
    "client",
]
"""The first ports of a block; those of worker processes follow."""


@dataclass(frozen=True, slots=True)
class PortBlock:
    """Ports of one Ray node."""

    base: int
    num_workers: int
    """Ports for worker processes, one each. Ray passes over those that are taken, as the locks among them are."""
    locks: tuple[socket.socket, ...]

    def __getitem__(self, name: str) -> int:
        return self.base + _NAMED.index(name)

    @property
    def workers(self) -> tuple[int, int]:
        """First and last port of worker processes."""
        first = self.base + len(_NAMED)
        return first, first + self.num_workers - 1

    def release(self) -> None:
        """Let others have it."""
        for lock in self.locks:
            lock.close()


def take_block(job: str, *, num_cpus: int, port_base: int | None = None) -> PortBlock:
    """Find a free block, beginning where the job's name says, and hold it.

    Args:
        job: The job's name: other jobs begin elsewhere, so that hosts rarely have to search.
        num_cpus: CPUs of the node; Ray starts up to a few processes for each.
        port_base: First port that may be used, where a firewall leaves only some; the next multiple of `CELL` counts.

    Raises:
        LaunchError: No block is free.
    """
    num_workers = 100 + 4 * num_cpus
    size = len(_NAMED) + num_workers
    lowest, highest = (LOWEST_PORT, HIGHEST_PORT) if port_base is None else (-(-port_base // CELL) * CELL, 65_535)
    bases = range(lowest, highest - size + 1, CELL)
    first = 0 if port_base is not None else zlib.crc32(job.encode()) % max(len(bases), 1)
    for base in (*bases[first:], *bases[:first]):
        ports = range(base, base + size)
        locks = [claim(port) for port in ports[::CELL]]
        held = tuple(lock for lock in locks if lock is not None)
        block = PortBlock(base=base, num_workers=num_workers, locks=held)
        if len(held) == len(locks) and all(_is_free(port) for port in ports if port % CELL):
            return block
        block.release()
    raise LaunchError(
        where="ports",
        rule=f"{size} in a row must be free between {lowest} and {highest}",
        got="none",
        fix="Give --port-base, or use another host.",
    )


def claim(base: int) -> socket.socket | None:
    """Return the lock of the cell from `base` on, which listens on loopback; None where another process has it."""
    lock = socket.socket()
    try:
        lock.bind(("127.0.0.1", base))
        lock.listen(1)
    except OSError:
        lock.close()
        return None
    return lock


def _is_free(port: int) -> bool:
    """Return whether the port can be bound on all addresses, as Ray does."""
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
