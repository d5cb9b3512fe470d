"""Waits until Ray's head counts the nodes that were started. Imports Ray, in a process of its own.

    python -m study.launch.await_nodes ADDRESS AT_LEAST SECONDS IP…

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


def main(address: str, at_least: str, seconds: str, *ips: str) -> int:
    """Return 0 when all are there, or at least so many when the time is over; else 1."""
    deadline = time.monotonic() + float(seconds)
    seen: list[tuple[str, float]] = []
    reason = ""
    while True:
        try:
            seen, reason = alive(address), ""
        except Exception as error:  # noqa: BLE001 (said, if it lasts)
            reason = f" ({next(iter(str(error).splitlines()), type(error).__name__)[:200]})"
        missing = sorted((Counter(ips) - Counter(ip for ip, _ in seen)).elements())
        over = time.monotonic() >= deadline
        if len(seen) >= int(at_least) and (over or not missing):
            what = f"{len(seen)} node{'s' if len(seen) != 1 else ''} with {sum(cpus for _, cpus in seen):.0f} CPUs"
            print(f"Ray is up: {what}." + (f" Missing: {', '.join(missing)}." if missing else ""))  # noqa: T201
            return 0
        if over:
            who = ", ".join(missing) or f"{at_least} nodes"
            print(f"{who}{reason}")  # noqa: T201
            return 1
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
