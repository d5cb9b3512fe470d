from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.adopted.loading import load_space
from study.designs.registry import make_plan
from study.errors import ClusterError
from tests.spaces import cluster, requests_of, spec


@given(st.integers(3, 60), st.integers(0, 5))
def test_scales_are_dealt_evenly_and_never_aliased_with_seeds(num_trials, sampler_seed):
    requests = requests_of(spec(search__num_trials=num_trials, search__sampler_seed=sampler_seed))
    assert [request.trial for request in requests] == list(range(num_trials))
    counts = Counter(request.num_env_runners for request in requests)
    assert set(counts) == {1, 2, 4}
    assert max(counts.values()) - min(counts.values()) <= 1
    for scale in counts:
        seeds = Counter(request.seed for request in requests if request.num_env_runners == scale)
        assert abs(seeds[1] - seeds[2]) <= 1


@given(st.integers(3, 40), st.integers(0, 40))
def test_a_longer_plan_begins_with_the_shorter_one(num_trials, more):
    short = requests_of(spec(search__num_trials=num_trials))
    assert requests_of(spec(search__num_trials=num_trials + more))[:num_trials] == short


def test_the_order_of_scales_differs_between_blocks():
    requests = requests_of(spec(search__num_trials=60))
    blocks = {tuple(request.num_env_runners for request in requests[i : i + 3]) for i in range(0, 60, 3)}
    assert len(blocks) > 3


def test_a_baseline_without_a_scale_is_run_at_every_scale_first():
    baselines = [{"name": "a", "parameters": {"lr": 0.001}}, {"name": "b", "parameters": {"num_env_runners": 4}}]
    requests = requests_of(spec(search__baselines=baselines, search__num_trials=9))
    assert [(request.name, request.num_env_runners) for request in requests[:4]] == [
        ("a", 1),
        ("a", 2),
        ("a", 4),
        ("b", 4),
    ]
    assert all(request.given == {"lr": 0.001} for request in requests[:3])
    assert requests[4].name is None


def test_a_grid_has_every_cell_on_every_seed():
    requests = requests_of(
        spec(
            search__sampler="grid",
            search__num_trials=None,
            parameters__train_batch_size=[200, 400],
            parameters__lr={"low": 0.001, "high": 0.003, "step": 0.001},
        )
    )
    cells = {(s.num_env_runners, s.seed, *sorted(s.given.items())) for s in requests}
    assert len(requests) == len(cells) == 3 * 2 * 2 * 3


REAL = {"execution": "real"}
WIDE = {"parameters__num_env_runners": [1], "resources__num_cpus_per_env_runner": 3, "search__num_trials": 1, **REAL}
GPUS = {"resources__num_gpus_per_learner": 1, "resources__num_learners": 2}
IMPALA = {"algorithm": "IMPALA", "parameters__minibatch_size": None, "parameters__train_batch_size": 500}
SECONDS = {"parameters__num_env_runners": [1, 46], "parameters__train_batch_size": 400, "budget__time_s": 60.0}


@pytest.mark.parametrize(
    ("changes", "nodes", "words", "enough"),
    [
        (REAL, {"n0": 4}, "4 runners need 5 CPUs at once, the cluster has 4", {"n0": 5}),
        (REAL, {"n0": 8, "memory_mb": 1300}, "2 runners need 1500 MB", {"n0": 8, "memory_mb": 2400}),
        (REAL, {"n0": 2, "n1": 2}, "4 runners need 5 CPUs", {"n0": 3, "n1": 2}),
        # 3 GB in all, but only one node has CPUs
        (REAL, {"n0": 8, "n1": 0, "memory_mb": 1500}, "on one node", {"n0": 4, "n1": 4, "memory_mb": 1500}),
        (WIDE, {"n0": 2, "n1": 2}, "on one node", {"n0": 1, "n1": 3}),
        (GPUS, {"n0": 8}, "needs 2 of the cluster's GPUs at once, there are 0", {"n0": 8, "num_gpus": 2}),
        ({"resources__num_cpus_for_main_process": 3}, {"n0": 2}, "1 runners need 3 CPUs", {"n0": 3}),
        (IMPALA, {"n0": 2}, "2 runners need 3 CPUs", {"n0": 5}),  # never emulated
        (SECONDS, {"n0": 2}, r"budget.time_s: .*1 runners would be emulated", {"n0": 47}),
    ],
)
def test_a_trial_that_can_never_run_is_refused_with_the_ways_out(changes, nodes, words, enough):
    with pytest.raises(ClusterError, match=words) as caught:
        make_plan(spec(**changes), cluster(**nodes))
    assert ("or set execution: emulated" in str(caught.value)) == (changes in (REAL, WIDE))
    make_plan(spec(**changes), cluster(**enough))
    if changes == REAL:
        make_plan(spec(), cluster(**nodes))


def test_the_published_scale_is_emulated_on_a_small_machine_and_real_on_a_large_one():
    scaling = load_space("scaling")

    def largest(**nodes):
        return make_plan(scaling, cluster(**nodes)).scale(46)

    here, there = largest(local=2), largest(local=48)
    assert (here.execution, here.num_cpus, here.label.timing) == ("emulated", 1, "emulated")
    assert (there.execution, there.num_cpus, there.label.timing) == ("real", 47, "measured")
    assert here.memory_mb < 1000 < there.memory_mb
    assert largest(n0=24, n1=24).execution == "real"
    assert largest(n0=(94, 47)).execution == "real"
    assert largest(n0=(94, 46)).execution == "emulated"


def test_processes_are_reused_only_where_all_trials_are_alike_and_alone():
    def reuses(cores=2, **changes):
        return make_plan(spec(**changes), cluster(n0=(8, cores))).reuses_processes

    assert reuses(execution="emulated")
    assert not reuses(execution="emulated", resources__emulation_processes=2)  # runners come and go
    assert not reuses(execution="real")
    assert reuses(execution="auto")  # one scale of three would have room: all are emulated
    assert not reuses(cores=3, execution="auto")  # one runner and two are real


def test_more_processes_than_cores_is_planned_and_said():
    plan = make_plan(spec(execution="real"), cluster(n0=3, n1=2))
    labels = [(scale.num_env_runners, scale.label.timing) for scale in plan.scales]
    assert labels == [(1, "measured"), (2, "measured"), (4, "measured")]
    plan = make_plan(spec(execution="real"), cluster(n0=(3, 2), n1=2))
    assert {(scale.label.timing, scale.label.reason) for scale in plan.scales[:2]} == {
        ("oversubscribed", "n0: Ray hands out 3 CPUs, 2 cores")
    }
    assert plan.hours > 0


def test_a_grid_over_decimal_steps_stays_inside_its_range():
    requests = requests_of(
        spec(
            search__sampler="grid",
            search__num_trials=None,
            parameters__train_batch_size=400,
            parameters__lr={"low": 0.1, "high": 0.3, "step": 0.1},
        )
    )
    assert max(request.given["lr"] for request in requests) == 0.3
