import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from study.trial.engine.sampling.lanes import (
    LaneLayout,
    LaneNoise,
    evaluation_seeds,
    lane_seed,
    noise_seed,
    random_action_seed,
)

RUNNERS, ENVS, BATCHES = st.integers(1, 64), st.integers(1, 9), st.integers(1, 9000)
SEEDS = st.integers(0, 2**40)


@given(runners=RUNNERS, envs=ENVS, batch=BATCHES)
def test_a_batch_is_exact_and_every_lane_gives_the_same_in_one_process_and_in_many(runners, envs, batch) -> None:
    def steps(*, emulated: bool) -> dict[tuple[int, int], int]:
        layout = LaneLayout(num_env_runners=runners, num_envs_per_env_runner=envs, emulated=emulated)
        result = {}
        for process in range(1 if emulated else runners):
            result |= dict(zip(layout.lanes_of(process), layout.steps_of(process, batch), strict=True))
        return result

    split = steps(emulated=False)
    assert [*split] == [(runner, env) for runner in range(1, runners + 1) for env in range(envs)]
    assert sum(split.values()) == batch
    assert max(split.values()) - min(split.values()) <= 1
    assert split == steps(emulated=True)


@given(seed=SEEDS)
def test_no_two_streams_of_a_trial_share_a_seed(seed: int) -> None:
    lanes = {lane_seed(seed, runner, env) for runner in range(1, 65) for env in range(32)}
    others = {noise_seed(seed, runner) for runner in range(1, 65)} | {*evaluation_seeds(seed, 200)}
    assert (len(lanes), len(others), lanes & others) == (64 * 32, 64 + 200, set())
    assert max(lanes | others) < 2**31


def test_seeds_never_change() -> None:
    # Records name seeds: a different mapping would make them irreproducible.
    assert (lane_seed(1, 1, 0), lane_seed(1, 1, 1), lane_seed(1, 2, 0)) == (533234272, 164651401, 498799200)
    assert evaluation_seeds(10_000, 3) == (1065043299, 847606102, 630168905)
    # A published floor names its seed, too.
    assert random_action_seed(10_000, 3, 7) == 3657999531328261932


@given(seed=SEEDS, start=st.integers(0, 10_000), count=st.integers(0, 50))
def test_a_lanes_noise_can_be_entered_anywhere(seed: int, start: int, count: int) -> None:
    whole = LaneNoise(seed, 7, 3).uniforms(0, start + count)
    assert np.array_equal(LaneNoise(seed, 7, 3).uniforms(start, count), whole[start:])


def test_noise_is_uniform_and_differs_between_lanes_and_seeds() -> None:
    lanes = [
        LaneNoise(seed, *lane).uniforms(0, 4000) for seed in (0, 1, 3) for lane in ((1, 0), (1, 1), (2, 0), (0, 1))
    ]
    assert all(stats.kstest(numbers, "uniform").pvalue > 1e-4 for numbers in lanes)
    correlations = np.corrcoef(lanes)[np.triu_indices(len(lanes), 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)
