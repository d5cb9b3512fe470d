"""The parameters that a space may fix or tune, and the algorithms that have them: one entry for each. Pure.

Schema, search, the setting and reading back of RLlib's configuration, tables and the field reference follow from an
entry. Names are RLlib's. Defaults are values that learn on small control tasks; RLlib's own (30 epochs, lambda 1,
vf_clip_param 10, lr 5e-5) are slow and learn badly there.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Value = int | float

SCALE = "num_env_runners"
"""The scale axis. Stratified: dealt evenly over the trials and never chosen by the sampler."""
FRAGMENT = "rollout_fragment_length"
END_FRACTION = "lr_end_fraction"
REFERENCE_MINIBATCH = 128
"""Steps of the minibatch for which `lr` is meant where `lr_scaling_exponent` is given: RLlib's default."""
MAX_PROCESSES = 100_000
"""Runners, or learners, of one trial: a plan places each of them. Ray is tested with 10,000 actors and more.

Source: Ray's release/benchmarks/README.md, "Ray Scalability Envelope".
"""
MAX_TRIALS = 1_000_000
"""Of one study: more than anybody can run, and a plan holds each of them."""
MAX_WHOLE = 2**63 - 1
"""The whole numbers that JSON's readers, NumPy and databases agree on; `str` refuses those of 4300 digits."""
ASYNCHRONOUS = ("APPO", "IMPALA")
EVERY = ("PPO", "A2C", *ASYNCHRONOUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A quantity of one training run that a space may fix or tune.

    Attributes:
        name: RLlib's name (`lambda` for RLlib's `lambda_`).
        kind: `int` or `float`.
        default: Used when the space does not mention the parameter; None means that it must be given, or for a rule
            that it is not used.
        minimum: Smallest value allowed.
        open_minimum: Whether `minimum` itself is excluded.
        maximum: Largest value allowed.
        algorithms: Names of the algorithms to which a space may give it.
        defaults: Algorithm -> its default, where that is another one.
        rllib: The default of RLlib's `PPOConfig()`, Ray 2.60 (a test compares); None where PPO has no such parameter,
            or a space always gives it.
        method: The method of `AlgorithmConfig` that sets it.
        per_learner: Whether RLlib's value is the share of one learner; its argument is then named here.
        meaning: One line for the schema and the field reference, with the unit.
    """

    name: str
    kind: type[int] | type[float]
    default: Value | None
    minimum: float
    open_minimum: bool = False
    maximum: float | None = None
    algorithms: tuple[str, ...] = EVERY
    defaults: Mapping[str, Value] = field(default_factory=dict)
    rllib: Value | None = None
    method: Literal["training", "env_runners"] = "training"
    per_learner: str = ""
    meaning: str

    @property
    def bounds(self) -> str:
        """The allowed values, for people: `> 0, <= 1`."""
        upper = "" if self.maximum is None else f", <= {self.maximum:g}"
        return f"{'>' if self.open_minimum else '>='} {self.minimum:g}{upper}"

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument `attribute(name)` of `AlgorithmConfig.training`."""
        return self.method == "training" and not self.per_learner and self.name != END_FRACTION

    def allows(self, value: Value) -> bool:
        """Return whether `value` lies within the bounds."""
        above = value > self.minimum if self.open_minimum else value >= self.minimum
        return above and (self.maximum is None or value <= self.maximum)

    def set(self, config: Any, value: Value, *, env_steps: int | None = None) -> None:
        """Set the value in RLlib's configuration, whose number of learners is set already.

        Args:
            config: An `AlgorithmConfig`.
            value: The value of the whole trial: RLlib's batches are those of one learner.
            env_steps: Steps of the whole training, over which a schedule runs.
        """
        if self.name == END_FRACTION:
            if value != 1:
                first = _lr_of(config)
                config.training(lr=[[0, first], [env_steps, first * value]])
        elif self.per_learner:
            config.training(**{self.per_learner: int(value) // _learners(config)})
        else:
            getattr(config, self.method)(**{attribute(self.name): value})

    def read(self, config: Any) -> Any:
        """Return the value that RLlib's configuration has; None where it has none."""
        own = _READERS.get(self.name)
        return getattr(config, attribute(self.name), None) if own is None else own(config)


def attribute(name: str) -> str:
    """Return the name of parameter `name` in Python code, ours and RLlib's (`lambda` is a keyword)."""
    return f"{name}_" if name == "lambda" else name


def set_all(config: Any, setting: Mapping[str, Value], *, env_steps: int | None = None) -> None:
    """Set every parameter of a setting in RLlib's configuration, in the order of `PARAMETERS`."""
    for name, parameter in PARAMETERS.items():
        if name in setting:
            parameter.set(config, setting[name], env_steps=env_steps)


class Calls:
    """Takes the place of RLlib's configuration, and notes what is set: method -> arguments."""

    def __init__(self, *, num_learners: int, lr: Value | None) -> None:
        self.num_learners, self.lr = num_learners, lr
        self.made: dict[str, dict[str, Any]] = {"env_runners": {}, "training": {}}

    def env_runners(self, **arguments: Any) -> None:
        """Note arguments of `AlgorithmConfig.env_runners`."""
        self.made["env_runners"] |= arguments

    def training(self, **arguments: Any) -> None:
        """Note arguments of `AlgorithmConfig.training`."""
        self.made["training"] |= arguments


def _learners(config: Any) -> int:
    return max(int(config.num_learners), 1)


def _lr_of(config: Any) -> Any:
    return config.lr[0][1] if isinstance(config.lr, list) else config.lr


def _minibatch_of(config: Any) -> Any:
    # Where none is set, a batch is one minibatch.
    return config.minibatch_size * _learners(config) if config.minibatch_size else config.total_train_batch_size


def _end_fraction_of(config: Any) -> float | None:
    """Return the last learning rate of a schedule in units of the first; None where that is 0, as in a warm-up."""
    if not isinstance(config.lr, list):
        return 1.0
    first, last = config.lr[0][1], config.lr[-1][1]
    return last / first if first else None


_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "train_batch_size": lambda config: config.total_train_batch_size,
        "minibatch_size": _minibatch_of,
        "lr": _lr_of,
        FRAGMENT: lambda config: config.get_rollout_fragment_length(),
        END_FRACTION: _end_fraction_of,
    }
)
"""How a parameter is read of an `AlgorithmConfig` that has no attribute of its name, or another value there."""


