"""The contract of every sampler: the scale is dealt, not chosen; proposals lie in the space; a resume goes on."""

import math

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import TPESampler

from study.designs.proposals import Observation, propose
from study.errors import RecordError
from tests.driven import ROOMY, Session
from tests.spaces import spec

SAMPLERS = ("tpe", "random", "grid")


def space(sampler, **changes):
    if sampler == "grid":
        changes |= {"parameters__train_batch_size": [200, 400], "parameters__lr": [0.001, 0.01]}
        changes |= {"search__num_trials": None}
    return spec(search__sampler=sampler, **changes)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_trial_has_the_scale_that_was_dealt_and_a_proposal_inside_the_space(tmp_path, sampler):
    session = Session(tmp_path, space(sampler, search__num_trials=18))
    requests = session.conductor.plan.requests
    points = set()
    while (started := session.conductor.next_trial()) is not None:
        assert started.setting["num_env_runners"] == requests[started.trial].num_env_runners
        assert 200 <= started.proposed["train_batch_size"] <= 800
        assert 1e-4 <= started.proposed["lr"] <= 1e-2
        points.add((started.setting["num_env_runners"], started.seed, *started.proposed.values()))
        session.finish(started.trial, final=100 * started.setting["lr"] * 1e3)
    # Runners, batch and lr vary together. A model may look twice at the corner that it believes in, no more.
    assert len(points) >= len(requests)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_study_proposes_what_it_would_have_proposed_without_the_kill(tmp_path, sampler):
    """Two trials run side by side, one in four fails, and the driver is killed before every third start."""

    def proposals(path, *, killed):
        wanted = space(sampler, search__num_trials=None if sampler == "grid" else 15)
        session, found = Session(path, wanted, cluster=ROOMY), {}
        while True:
            if killed and len(found) % 3 == 2:
                session.log.close()
                session = Session(path, wanted, cluster=ROOMY)
            running = []
            while len(running) < 2 and (started := session.conductor.next_trial()) is not None:
                running.append(started.trial)
                found[started.trial] = (started.proposed, started.setting, started.optuna_number)
            if not running:
                return found
            for trial in running:
                if trial % 4 == 3:
                    session.conductor.end(trial, "failed", "planted")
                else:
                    session.finish(trial, final=float(trial))

    whole = proposals(tmp_path / "whole", killed=False)
    assert proposals(tmp_path / "killed", killed=True) == whole
    if sampler != "grid":
        assert len({proposed["lr"] for proposed, _, _ in whole.values()}) == len(whole)


def test_a_proposal_on_record_that_does_not_lie_in_the_space_is_refused(tmp_path):
    session = Session(tmp_path)
    session.conductor.next_trial()
    session.log.close()
    wrong = spec(execution="real", parameters__lr={"low": 0.5, "high": 0.9})
    with pytest.raises(RecordError, match="trial 0"):
        Session(tmp_path, wrong)


def observation(scale, lr, value=None):
    return Observation(num_env_runners=scale, params={"lr": lr}, value=value)


BEST = {1: -4.0, 64: -2.0}
"""Planted: the best log10(lr) of each scale; 64 runners also score lower whatever the lr."""


def planted(scale, lr):
    return -abs(math.log10(lr) - BEST[scale]) - (1.0 if scale == 64 else 0.0)


def distance_to_best(propose, num_trials):
    """Return the mean distance of the proposals of the second half, over both scales, in decades."""
    seen, distances = [], []
    rng = np.random.default_rng(0)
    for number in range(num_trials):
        scale = (1, 64)[int(rng.integers(2))]
        lr = propose(scale, seen, number)
        seen.append(observation(scale, lr, planted(scale, lr)))
        distances.append(abs(math.log10(lr) - BEST[scale]))
    return np.mean(distances[num_trials // 2 :])


def test_a_scale_gets_what_was_learnt_at_that_scale():
    """A sampler that models the scale as one more parameter proposes for both what works at the easy one."""
    lr = FloatDistribution(1e-5, 1e-1, log=True)

    def local(scale, seen, number):
        return propose(
            "tpe", num_env_runners=scale, given={}, space={"lr": lr}, observations=seen, index=number, seed=0
        )["lr"]

    def joint(scale, seen, number):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(direction="maximize", sampler=TPESampler(seed=number, multivariate=True))
        space = {"num_env_runners": IntDistribution(1, 64, log=True), "lr": lr}
        for each in seen:
            params = {"num_env_runners": each.num_env_runners, **each.params}
            study.add_trial(optuna.create_trial(value=each.value, params=params, distributions=space))
        study.enqueue_trial({"num_env_runners": scale})
        return study.ask(space).params["lr"]

    assert distance_to_best(local, 70) < 0.6 * distance_to_best(joint, 70)


def test_trials_side_by_side_explore_different_settings():
    lr = FloatDistribution(1e-5, 1e-1, log=True)
    seen = [observation(4, 10 ** -(1 + k / 5), -abs(k - 10) / 5) for k in range(20)]
    lrs = []
    for number in range(4):
        lrs.append(
            propose("tpe", num_env_runners=4, given={}, space={"lr": lr}, observations=seen, index=number, seed=0)["lr"]
        )
        seen.append(observation(4, lrs[-1]))
    assert len(set(lrs)) == 4


def test_a_model_keeps_away_from_where_trials_fail():
    lr = FloatDistribution(1e-5, 1e-1, log=True)
    seen = [observation(4, 10**-k, 0.0 if k < 3 else 0.5) for k in np.linspace(1, 5, 20)]
    lrs = [
        propose("tpe", num_env_runners=4, given={}, space={"lr": lr}, observations=seen, index=20 + k, seed=0)["lr"]
        for k in range(20)
    ]
    assert sum(value < 1e-3 for value in lrs) >= 15
