"""The parameters that a space may fix or tune: one list for schema, search, RLlib and the README. Pure.

Names are RLlib's. Defaults are values that learn on small control tasks; RLlib's own (30 epochs, lambda 1,
vf_clip_param 10, lr 5e-5) are slow and learn badly there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Value = int | float

SCALE = "num_env_runners"
"""The scale axis. Stratified: dealt evenly over the trials and never chosen by the sampler."""

MAX_PROCESSES = 100_000
"""Runners, or learners, of one trial: a plan places each of them. Ray is tested with 10,000 actors and more.

Source: Ray's release/benchmarks/README.md, "Ray Scalability Envelope".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A quantity of one training run that a space may fix or tune.

    Attributes:
        name: RLlib's name (`lambda` for RLlib's `lambda_`).
        kind: `int` or `float`.
        default: Used when the space does not mention the parameter; None means that it must be given.
        minimum: Smallest value allowed.
        open_minimum: Whether `minimum` itself is excluded.
        maximum: Largest value allowed.
        rllib: The default of RLlib's `PPOConfig()`, Ray 2.60 (a test compares); None where PPO has no such parameter,
            or a space always gives it.
        is_argument: Whether RLlib's `AlgorithmConfig.training` has an argument `attribute(name)` for it; what becomes
            of others is in `study.trial.configuration`.
        meaning: One line for the schema and the field reference, with the unit.
    """

    name: str
    kind: type[int] | type[float]
    default: Value | None
    minimum: float
    open_minimum: bool = False
    maximum: float | None = None
    rllib: Value | None = None
    is_argument: bool = False
    meaning: str

    @property
    def bounds(self) -> str:
        """The allowed values, for people: `> 0, <= 1`."""
        upper = "" if self.maximum is None else f", <= {self.maximum:g}"
        return f"{'>' if self.open_minimum else '>='} {self.minimum:g}{upper}"

    def allows(self, value: Value) -> bool:
        """Return whether `value` lies within the bounds."""
        above = value > self.minimum if self.open_minimum else value >= self.minimum
        return above and (self.maximum is None or value <= self.maximum)


def attribute(name: str) -> str:
    """Return the name of parameter `name` in Python code, ours and RLlib's (`lambda` is a keyword)."""
    return f"{name}_" if name == "lambda" else name


def _whole(name: str, default: int | None, meaning: str, **others: Any) -> Parameter:
    return Parameter(name=name, kind=int, default=default, minimum=1, meaning=meaning, **others)


def _real(name: str, default: float | None, meaning: str, *, is_argument: bool = True, **others: Any) -> Parameter:
    return Parameter(
        name=name, kind=float, default=default, minimum=0, meaning=meaning, is_argument=is_argument, **others
    )


_ALL = (
    _whole(
        SCALE,
        None,
        "The scale axis: remote environment runner processes. A number, a list, or a range, which stands for "
        "a list: each value twice the last (`{low: 1, high: 46}` is 1, 2, 4, 8, 16, 32, 46), or those of its "
        "`step`. Every scale gets the same share of an ordinary study's trials, and 'best' is always per "
        "scale.",
        maximum=MAX_PROCESSES,
    ),
    _whole(
        "num_envs_per_env_runner",
        4,
        "Environments that each runner steps together (lanes per runner).",
        rllib=1,
        maximum=4096,
    ),
    _whole("train_batch_size", 4000, "Environment steps per training iteration, over all runners.", rllib=4000),
    _whole("minibatch_size", 256, "Steps per gradient update; at most `train_batch_size`.", rllib=128),
    _whole("num_epochs", 10, "Passes over each train batch.", rllib=30, is_argument=True),
    _real("lr", 3e-4, "Learning rate of Adam; of A2C's RMSprop.", rllib=5e-5, open_minimum=True),
    _real("gamma", 0.99, "Discount per step.", rllib=0.99, open_minimum=True, maximum=1),
    _real("lambda", 0.95, "Generalised advantage estimation: 0 is one-step, 1 is Monte Carlo.", rllib=1.0, maximum=1),
    _real("clip_param", 0.2, "PPO clip range of the probability ratio.", rllib=0.3, open_minimum=True),
    _real("entropy_coeff", 0.0, "Weight of the entropy bonus.", rllib=0.0),
    # RLlib clips no gradient, which a norm of 1e6 does not either.
    _real("grad_clip", 0.5, "Largest global norm of a gradient.", rllib=1e6, open_minimum=True),
    _real(
        "vf_clip_param",
        10_000.0,
        "Largest squared error of the value function that still has a gradient (reward units squared).",
        rllib=10.0,
        open_minimum=True,
    ),
    _real("vf_loss_coeff", 0.5, "Weight of the value loss.", rllib=1.0),
    _real("kl_coeff", 0.2, "Initial weight of the KL penalty, which RLlib then adapts.", rllib=0.2),
    _real("kl_target", 0.01, "KL per iteration that the adapted penalty aims at.", rllib=0.01, open_minimum=True),
    _whole(
        "rollout_fragment_length",
        50,
        "Steps that each environment of a runner takes before they are sent to the learner.",
    ),
    _real(
        "lr_end_fraction",
        1.0,
        "Share of `lr` that is left at the end of `budget.env_steps`; it falls linearly. 1 keeps it.",
        is_argument=False,
        maximum=1,
    ),
    _real(
        "vtrace_clip_rho_threshold", 1.0, "V-trace: largest importance weight in the value targets.", open_minimum=True
    ),
    _real(
        "vtrace_clip_pg_rho_threshold",
        1.0,
        "V-trace: largest importance weight in the policy gradient.",
        open_minimum=True,
    ),
    _whole("circular_buffer_num_batches", 8, "Train batches that the learner's buffer holds.", is_argument=True),
    _whole(
        "circular_buffer_iterations_per_batch",
        2,
        "How often a train batch is learnt from before it leaves that buffer, at the most.",
        is_argument=True,
    ),
    _whole(
        "target_network_update_freq",
        2,
        "Fillings of that buffer, learnt from, after which the target network follows.",
        is_argument=True,
    ),
)

PARAMETERS: Mapping[str, Parameter] = MappingProxyType({parameter.name: parameter for parameter in _ALL})

_RULES = (
    _whole(
        "steps_per_env_runner",
        None,
        "In place of `train_batch_size`, which is then this many steps times `num_env_runners`: the batch "
        "grows with the scale.",
    ),
    _whole(
        "num_minibatches",
        None,
        "In place of `minibatch_size`, which is then the batch divided by this, rounded down: the minibatch "
        "grows with the batch.",
    ),
    _real(
        "lr_scaling_exponent",
        None,
        "`lr` is meant for minibatches of 128 steps, and multiplied by (minibatch_size / 128) to this power: "
        "0.5 is square-root scaling, 1 linear.",
        is_argument=False,
        maximum=1,
    ),
)

RULES: Mapping[str, Parameter] = MappingProxyType({rule.name: rule for rule in _RULES})
"""What a space may say instead of a number, so that a setting means something at every scale. Unused unless given."""

REPLACED: Mapping[str, str] = MappingProxyType(
    {"steps_per_env_runner": "train_batch_size", "num_minibatches": "minibatch_size"}
)
"""Rule -> the parameter that it stands in for; a setting has one of the two."""

FRAGMENT = "rollout_fragment_length"
END_FRACTION = "lr_end_fraction"
REFERENCE_MINIBATCH = 128
"""Steps of the minibatch for which `lr` is meant where `lr_scaling_exponent` is given: RLlib's default."""
