"""The parameters that a space may fix or tune: one list for schema, search, RLlib and the README. Pure.

Names are RLlib's. Defaults are values that learn on small control tasks; RLlib's own (30 epochs, lambda 1,
vf_clip_param 10, lr 5e-5) are slow and learn badly there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Value = int | float

SCALE = "num_env_runners"
"""The scale axis. Stratified: dealt evenly over the trials and never chosen by the sampler."""


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
        meaning: One line for the schema and the field reference, with the unit.
    """

    name: str
    kind: type[int] | type[float]
    default: Value | None
    minimum: float
    open_minimum: bool = False
    maximum: float | None = None
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


def _whole(name: str, default: int | None, meaning: str, *, minimum: int = 1, maximum: int | None = None) -> Parameter:
    return Parameter(name=name, kind=int, default=default, minimum=minimum, maximum=maximum, meaning=meaning)


def _real(
    name: str, default: float | None, meaning: str, *, open_minimum: bool = False, maximum: float | None = None
) -> Parameter:
    return Parameter(
        name=name,
        kind=float,
        default=default,
        minimum=0,
        open_minimum=open_minimum,
        maximum=maximum,
        meaning=meaning,
    )


_ALL = (
    _whole(
        SCALE,
        None,
        "The scale axis: remote environment runner processes. A number, a list, or a range, which stands for "
        "a list: each value twice the last (`{low: 1, high: 46}` is 1, 2, 4, 8, 16, 32, 46), or those of its "
        "`step`. Every scale gets the same share of an ordinary study's trials, and 'best' is always per "
        "scale.",
    ),
    _whole(
        "num_envs_per_env_runner",
        4,
        "Environments that each runner steps together (lanes per runner).",
        maximum=4096,
    ),
    _whole("train_batch_size", 4000, "Environment steps per training iteration, over all runners."),
    _whole("minibatch_size", 256, "Steps per gradient update; at most `train_batch_size`."),
    _whole("num_epochs", 10, "Passes over each train batch."),
    _real("lr", 3e-4, "Learning rate of Adam; of A2C's RMSprop.", open_minimum=True),
    _real("gamma", 0.99, "Discount per step.", open_minimum=True, maximum=1),
    _real("lambda", 0.95, "Generalised advantage estimation: 0 is one-step, 1 is Monte Carlo.", maximum=1),
    _real("clip_param", 0.2, "PPO clip range of the probability ratio.", open_minimum=True),
    _real("entropy_coeff", 0.0, "Weight of the entropy bonus."),
    _real("grad_clip", 0.5, "Largest global norm of a gradient.", open_minimum=True),
    _real(
        "vf_clip_param",
        10_000.0,
        "Largest squared error of the value function that still has a gradient (reward units squared).",
        open_minimum=True,
    ),
    _real("vf_loss_coeff", 0.5, "Weight of the value loss."),
    _real("kl_coeff", 0.2, "Initial weight of the KL penalty, which RLlib then adapts."),
    _real("kl_target", 0.01, "KL per iteration that the adapted penalty aims at.", open_minimum=True),
    _whole(
        "rollout_fragment_length",
        50,
        "Steps that each environment of a runner takes before they are sent to the learner.",
    ),
    _real(
        "lr_end_fraction",
        1.0,
        "Share of `lr` that is left at the end of `budget.env_steps`; it falls linearly. 1 keeps it.",
        maximum=1,
    ),
    _real(
        "vtrace_clip_rho_threshold",
        1.0,
        "V-trace: largest importance weight in the value targets.",
        open_minimum=True,
    ),
    _real(
        "vtrace_clip_pg_rho_threshold",
        1.0,
        "V-trace: largest importance weight in the policy gradient.",
        open_minimum=True,
    ),
    _whole("circular_buffer_num_batches", 8, "Train batches that the learner's buffer holds."),
    _whole(
        "circular_buffer_iterations_per_batch",
        2,
        "How often a train batch is learnt from before it leaves that buffer, at the most.",
    ),
    _whole(
        "target_network_update_freq",
        2,
        "Fillings of that buffer, learnt from, after which the target network follows.",
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
