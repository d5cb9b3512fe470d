"""The contract of every sampler: the scale is dealt, not chosen; proposals lie in the space; a resume goes on."""

import math

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler

from study.designs.search.proposals import Look, nearest, propose
from study.designs.search.proposals import _at as at
from tests.spaces import spec
from tests.unit.test_conductor import Session

SAMPLERS = ("tpe", "gp", "random", "qmc", "grid")


def space(sampler, **changes):
    if sampler == "grid":
        changes |= {"parameters__train_batch_size": [200, 400], "parameters__lr": [0.001, 0.01]}
        changes |= {"search__num_trials": None}
    return spec(search__sampler=sampler, **changes)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_trial_has_the_scale_that_was_dealt_and_a_proposal_inside_the_space(tmp_path, sampler):
    session = Session(tmp_path, space(sampler, search__num_trials=18))
    slots = session.conductor.plan.slots
    points = set()
    while (started := session.conductor.next_trial()) is not None:
        assert started.setting["num_env_runners"] == slots[started.trial].num_env_runners
        assert 200 <= started.proposed["train_batch_size"] <= 800
        assert 1e-4 <= started.proposed["lr"] <= 1e-2
        points.add((started.setting["num_env_runners"], started.seed, *started.proposed.values()))
        session.finish(started.trial, final=100 * started.setting["lr"] * 1e3)
    # Runners, batch and lr vary together. A model may look twice at the corner that it believes in, no more.
    assert len(points) >= len(slots) - (2 if sampler == "gp" else 0)


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random", "qmc"])
def test_a_resumed_study_does_not_repeat_its_proposals(tmp_path, sampler):
    proposals = []
    for _ in range(3):
        session = Session(tmp_path, space(sampler, search__num_trials=9))
        for _ in range(3):
            started = session.conductor.next_trial()
            proposals.append(started.proposed["lr"])
            session.finish(started.trial)
        session.log.close()
    assert len(set(proposals)) == 9


def test_the_same_sampler_seed_proposes_the_same(tmp_path):
    lrs = []
    for folder in ("a", "b"):
        session = Session(tmp_path / folder, space("tpe", search__num_trials=15))
        lrs.append([])
        while (started := session.conductor.next_trial()) is not None:
            lrs[-1].append(started.proposed["lr"])
            session.finish(started.trial, final=float(started.trial))
    assert lrs[0] == lrs[1]


BEST = {1: -4.0, 64: -2.0}
"""Planted: the best log10(lr) of each scale; 64 runners also score lower whatever the lr."""


def planted(scale, lr):
    return -abs(math.log10(lr) - BEST[scale]) - (1.0 if scale == 64 else 0.0)


