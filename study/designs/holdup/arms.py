"""The arms of a hold-up study: the chosen setting, and the settings that it is compared with. Pure.

An arm is one setting at one scale with all its test runs. `planned_arms` is the table of them: which settings, at which
scales, on how many test seeds, under whose runners. A setting that needs no search at the target scale is a rival.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from study.engine import OWN, engine_of_space
from study.space.parameters import PARAMETERS, REFERENCE_MINIBATCH, SCALE, Value
from study.space.sections import HoldUpSpec
from study.space.settings import (
    BEST_SMALL,
    BEST_SMALL_RLLIB,
    WINNER,
    WINNER_RLLIB,
    Variant,
    overlay,
    resolve,
)
from study.space.spec import StudySpec

Setting = dict[str, Value]
"""A value for every parameter except the scale, or for the rule in its place."""
NAIVE_GROWTH = "naive_growth"
RLLIB_DEFAULTS: Mapping[str, Value] = MappingProxyType(
    {name: value.rllib for name, value in PARAMETERS.items() if value.rllib is not None and not value.optional}
)
"""`PPOConfig()` of RLlib; what is optional is RLlib's own where a setting does not hold it."""
UNCHANGED, BATCH_GROWN, MINIBATCH_GROWN = (
    f"{BEST_SMALL}_unchanged",
    f"{BEST_SMALL}_batch_grown",
    f"{BEST_SMALL}_minibatch_grown",
)


def holdup_of(spec: StudySpec) -> HoldUpSpec:
    """Return the `holdup` section of a hold-up study."""
    if spec.holdup is None:
        raise ValueError("a study without `holdup` has no stages")
    return spec.holdup


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """What an arm is to run: its setting at a scale, on the first `num_seeds` of `holdup.test_seeds`."""

    name: str
    setting: Setting
    scale: int
    num_seeds: int
    variant: Variant = "study"


def planned_arms(spec: StudySpec, winner: Setting, best_small: Setting, rivals: Mapping[str, Setting]) -> list[ArmPlan]:
    """Return the arms of a confirmation, in the order of the certificate: all on as many test seeds as the winner.

    The winner and the small scale's best run under RLlib's own runners and learner too, unless these are the study's
    engine: then the verdict is about RLlib anyhow. Where both have the same numbers at the small scale, the winner is
    its own reference there.
    """
    holdup = holdup_of(spec)
    target, small, sizes = holdup.target_scale, holdup.small_scale, holdup.confirm
    scales = (target, small, *holdup.unseen_scales)
    arms = [ArmPlan(name=WINNER, setting=winner, scale=scale, num_seeds=sizes.num_seeds) for scale in scales]
    if resolve(best_small, small) != resolve(winner, small):
        arms.append(ArmPlan(name=BEST_SMALL, setting=best_small, scale=small, num_seeds=sizes.num_seeds))
    arms += [
        ArmPlan(name=name, setting=setting, scale=target, num_seeds=sizes.num_seeds) for name, setting in rivals.items()
    ]
    own = ((WINNER_RLLIB, winner, target), (BEST_SMALL_RLLIB, best_small, small))
    if sizes.num_seeds_rllib and engine_of_space(spec) != OWN:
        arms += [
            ArmPlan(name=name, setting=setting, scale=scale, num_seeds=sizes.num_seeds_rllib, variant="stock")
            for name, setting, scale in own
        ]
    return arms


def rival_names(holdup: HoldUpSpec) -> list[str]:
    """Return the names of the rivals that a study can have: what needs no search at the target scale."""
    return [UNCHANGED, BATCH_GROWN, MINIBATCH_GROWN, *(["published"] if holdup.published else []), NAIVE_GROWTH]


def rivals_of(holdup: HoldUpSpec, winner: Setting, best_small: Setting) -> dict[str, Setting]:
    """Return the rivals by name, without those that are the winner, or each other, at the target scale."""
    settings: dict[str, Setting] = scaled_rivals(best_small, holdup.small_scale) | {
        "published": overlay(RLLIB_DEFAULTS, holdup.published),
        NAIVE_GROWTH: overlay(RLLIB_DEFAULTS, {"steps_per_env_runner": holdup.naive_steps_per_env_runner}),
    }
    seen, different = [resolve(winner, holdup.target_scale)], dict[str, Setting]()
    for name in rival_names(holdup):
        if (numbers := resolve(settings[name], holdup.target_scale)) not in seen:
            different[name] = settings[name]
            seen.append(numbers)
    return different


def scaled_rivals(best_small: Mapping[str, Value], small_scale: int) -> dict[str, Setting]:
    """Return the best setting of the small scale as it would be carried to a larger one.

    `best_small_unchanged`: the same numbers. `best_small_batch_grown`: the batch grows with the runners, minibatch and
    lr stay (Beukman 2026). `best_small_minibatch_grown`: the minibatch grows with the batch, and lr with its square
    root (Hilton 2022).

    Args:
        best_small: The setting, rules included.
        small_scale: Where it is best.
    """
    numbers: Setting = {name: value for name, value in resolve(best_small, small_scale).items() if name != SCALE}
    batch, minibatch = int(numbers["train_batch_size"]), int(numbers["minibatch_size"])
    grown = overlay(numbers, {"steps_per_env_runner": max(round(batch / small_scale), 1)})
    square_root = {
        "num_minibatches": max(round(batch / minibatch), 1),
        "lr": numbers["lr"] * (REFERENCE_MINIBATCH / minibatch) ** 0.5,
        "lr_scaling_exponent": 0.5,
    }
    return {
        UNCHANGED: numbers,
        BATCH_GROWN: grown,
        MINIBATCH_GROWN: overlay(grown, square_root),
    }
