"""What the winner has to beat: settings that need no search, and rules that carry a small scale's best one up. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

from study.space.domains import Choices, Range
from study.space.parameters import PARAMETERS, REFERENCE_MINIBATCH, RULES, SCALE, Value
from study.space.sections import HoldUpSpec
from study.space.settings import overlay, resolve
from study.space.spec import StudySpec

Setting = dict[str, Value]
"""A value for every parameter except the scale, or for the rule in its place."""

RLLIB_DEFAULTS: Mapping[str, Value] = MappingProxyType(
    {name: value.rllib for name, value in PARAMETERS.items() if value.rllib is not None}
)
"""`PPOConfig()` of RLlib."""


def fixed_baselines(holdup: HoldUpSpec) -> dict[str, Setting]:
    """Return the baselines that need nothing of the study, by name."""
    known: dict[str, Setting] = {
        "rllib_defaults": dict(RLLIB_DEFAULTS),
        "naive_growth": overlay(RLLIB_DEFAULTS, {"steps_per_env_runner": holdup.naive_steps_per_env_runner}),
        "published": overlay(RLLIB_DEFAULTS, holdup.published),
    }
    return {name: known[name] for name in holdup.baselines}


def scaled_baselines(best_small: Mapping[str, Value], small_scale: int) -> dict[str, Setting]:
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
    steps = max(round(batch / small_scale), 1)
    grown = overlay(numbers, {"steps_per_env_runner": steps})
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
    """Return the setting of the calibration: this project's defaults where the space allows them, else its middle."""
    setting: Setting = dict(spec.fixed)
    for name, domain in spec.tuned.items():
        parameter = {**PARAMETERS, **RULES}[name]
        setting[name] = parameter.kind(_typical(domain, parameter.default))
    return setting


def _typical(domain: Choices[int] | Choices[float] | Range[int] | Range[float], default: Value | None) -> Value:
    if isinstance(domain, Choices):
        ordered = sorted(domain.choices)
        return default if default is not None and default in ordered else ordered[len(ordered) // 2]
    if default is not None and domain.low <= default <= domain.high and domain.step is None:
        return default
    if domain.log:
        return float((domain.low * domain.high) ** 0.5)
    if domain.step is None:
        return (domain.low + domain.high) / 2
    return domain.low + round((domain.high - domain.low) / domain.step / 2) * domain.step