def distance_to_best(propose, num_trials):
    """Return the mean distance of the proposals of the second half, over both scales, in decades."""
    looks, distances = [], []
    rng = np.random.default_rng(0)
    for number in range(num_trials):
        scale = (1, 64)[int(rng.integers(2))]
        lr = propose(scale, looks, number)
        looks.append(Look(num_env_runners=scale, params={"lr": lr}, values=(planted(scale, lr),)))
        distances.append(abs(math.log10(lr) - BEST[scale]))
    return np.mean(distances[num_trials // 2 :])


@pytest.mark.parametrize(("sampler", "num_trials"), [("tpe", 70), pytest.param("gp", 70, marks=pytest.mark.heavy)])
def test_a_scale_gets_what_was_learnt_at_that_scale(sampler, num_trials):
    """A sampler that models the scale as one more parameter proposes for both what works at the easy one."""
    lr = FloatDistribution(1e-5, 1e-1, log=True)

    def local(scale, looks, number):
        return propose(sampler, num_env_runners=scale, given={}, space={"lr": lr}, looks=looks, index=number, seed=0)[
            "lr"
        ]

    def joint(scale, looks, number):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(direction="maximize", sampler=TPESampler(seed=number, multivariate=True))
        space = {"num_env_runners": IntDistribution(1, 64, log=True), "lr": lr}
        for look in looks:
            params = {"num_env_runners": look.num_env_runners, **look.params}
            study.add_trial(optuna.create_trial(values=look.values, params=params, distributions=space))
        study.enqueue_trial({"num_env_runners": scale})
        return study.ask(space).params["lr"]

    assert distance_to_best(local, num_trials) < 0.6 * distance_to_best(joint, num_trials)


def test_neighbouring_scales_help_out_only_while_there_are_few_trials():
    looks = [
        Look(num_env_runners=scale, params={"lr": 0.1}, values=(0.0,)) for scale in (1, 8, 16, 46) for _ in range(8)
    ]
    assert sorted({look.num_env_runners for look in nearest(looks, 46)}) == [8, 16, 46]
    looks += [Look(num_env_runners=46, params={"lr": 0.1}, values=(0.0,)) for _ in range(15)]
    assert {look.num_env_runners for look in nearest(looks, 46)} == {46}


def test_trials_side_by_side_explore_different_settings():
    lr = FloatDistribution(1e-5, 1e-1, log=True)
    looks = [Look(num_env_runners=4, params={"lr": 10 ** -(1 + k / 5)}, values=(-abs(k - 10) / 5,)) for k in range(20)]
    lrs = []
    for number in range(4):
        lrs.append(
            propose("tpe", num_env_runners=4, given={}, space={"lr": lr}, looks=looks, index=number, seed=0)["lr"]
        )
        looks.append(Look(num_env_runners=4, params={"lr": lrs[-1]}, values=None))
    assert len(set(lrs)) == 4


def test_what_an_anchor_gives_is_kept_and_the_rest_is_proposed():
    space = {"lr": FloatDistribution(1e-5, 1e-1, log=True), "num_epochs": IntDistribution(1, 30)}
    values = propose("tpe", num_env_runners=4, given={"lr": 0.01}, space=space, looks=[], index=0, seed=1)
    assert values["lr"] == 0.01
    assert 1 <= values["num_epochs"] <= 30


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (IntDistribution(1, 4), {1, 2, 3, 4}),
        (IntDistribution(1, 4, log=True), {1, 2, 3, 4}),
        (IntDistribution(0, 6, step=3), {0, 3, 6}),
        (FloatDistribution(0.0, 1.0, step=0.5), {0.0, 0.5, 1.0}),
        (FloatDistribution(0.1, 0.3, step=0.1), {0.1, 0.2, 0.3}),  # 0.1 + 2 * 0.1 is above 0.3
        (CategoricalDistribution([128, 256]), {128, 256}),
    ],
)
def test_a_sobol_point_reaches_every_value_and_no_other(domain, values):
    shares = np.linspace(0, 1, 1000, endpoint=False)
    assert {at(domain, share) for share in shares} == values


def test_sobol_fills_a_log_range_evenly_at_every_scale():
    space = {"lr": FloatDistribution(1e-4, 1e-2, log=True), "batch": IntDistribution(100, 10_000, log=True)}
    looks = []
    for _ in range(16):
        for scale in (1, 46):
            values = propose(
                "qmc", num_env_runners=scale, given={}, space=space, looks=looks, index=len(looks) // 2, seed=3
            )
            looks.append(Look(num_env_runners=scale, params=values, values=(0.0,)))
    for scale in (1, 46):
        lrs = [math.log10(look.params["lr"]) for look in looks if look.num_env_runners == scale]
        assert np.histogram(lrs, bins=4, range=(-4, -2))[0].tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random", "qmc"])
def test_after_a_failure_another_setting_is_proposed(tmp_path, sampler):
    session = Session(tmp_path, space(sampler, search__num_trials=18))
    lrs = []
    while (started := session.conductor.next_trial()) is not None:
        lrs.append(started.proposed["lr"])
        session.conductor.end(started.trial, "failed", "out of memory")
    assert len(set(lrs)) >= (10 if sampler == "gp" else 15)  # where all fails, a Gaussian process goes to corners


def test_a_model_keeps_away_from_where_trials_fail():
    lr = FloatDistribution(1e-5, 1e-1, log=True)
    looks = [
        Look(num_env_runners=4, params={"lr": 10**-k}, values=(0.0 if k < 3 else 0.5,)) for k in np.linspace(1, 5, 20)
    ]
    lrs = [
        propose("tpe", num_env_runners=4, given={}, space={"lr": lr}, looks=looks, index=20 + k, seed=0)["lr"]
        for k in range(20)
    ]
    assert sum(value < 1e-3 for value in lrs) >= 15
