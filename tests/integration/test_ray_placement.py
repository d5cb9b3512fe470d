"""Whether a trial fits the nodes, as the plan says, and as Ray's placement groups turn out on nodes of such sizes."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from study.planning import Process, fits

CASES = (
    ((4, 3, 1), (1, 3, 2, 2)),  # it would fit, and Ray does not find out
    ((4, 3), (2, 3, 2)),
    ((4, 5, 1), (1, 2, 2, 2, 3)),
    ((4, 4), (3, 2, 2, 1)),
)
"""CPUs of the nodes, CPUs of the processes."""
ASK_RAY = textwrap.dedent("""
    import json, sys, time
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.placement_group import placement_group, remove_placement_group

    for nodes, processes in json.loads(sys.argv[1]):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for num_cpus in nodes:
            cluster.add_node(num_cpus=num_cpus)
        ray.init(address=cluster.address, log_to_driver=False)
        for strategy in ("PACK", "SPREAD"):
            group = placement_group([{"CPU": num_cpus} for num_cpus in processes], strategy=strategy)
            print(json.dumps([nodes, processes, strategy, group.wait(8)]), flush=True)
            remove_placement_group(group)
            while ray.available_resources().get("CPU", 0) < sum(nodes):
                time.sleep(0.1)
        ray.shutdown()
        cluster.shutdown()
""")


@pytest.mark.minutes
def test_what_the_plan_says_fits_is_what_ray_finds_room_for() -> None:
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", ASK_RAY, json.dumps(CASES)], env=environment, capture_output=True, text=True, timeout=300
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    assert len(found) == 2 * len(CASES), done.stderr[-2000:]
    assert {answer for *_, answer in found} == {True, False}
    for nodes, processes, strategy, answer in found:
        wanted = [Process(num_cpus=num_cpus, memory_mb=0) for num_cpus in processes]
        rooms = [(num_cpus, 0, 0) for num_cpus in nodes]
        assert fits(wanted, rooms, spread=strategy == "SPREAD") == answer, (nodes, processes, strategy)
