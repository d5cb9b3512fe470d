"""The arms of a hold-up study: the chosen setting, and the settings that it is compared with. Pure.

An arm is one setting at one scale with all its test runs. `planned_arms` is the table of them: which settings, at which
scales, on how many test seeds, under whose runners. A setting that needs no search at the target scale is a rival.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from study.space.domains import Choices, Range
from study.space.parameters import PARAMETERS, REFERENCE_MINIBATCH, RULES, SCALE, Value
from study.space.sections import HoldUpSpec
from study.space.settings import BEST_SMALL, WINNER, WINNER_STOCK, Variant, overlay, resolve
from study.space.spec import StudySpec

Setting = dict[str, Value]
"""A value for every parameter except the scale, or for the rule in its place."""
NAIVE_GROWTH = "naive_growth"
RLLIB_DEFAULTS: Mapping[str, Value] = MappingProxyType(
    {name: value.rllib for name, value in PARAMETERS.items() if value.rllib is not None and not value.optional}
)
"""`PPOConfig()` of RLlib; what is optional is RLlib's own where a setting does not hold it."""
NUM_SCALED = 3
"""Rivals that are made of the small scale's best setting."""
NUM_CONFIRMED = 3
"""Rivals that are tested at the most: the best, the best that is made of the small scale's setting, naive growth."""


def holdup_of(spec: StudySpec) -> HoldUpSpec:
    """Return the `holdup` section of a hold-up study."""
    if spec.holdup is None:
        raise ValueError("a study without `holdup` has no stages")
    return spec.holdup


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmPlan:
    """What an arm is to run."""

    name: str
    setting: Setting
    scale: int
    num_seeds: int
    """Test seeds at the most; the first ones of `holdup.test_seeds`."""
    variant: Variant = "study"

    @property
    def first_half(self) -> int:
        """Seeds that run in the first half of the confirmation: five at the least, for an interval."""
        return min(max((self.num_seeds + 1) // 2, 5), self.num_seeds)


def planned_arms(
    holdup: HoldUpSpec, winner: Setting, best_small: Setting, rivals: Mapping[str, Setting]
) -> list[ArmPlan]:
    """Return the arms of a confirmation, in the order of the certificate.

    The reference at the small scale has as many seeds as the winner, whose rival it is; where both have the same
    numbers there, the winner is its own reference. No rule and no comparison uses the winner under RLlib's own runners.
    """
    target, small, sizes = holdup.target_scale, holdup.small_scale, holdup.confirm
    scales = (target, small, *holdup.unseen_scales)
    arms = [ArmPlan(name=WINNER, setting=winner, scale=scale, num_seeds=sizes.num_seeds) for scale in scales]
    if resolve(best_small, small) != resolve(winner, small):
        arms.append(ArmPlan(name=BEST_SMALL, setting=best_small, scale=small, num_seeds=sizes.num_seeds))
    arms += [
        ArmPlan(name=name, setting=setting, scale=target, num_seeds=sizes.num_seeds_others)
        for name, setting in rivals.items()
    ]
    stock = ArmPlan(name=WINNER_STOCK, setting=winner, scale=target, num_seeds=sizes.num_seeds_stock, variant="stock")
    return [*arms, stock]


def rivals_of(holdup: HoldUpSpec, winner: Setting, best_small: Setting) -> dict[str, Setting]:
    """Return the rivals by name, without those that are the winner, or each other, at the target scale."""
    seen = [resolve(winner, holdup.target_scale)]
    different = {}
    for name, setting in (fixed_rivals(holdup) | scaled_rivals(best_small, holdup.small_scale)).items():
        numbers = resolve(setting, holdup.target_scale)
        if numbers not in seen:
            different[name] = setting
            seen.append(numbers)
    return different


def fixed_rivals(holdup: HoldUpSpec) -> dict[str, Setting]:
    """Return the rivals that need nothing of the study, by name."""
    known: dict[str, Setting] = {
        "rllib_defaults": dict(RLLIB_DEFAULTS),
        NAIVE_GROWTH: overlay(RLLIB_DEFAULTS, {"steps_per_env_runner": holdup.naive_steps_per_env_runner}),
        "published": overlay(RLLIB_DEFAULTS, holdup.published),
    }
    return {name: known[name] for name in holdup.baselines}


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
        "best_small_unchanged": numbers,
        "best_small_batch_grown": grown,
        "best_small_minibatch_grown": overlay(grown, square_root),
    }


def default_setting(spec: StudySpec) -> Setting:
    """Return this project's defaults where the space allows them, else its middle; the search begins with it."""
    known = {**PARAMETERS, **RULES}
    chosen = {name: known[name].kind(_typical(domain, known[name].default)) for name, domain in spec.tuned.items()}
    return {**spec.fixed, **chosen}


def _typical(domain: Choices | Range, default: Value | None) -> Value:
    if isinstance(domain, Choices):
        ordered = sorted(domain.choices)
        return default if default is not None and default in ordered else ordered[len(ordered) // 2]
    if default is not None and domain.low <= default <= domain.high:
        return default
    if domain.log:
        return float((domain.low * domain.high) ** 0.5)
    return (domain.low + domain.high) / 2