def _parameter(
    name: str,
    default: Value | None,
    meaning: str,
    *,
    kind: Any = float,
    minimum: float = 0,
    of: str = "",
    **others: Any,
) -> Parameter:
    """Return an entry; `of` are its algorithms, and `a2c`, `appo`, `impala` their own defaults."""
    own = {each: others.pop(each.lower()) for each in EVERY if each.lower() in others}
    algorithms = tuple(of.split()) or EVERY
    return Parameter(
        name=name,
        kind=kind,
        default=default,
        minimum=minimum,
        meaning=meaning,
        algorithms=algorithms,
        defaults=own,
        **others,
    )


_whole = functools.partial(_parameter, kind=int, minimum=1)
_positive = functools.partial(_parameter, open_minimum=True)

# Defaults of APPO and IMPALA are RLlib's own. Batches of A2C are small, as there is one update for each; its lr is that
# of Stable-Baselines3's A2C. RLlib clips no gradient, which a norm of 1e6 does not either.
_ALL = (
    _whole(
        SCALE,
        None,
        "The scale axis: remote environment runner processes. A number, a list, or a range, which stands for "
        "a list: each value twice the last (`{low: 1, high: 46}` is 1, 2, 4, 8, 16, 32, 46), or those of its "
        "`step`. Every scale gets the same share of an ordinary study's trials, and 'best' is always per "
        "scale.",
        maximum=MAX_PROCESSES,
        method="env_runners",
    ),
    _whole(
        "num_envs_per_env_runner",
        4,
        "Environments that each runner steps together (lanes per runner).",
        appo=1,
        impala=1,
        rllib=1,
        maximum=4096,
        method="env_runners",
    ),
    _whole(
        "train_batch_size",
        4000,
        "Environment steps per training iteration, over all runners.",
        a2c=500,
        appo=500,
        impala=500,
        rllib=4000,
        per_learner="train_batch_size_per_learner",
    ),
    _whole(
        "minibatch_size",
        256,
        "Steps per gradient update; at most `train_batch_size`.",
        of="PPO",
        rllib=128,
        per_learner="minibatch_size",
    ),
    _whole("num_epochs", 10, "Passes over each train batch.", of="PPO", rllib=30),
    _positive("lr", 3e-4, "Learning rate of Adam; of A2C's RMSprop.", a2c=7e-4, appo=5e-4, impala=5e-4, rllib=5e-5),
    _positive("gamma", 0.99, "Discount per step.", rllib=0.99, maximum=1),
    _parameter(
        "lambda",
        0.95,
        "Generalised advantage estimation: 0 is one-step, 1 is Monte Carlo.",
        of="PPO",
        rllib=1.0,
        maximum=1,
    ),
    _positive("clip_param", 0.2, "PPO clip range of the probability ratio.", of="PPO APPO", appo=0.4, rllib=0.3),
    _parameter("entropy_coeff", 0.0, "Weight of the entropy bonus.", appo=0.01, impala=0.01, rllib=0.0),
    _positive("grad_clip", 0.5, "Largest global norm of a gradient.", appo=40.0, impala=40.0, rllib=1e6),
    _positive(
        "vf_clip_param",
        10_000.0,
        "Largest squared error of the value function that still has a gradient (reward units squared).",
        of="PPO",
        rllib=10.0,
    ),
    _parameter("vf_loss_coeff", 0.5, "Weight of the value loss.", rllib=1.0),
    _parameter(
        "kl_coeff",
        0.2,
        "Initial weight of the KL penalty, which RLlib then adapts.",
        of="PPO APPO",
        appo=0.0,
        rllib=0.2,
    ),
    _positive("kl_target", 0.01, "KL per iteration that the adapted penalty aims at.", of="PPO APPO", rllib=0.01),
    _whole(
        FRAGMENT,
        50,
        "Steps that each environment of a runner takes before they are sent to the learner.",
        of="APPO IMPALA",
        method="env_runners",
    ),
    _parameter(  # Espeholt et al. end at 0: nothing else bounds how far an update moves the policy
        END_FRACTION,
        1.0,
        "Share of `lr` that is left at the end of `budget.env_steps`; it falls linearly. 1 keeps it.",
        of="APPO IMPALA",
        maximum=1,
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
        of="PPO",
    ),
    _parameter(
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
NAMES: Mapping[str, Parameter] = MappingProxyType({**PARAMETERS, **RULES})
"""Parameters and rules by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm as a space knows it.

    Attributes:
        parameters: Names of `PARAMETERS` that a space may give.
        defaults: Defaults that differ from those of `PARAMETERS`.
        given: Parameters that the algorithm is defined by; a space does not give them.
        rules: The same for rules.
        asynchronous: Whether runners go on sampling while the learner learns; iterations are then a span of time.
    """

    parameters: tuple[str, ...]
    defaults: Mapping[str, Value] = field(default_factory=dict)
    given: Mapping[str, Value] = field(default_factory=dict)
    rules: Mapping[str, Value] = field(default_factory=dict)
    asynchronous: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters and rules that a space may give."""
        return (*self.parameters, *(name for name in RULES if name not in self.rules))


def _algorithm(
    name: str, *, given: Mapping[str, Value] | None = None, rules: Mapping[str, Value] | None = None
) -> Algorithm:
    return Algorithm(
        parameters=tuple(each.name for each in _ALL if name in each.algorithms),
        defaults={each.name: each.defaults[name] for each in _ALL if name in each.defaults},
        given=given or {},
        rules=rules or {},
        asynchronous=name in ASYNCHRONOUS,
    )


_ONE_UPDATE: Mapping[str, Value] = {"num_minibatches": 1}
"""A batch is one minibatch, whatever its size."""
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "PPO": _algorithm("PPO"),  # Schulman et al., arXiv 1707.06347
        # Huang et al., A2C is a special case of PPO, arXiv 2205.09123
        "A2C": _algorithm("A2C", given={"num_epochs": 1, "lambda": 1.0, "kl_coeff": 0.0}, rules=_ONE_UPDATE),
        "APPO": _algorithm("APPO", given={"num_epochs": 1}, rules=_ONE_UPDATE),  # Luo et al., IMPACT, arXiv 1912.00167
        "IMPALA": _algorithm("IMPALA", given={"num_epochs": 1}, rules=_ONE_UPDATE),  # Espeholt et al., arXiv 1802.01561
    }
)
"""By their names; which parameters each has stands in the entries of `PARAMETERS`."""
