"""Runs one training in this process and prints it as one JSON line."""

import importlib
import json
import signal
import sys
from dataclasses import asdict

from tests.benchmarks.peers.workload import Training, Workload


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Ray is taken down
    order = json.loads(sys.argv[1])
    workload = Workload(**order.get("workload", {}))
    peer = importlib.import_module(f"tests.benchmarks.peers.{order['peer']}")
    training: Training = peer.train(workload, **order.get("options", {}))
    print(json.dumps(asdict(training)), flush=True)


if __name__ == "__main__":
    main()
