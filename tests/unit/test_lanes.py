import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from study.trial.engine.sampling.lanes import LaneLayout

RUNNERS, ENVS, BATCHES = st.integers(1, 64), st.integers(1, 9), st.integers(1, 9000)


def layout(runners: int, envs: int, processes: int) -> LaneLayout:
    return LaneLayout(num_env_runners=runners, num_envs_per_env_runner=envs, num_processes=processes)


@given(runners=RUNNERS, envs=ENVS, processes=RUNNERS)
def test_the_processes_share_all_lanes_in_order(runners: int, envs: int, processes: int) -> None:
    assume(processes <= runners)
    each = [layout(runners, envs, processes).lanes_of(process) for process in range(processes)]
    assert [lane for lanes in each for lane in lanes] == [
        (runner, env) for runner in range(1, runners + 1) for env in range(envs)
    ]
    assert max(map(len, each)) - min(map(len, each)) in (0, envs)  # whole runners, evenly


@given(runners=RUNNERS, envs=ENVS, processes=RUNNERS, batch=BATCHES)
def test_a_batch_is_exact_and_every_lane_gives_the_same_in_every_layout(
    runners: int, envs: int, processes: int, batch: int
) -> None:
    assume(processes <= runners)

    def steps(of: LaneLayout) -> list[int]:
        result = []
        for process in range(of.num_processes):
            fragment, lanes = of.fragment(process, batch), len(of.lanes_of(process))
            each = [
                fragment.num_vector_steps - (lane >= fragment.num_lanes_in_last_step) * (fragment.num_vector_steps > 0)
                for lane in range(lanes)
            ]
            assert sum(each) == fragment.env_steps(lanes)
            result += each
        return result

    split = steps(layout(runners, envs, processes))
    assert sum(split) == batch
    assert max(split) - min(split) <= 1
    assert split == steps(layout(runners, envs, 1)) == steps(layout(runners, envs, runners))


def test_an_example() -> None:
    # 10 steps over 4 lanes: 3, 3, 2, 2.
    two = layout(2, 2, 2)
    assert (two.fragment(0, 10).num_vector_steps, two.fragment(0, 10).num_lanes_in_last_step) == (3, 2)
    assert (two.fragment(1, 10).num_vector_steps, two.fragment(1, 10).num_lanes_in_last_step) == (2, 2)
    one = layout(2, 2, 1).fragment(0, 10)
    assert (one.num_vector_steps, one.num_lanes_in_last_step, one.env_steps(4)) == (3, 2, 10)


@pytest.mark.parametrize("processes", [0, 3])
def test_more_processes_than_runners_are_refused(processes: int) -> None:
    with pytest.raises(ValueError, match=f"got {processes} processes and 2 runners"):
        layout(2, 1, processes)
