"""Waits until Ray's head counts the nodes that were started. Imports Ray, in a process of its own.

    python -m study.launch.await_nodes ADDRESS NODES SECONDS IP…

Prints one line: what is there, or who is missing and why; the exit code is 0 or 1.
"""

import sys
import time
from collections import Counter

from study.ray_private import nodes_of

POLL_S = 0.5
ALIVE = 0
"""GcsNodeInfo.ALIVE in Ray's gcs.proto."""


def alive(address: str) -> list[tuple[str, float]]:
    """Return the address and the CPUs of every living node; hosts may carry more than one."""
    return [
        (node.node_manager_address, dict(node.resources_total).get("CPU", 0.0))
        for node in nodes_of(address)
        if node.state == ALIVE
    ]


def main(address: str, nodes: str, seconds: str, *ips: str) -> int:
    """Return 0 when all are there, 1 when the time is over."""
    deadline = time.monotonic() + float(seconds)
    while True:
        seen: list[tuple[str, float]] = []
        reason = ""
        try:
            seen = alive(address)
        except Exception as error:  # noqa: BLE001 (said, if it lasts)
            reason = f" ({next(iter(str(error).splitlines()), type(error).__name__)[:200]})"
        missing = sorted((Counter(ips) - Counter(ip for ip, _ in seen)).elements())
        if len(seen) >= int(nodes) and not missing:
            plural = "s" if len(seen) != 1 else ""
            print(f"Ray is up: {len(seen)} node{plural} with {sum(cpus for _, cpus in seen):.0f} CPUs.")  # noqa: T201
            return 0
        if time.monotonic() >= deadline:
            print(f"{', '.join(missing) or f'{nodes} nodes'}{reason}")  # noqa: T201
            return 1
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
