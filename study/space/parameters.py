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


_ALL = (
    Parameter(
        name=SCALE,
        kind=int,
        default=None,
        minimum=1,
        meaning="The scale axis: remote environment runner processes. A number, a list, or a range, which stands for "
        "a list: each value twice the last (`{low: 1, high: 46}` is 1, 2, 4, 8, 16, 32, 46), or those of its `step`. "
        "Every scale gets the same share of an ordinary study's trials, and 'best' is always per scale.",
    ),
    Parameter(
        name="num_envs_per_env_runner",
        kind=int,
        default=4,
        minimum=1,
        maximum=4096,
        meaning="Environments that each runner steps together (lanes per runner).",
    ),
    Parameter(
        name="train_batch_size",
        kind=int,
        default=4000,
        minimum=1,
        meaning="Environment steps per training iteration, over all runners.",
    ),
    Parameter(
        name="minibatch_size",
        kind=int,
        default=256,
        minimum=1,
        meaning="Steps per gradient update; at most `train_batch_size`.",
    ),
    Parameter(
        name="num_epochs",
        kind=int,
        default=10,
        minimum=1,
        meaning="Passes over each train batch.",
    ),
    Parameter(
        name="lr",
        kind=float,
        default=3e-4,
        minimum=0,
        open_minimum=True,
        meaning="Learning rate of Adam; of A2C's RMSprop.",
    ),
    Parameter(
        name="gamma",
        kind=float,
        default=0.99,
        minimum=0,
        open_minimum=True,
        maximum=1,
        meaning="Discount per step.",
    ),
    Parameter(
        name="lambda",
        kind=float,
        default=0.95,
        minimum=0,
        maximum=1,
        meaning="Generalised advantage estimation: 0 is one-step, 1 is Monte Carlo.",
    ),
    Parameter(
        name="clip_param",
        kind=float,
        default=0.2,
        minimum=0,
        open_minimum=True,
        meaning="PPO clip range of the probability ratio.",
    ),
    Parameter(
        name="entropy_coeff",
        kind=float,
        default=0.0,
        minimum=0,
        meaning="Weight of the entropy bonus.",
    ),
    Parameter(
        name="grad_clip",
        kind=float,
        default=0.5,
        minimum=0,
        open_minimum=True,
        meaning="Largest global norm of a gradient.",
    ),
    Parameter(
        name="vf_clip_param",
        kind=float,
        default=10_000.0,
        minimum=0,
        open_minimum=True,
        meaning="Largest squared error of the value function that still has a gradient (reward units squared).",
    ),
    Parameter(
        name="vf_loss_coeff",
        kind=float,
        default=0.5,
        minimum=0,
        meaning="Weight of the value loss.",
    ),
    Parameter(
        name="kl_coeff",
        kind=float,
        default=0.2,
        minimum=0,
        meaning="Initial weight of the KL penalty, which RLlib then adapts.",
    ),
    Parameter(
        name="kl_target",
        kind=float,
        default=0.01,
        minimum=0,
        open_minimum=True,
        meaning="KL per iteration that the adapted penalty aims at.",
    ),
    Parameter(
        name="rollout_fragment_length",
        kind=int,
        default=50,
        minimum=1,
        meaning="Steps that each environment of a runner takes before they are sent to the learner.",
    ),
    Parameter(
        name="lr_end_fraction",
        kind=float,
        default=1.0,
        minimum=0,
        maximum=1,
        meaning="Share of `lr` that is left at the end of `budget.env_steps`; it falls linearly. 1 keeps it.",
    ),
    Parameter(
        name="vtrace_clip_rho_threshold",
        kind=float,
        default=1.0,
        minimum=0,
        open_minimum=True,
        meaning="V-trace: largest importance weight in the value targets.",
    ),
    Parameter(
        name="vtrace_clip_pg_rho_threshold",
        kind=float,
        default=1.0,
        minimum=0,
        open_minimum=True,
        meaning="V-trace: largest importance weight in the policy gradient.",
    ),
    Parameter(
        name="circular_buffer_num_batches",
        kind=int,
        default=8,
        minimum=1,
        meaning="Train batches that the learner's buffer holds.",
    ),
    Parameter(
        name="circular_buffer_iterations_per_batch",
        kind=int,
        default=2,
        minimum=1,
        meaning="How often a train batch is learnt from before it leaves that buffer, at the most.",
    ),
    Parameter(
        name="target_network_update_freq",
        kind=int,
        default=2,
        minimum=1,
        meaning="Fillings of that buffer, learnt from, after which the target network follows.",
    ),
)

PARAMETERS: Mapping[str, Parameter] = MappingProxyType({parameter.name: parameter for parameter in _ALL})

_RULES = (
    Parameter(
        name="steps_per_env_runner",
        kind=int,
        default=None,
        minimum=1,
        meaning="In place of `train_batch_size`, which is then this many steps times `num_env_runners`: the batch "
        "grows with the scale.",
    ),
    Parameter(
        name="num_minibatches",
        kind=int,
        default=None,
        minimum=1,
        meaning="In place of `minibatch_size`, which is then the batch divided by this, rounded down: the minibatch "
        "grows with the batch.",
    ),
    Parameter(
        name="lr_scaling_exponent",
        kind=float,
        default=None,
        minimum=0,
        maximum=1,
        meaning="`lr` is meant for minibatches of 128 steps, and multiplied by (minibatch_size / 128) to this power: "
        "0.5 is square-root scaling, 1 linear.",
    ),
)

RULES: Mapping[str, Parameter] = MappingProxyType({rule.name: rule for rule in _RULES})
"""What a space may say instead of a number, so that a setting means something at every scale. Unused unless given."""

REPLACED: Mapping[str, str] = MappingProxyType(
    {"steps_per_env_runner": "train_batch_size", "num_minibatches": "minibatch_size"}
)
"""Rule -> the parameter that it stands in for; a setting has one of the two."""

REFERENCE_MINIBATCH = 128
"""Steps of the minibatch for which `lr` is meant where `lr_scaling_exponent` is given: RLlib's default."""
