"""The plan of a throughput study: blocks, groups, legs, labels, and clocks that are refused."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from study.adopted.loading import load_space
from study.cli.tables import print_plan
from study.designs.registry import make_plan, private_shape
from study.designs.throughput.design import in_block
from study.errors import ClusterError
from study.options import all_overrides
from study.space.throughput import BASE_CELL, cells_of
from tests.spaces import cluster, requests_of
from tests.throughput import throughput_spec


def machine(cores, cpus=64, memory_mb=64_000):
    return cluster(local=(cpus, cores), memory_mb=memory_mb)


def blocks_of(spec):
    """Return block -> its requests in their order."""
    requests = requests_of(spec)
    return {
        seed: [request for request in requests if request.seed == seed]
        for seed in dict.fromkeys(request.seed for request in requests)
    }


def test_every_block_runs_every_cell_once_between_two_anchors():
    spec = throughput_spec()
    cells = {cell.name: cell.num_trials for cell in cells_of(spec)}
    blocks = blocks_of(spec)
    assert list(blocks) == [1, 2, 3]
    for requests in blocks.values():
        assert Counter(request.name for request in requests) == {**cells, BASE_CELL: 2}
        assert requests[0].name == requests[-1].name == BASE_CELL
        assert {request.iterations for request in requests} == {3}  # one of warm-up
        assert {request.stage for request in requests} == {"throughput"}
    assert [request.trial for request in requests_of(spec)] == list(range(3 * (sum(cells.values()) + 1)))


def test_cells_of_equal_runners_follow_each_other_in_an_order_of_their_own_in_every_block():
    spec = throughput_spec(throughput__blocks=12)
    orders, of_scales = set(), set()
    for requests in blocks_of(spec).values():
        inside = [request for request in requests[1:-1] if not request.name.startswith("allocation")]
        scales = [request.num_env_runners for request in inside]
        changes = sum(before != after for before, after in itertools.pairwise(scales))
        assert changes == len(set(scales)) - 1
        orders.add(tuple(request.name for request in inside))
        of_scales.add(tuple(dict.fromkeys(scales)))
    assert len(orders) > 8
    assert len(of_scales) == 2  # 1 before 4, and 4 before 1
    other = requests_of(throughput_spec(throughput__blocks=12, search={"sampler_seed": 1}))
    assert [request.name for request in other] != [request.name for request in requests_of(spec)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 5))
def test_a_block_holds_every_point_once_and_keeps_keys_together(keys, seed):
    points = list(enumerate(keys))
    anchor = (-1, -1)
    block = in_block(points, anchor, np.random.default_rng(seed), together=lambda point: point[1])
    assert block[0] == block[-1] == anchor
    assert sorted(block[1:-1]) == points
    found = [key for _, key in block[1:-1]]
    assert sum(a != b for a, b in itertools.pairwise(found)) == max(len(set(found)) - 1, 0)
    plain = in_block(points, anchor, np.random.default_rng(seed))
    assert plain[1:-1] == [points[at] for at in np.random.default_rng(seed).permutation(len(points))]


def test_only_the_trials_of_a_divided_allocation_run_side_by_side():
    groups = Counter(request.group for request in requests_of(throughput_spec()))
    sizes = Counter(groups.values())
    assert sizes == {1: 3 * 11, 2: 3, 4: 3}


def test_trials_go_on_in_processes_of_as_many_runners_and_no_others():
    plan = make_plan(throughput_spec(), machine(2))
    legs = {request.name: plan.processes_kept_for(request) for request in plan.requests}
    assert legs["n=4 k=1 B=800 m=100 E=4"] == legs["n=4 k=1 B=400 m=100 E=8"] != legs[BASE_CELL]
    assert legs["allocation 1 x 7"] == (7, 0)
    assert legs["allocation 2 x 3"] is legs["allocation 4 x 1"] is None


def test_environments_that_wait_are_measured_provisionally_on_few_cores():
    plan = make_plan(throughput_spec(), machine(2))
    labels = {name: each.needs.label for name, each in plan.cells.items()}
    assert {label.timing for label in labels.values()} == {"measured"}
    assert not labels["n=1 k=1 B=400 m=100 E=4"].provisional
    assert labels["n=4 k=1 B=400 m=100 E=4"].provisional
    assert labels["allocation 4 x 1"].provisional  # one of them would fit, four do not
    assert labels["allocation 4 x 1"].reason == "environments wait 4 ms a step; 8 CPUs reserved, 2 cores"


def test_a_private_ray_is_given_the_cpus_of_the_largest_cell():
    assert private_shape(throughput_spec()).num_cpus >= 8
    assert make_plan(throughput_spec(), private_shape(throughput_spec())).num_trials == 51


def test_auto_refuses_a_clock_that_is_none_and_names_the_ways_out():
    busy = {"environment__step_wait_ms": 0}
    with pytest.raises(ClusterError, match="8 cells would share cores, got 2 runners with 3 CPUs reserved, 2 cores"):
        make_plan(throughput_spec(**busy), machine(2))
    assert all(each.needs.execution == "real" for each in make_plan(throughput_spec(**busy), machine(8)).cells.values())
    asked = make_plan(throughput_spec(**busy, execution="real"), machine(2))
    labels = Counter(each.needs.label.timing for each in asked.cells.values())
    assert labels == {"oversubscribed": 8, "measured": 4}
    emulated = make_plan(throughput_spec(**busy, execution="emulated"), machine(2))
    assert {each.needs.label.timing for each in emulated.cells.values()} == {"emulated"}


def test_keeping_processes_is_in_the_guess_of_the_duration():
    scattered = throughput_spec(throughput__allocation=None, throughput__grids={"n": {"num_env_runners": [1, 3, 4, 5]}})
    together = throughput_spec(
        throughput__allocation=None, throughput__grids={"E": {"num_env_runners": 4, "num_epochs": [1, 2, 3, 5]}}
    )
    assert len(requests_of(scattered)) == len(requests_of(together))
    assert make_plan(together, machine(8)).hours < 0.8 * make_plan(scattered, machine(8)).hours


@pytest.mark.parametrize("width", [100, 150])
def test_the_plan_shows_cells_blocks_minutes_and_labels(width):
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        print_plan(console, make_plan(throughput_spec(), machine(2)), throughput_spec(), name="demo")
    text = capture.get()
    assert "demo: 51 trials, 12 cells in 3 blocks, about " in text
    assert "Engine: batched+fused. " in text
    assert "  --set runner=stock --set learner=rllib" in text.splitlines()
    assert "measured*: environments wait; oversubscribed if CPU pressure reaches 5%." in text
    rows = [line.split() for line in text.splitlines() if line.startswith("allocation")]
    assert [row[1:4] for row in rows[1:]] == [["2", "x", "3"], ["4", "x", "1"]]
    assert "oversubscribed:" not in text
    console = Console(width=width, force_terminal=False)
    busy = throughput_spec(environment__step_wait_ms=0, execution="real")
    with console.capture() as capture:
        print_plan(console, make_plan(busy, machine(2)), busy, name="demo")
    assert "oversubscribed: 8 of 12 cells have more processes than cores" in " ".join(capture.get().split())


def test_a_replicate_has_another_order_and_the_same_blocks():
    overrides = all_overrides("waiting_grid.yaml", None, 3, None)
    assert overrides == ["search.sampler_seed=3"]
    first, third = (load_space("waiting_grid.yaml", overrides=each) for each in ([], overrides))
    assert requests_of(first)[1:5] != requests_of(third)[1:5]
    assert Counter(request.name for request in requests_of(first)) == Counter(
        request.name for request in requests_of(third)
    )
