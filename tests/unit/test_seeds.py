from hypothesis import given
from hypothesis import strategies as st

from study.trial.seeds import evaluation_seeds, lane_seed, noise_seed

SEEDS = st.integers(0, 2**40)


@given(seed=SEEDS)
def test_no_two_streams_of_a_trial_share_a_seed(seed: int) -> None:
    lanes = {lane_seed(seed, runner, env) for runner in range(1, 65) for env in range(32)}
    noise = {noise_seed(seed, runner) for runner in range(1, 65)}
    assert len(lanes) == 64 * 32
    assert len(noise) == 64
    assert not lanes & noise
    assert max(lanes | noise) < 2**31


@given(seed=SEEDS, first=SEEDS)
def test_evaluation_never_plays_a_training_lane(seed: int, first: int) -> None:
    lanes = {lane_seed(seed, runner, env) for runner in range(1, 47) for env in range(16)}
    evaluation = evaluation_seeds(first, 200)
    assert len(set(evaluation)) == 200
    assert not lanes & set(evaluation)


def test_neighbouring_seeds_share_no_lanes() -> None:
    lanes = [lane_seed(seed, runner, env) for seed in range(8) for runner in range(1, 47) for env in range(8)]
    assert len(set(lanes)) == len(lanes)


def test_an_episode_keeps_its_seed_when_there_are_more() -> None:
    assert evaluation_seeds(10_000, 50)[:20] == evaluation_seeds(10_000, 20)


def test_seeds_never_change() -> None:
    # Records name seeds: a different mapping would make them irreproducible.
    assert (lane_seed(1, 1, 0), lane_seed(1, 1, 1), lane_seed(1, 2, 0)) == (533234272, 164651401, 498799200)
    assert evaluation_seeds(10_000, 3) == (1065043299, 847606102, 630168905)
