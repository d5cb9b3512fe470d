"""The parameters that a space may fix or tune, and the algorithms that have them: one entry for each. Pure.

Schema, search, the setting and reading back of RLlib's configuration, tables and the field reference follow from an
entry. Names are RLlib's. Defaults are values that learn on small control tasks; RLlib's own (30 epochs, lambda 1,
vf_clip_param 10, lr 5e-5) are slow and learn badly there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

Value = int | float

SCALE = "num_env_runners"
"""The scale axis. Stratified: dealt evenly over the trials and never chosen by the sampler."""
FRAGMENT = "rollout_fragment_length"
END_FRACTION, CLIP_END_FRACTION = "lr_end_fraction", "clip_end_fraction"
REFERENCE_MINIBATCH = 128
"""Steps of the minibatch for which `lr` is meant where `lr_scaling_exponent` is given: RLlib's default."""
MAX_PROCESSES = 100_000
"""Runners, or learners, of one trial. Ray is tested with 10,000 actors and more (its "Scalability Envelope")."""
MAX_TRIALS = 1_000_000
"""Of one study: more than anybody can run, and a plan holds each of them."""
MAX_WHOLE = 2**63 - 1
"""The whole numbers that JSON's readers, NumPy and databases agree on; `str` refuses those of 4300 digits."""
ASYNCHRONOUS = ("APPO", "IMPALA")
EVERY = ("PPO", "A2C", *ASYNCHRONOUS)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A quantity of one training run that a space may fix or tune.

    Attributes:
        name: RLlib's name (`lambda` for RLlib's `lambda_`).
        default: Used when the space does not mention the parameter; None means that it must be given, or for a rule
            that it is not used.
        meaning: One line for the schema and the field reference, with the unit.
        kind, minimum, open_minimum, maximum: Which values are allowed; `open_minimum` excludes `minimum` itself.
        algorithms: Names of the algorithms to which a space may give it.
        defaults: Algorithm -> its default, where that is another one.
        rllib: The default of RLlib's `PPOConfig()`, Ray 2.60 (a test compares); None where PPO has no such parameter,
            or a space always gives it.
        optional: Algorithms whose settings hold it only where a space says another value than the default, which is
            RLlib's: None where RLlib has no such thing.
        set: Gives the value of the whole trial to an `AlgorithmConfig`, whose number of learners is set already; takes
            the environment steps of the training as well. None: `AlgorithmConfig.training` has an argument of the name.
        read: Returns the value that an `AlgorithmConfig` has, None where it has none. None: its attribute of the name.
    """

    name: str
    default: Value | None
    meaning: str
    kind: type[int] | type[float] = float
    minimum: float = 0
    open_minimum: bool = False
    maximum: float | None = None
    algorithms: tuple[str, ...] = EVERY
    defaults: Mapping[str, Value] = field(default_factory=dict)
    rllib: Value | None = None
    optional: tuple[str, ...] = ()
    set: Callable[[Any, Value, int | None], object] | None = None
    read: Callable[[Any], Any] | None = None

    @property
    def bounds(self) -> str:
        """The allowed values, for people: `> 0, <= 1`."""
        upper = "" if self.maximum is None else f", <= {self.maximum:g}"
        return f"{'>' if self.open_minimum else '>='} {self.minimum:g}{upper}"

    def allows(self, value: Value) -> bool:
        """Return whether `value` lies within the bounds."""
        above = value > self.minimum if self.open_minimum else value >= self.minimum
        return above and (self.maximum is None or value <= self.maximum)

    def apply(self, config: Any, value: Value, *, env_steps: int | None = None) -> None:
        """Set the value in RLlib's configuration, as `set` says."""
        if self.set is None:
            config.training(**{attribute(self.name): value})
        else:
            self.set(config, value, env_steps)

    def value_in(self, config: Any) -> Any:
        """Return the value that RLlib's configuration has, as `read` says."""
        return getattr(config, attribute(self.name), None) if self.read is None else self.read(config)


def attribute(name: str) -> str:
    """Return the name of parameter `name` in Python code, ours and RLlib's (`lambda` is a keyword)."""
    return f"{name}_" if name == "lambda" else name


def set_all(config: Any, setting: Mapping[str, Value], *, env_steps: int | None = None) -> None:
    """Set every parameter of a setting in RLlib's configuration, in the order of `PARAMETERS`."""
    for name, parameter in PARAMETERS.items():
        if name in setting:
            parameter.apply(config, setting[name], env_steps=env_steps)


# --- how a parameter is set and read that is no plain argument --------------------------------------------------------


def _of_runners(name: str) -> Callable[[Any, Value, int | None], object]:
    return lambda config, value, _: config.env_runners(**{name: value})


def _shared(name: str) -> Callable[[Any, Value, int | None], object]:
    """Return what sets the share of one learner as argument `name`."""
    return lambda config, value, _: config.training(**{name: int(value) // _learners(config)})


def _learners(config: Any) -> int:
    return max(int(config.num_learners), 1)


def _minibatch_of(config: Any) -> Any:
    # Where none is set, a batch is one minibatch.
    return config.minibatch_size * _learners(config) if config.minibatch_size else config.total_train_batch_size


def _lr_of(config: Any) -> Any:
    return config.lr[0][1] if isinstance(config.lr, list) else config.lr


def _set_end_fraction(config: Any, value: Value, env_steps: int | None) -> None:
    if value != 1:
        first = _lr_of(config)
        config.training(lr=[[0, first], [env_steps, first * value]])


def _end_fraction_of(config: Any) -> float | None:
    """Return the last learning rate of a schedule in units of the first; None where that is 0, as in a warm-up."""
    if not isinstance(config.lr, list):
        return 1.0
    first, last = config.lr[0][1], config.lr[-1][1]
    return last / first if first else None


def _told(config: Any, name: str, value: Any) -> None:
    """Tell a learner what RLlib has no option for, in the dictionary that RLlib keeps for it; None: nothing."""
    before = config.learner_config_dict
    told = {each: said for each, said in before.items() if each != name} | ({} if value is None else {name: value})
    if told != before:
        config.learners(learner_config_dict=told)


def _extension(name: str, default: Value | None, meaning: str, **options: Any) -> Parameter:
    """Return the entry of what `study.trial.engine.extensions` adds to RLlib; its default is what RLlib does."""
    return Parameter(
        name,
        default,
        meaning,
        rllib=default,
        **{"algorithms": _OF_PPO, "optional": EVERY, **options},
        set=lambda config, value, _: _told(config, name, None if value == default else value),
        read=lambda config: config.learner_config_dict.get(name, default),
    )


# --- the entries ------------------------------------------------------------------------------------------------------

_whole = partial(Parameter, kind=int, minimum=1)
_positive = partial(Parameter, open_minimum=True)
_OF_PPO, _CLIPPED, _SYNCHRONOUS = ("PPO",), ("PPO", "APPO"), ("PPO", "A2C")
_switch = partial(_extension, kind=int, maximum=1)

# Defaults of APPO and IMPALA are RLlib's own; A2C has one update for a batch, and the lr of Stable-Baselines3's. RLlib
# clips no gradient, which a norm of 1e6 does not either.
_ALL = (
    _whole(SCALE, None, "The scale axis: environment runner processes. A number, a list, or a range, which stands for "
           "a list: each value twice the last (`{low: 1, high: 46}` is 1, 2, 4, 8, 16, 32, 46).",
           maximum=MAX_PROCESSES, set=_of_runners(SCALE)),
    _whole("num_envs_per_env_runner", 4, "Environments that each runner steps together (lanes per runner).",
           defaults={"APPO": 1, "IMPALA": 1}, rllib=1, maximum=4096, set=_of_runners("num_envs_per_env_runner")),
    _whole("train_batch_size", 4000, "Environment steps per training iteration, over all runners.",
           defaults={"A2C": 500, "APPO": 500, "IMPALA": 500}, rllib=4000,
           set=_shared("train_batch_size_per_learner"), read=lambda config: config.total_train_batch_size),
    _whole("minibatch_size", 256, "Steps per gradient update; at most `train_batch_size`.", algorithms=_OF_PPO,
           rllib=128, set=_shared("minibatch_size"), read=_minibatch_of),
    _whole("num_epochs", 10, "Passes over each train batch.", algorithms=_OF_PPO, rllib=30),
    _positive("lr", 3e-4, "Learning rate of Adam; of A2C's RMSprop.",
              defaults={"A2C": 7e-4, "APPO": 5e-4, "IMPALA": 5e-4}, rllib=5e-5, read=_lr_of),
    _positive("gamma", 0.99, "Discount per step.", rllib=0.99, maximum=1),
    Parameter("lambda", 0.95, "Generalised advantage estimation: 0 is one-step, 1 is Monte Carlo.",
              algorithms=_OF_PPO, rllib=1.0, maximum=1),
    _positive("clip_param", 0.2, "PPO clip range of the probability ratio.", algorithms=_CLIPPED,
              defaults={"APPO": 0.4}, rllib=0.3),
    Parameter("entropy_coeff", 0.0, "Weight of the entropy bonus.", defaults={"APPO": 0.01, "IMPALA": 0.01}, rllib=0.0),
    _positive("grad_clip", 0.5, "Largest global norm of a gradient.", defaults={"APPO": 40.0, "IMPALA": 40.0},
              rllib=1e6),
    _positive("vf_clip_param", 10_000.0, "Largest squared error of the value function that still has a gradient "
              "(reward units squared).", algorithms=_OF_PPO, rllib=10.0),
    Parameter("vf_loss_coeff", 0.5, "Weight of the value loss, the mean squared error; CleanRL's has a factor 1/2: its "
              "0.5 is 0.25 here.", rllib=1.0),
    Parameter("kl_coeff", 0.2, "Initial weight of the KL penalty, which RLlib then adapts.", algorithms=_CLIPPED,
              defaults={"APPO": 0.0}, rllib=0.2),
    _positive("kl_target", 0.01, "KL per iteration that the adapted penalty aims at.", algorithms=_CLIPPED, rllib=0.01),
    _whole(FRAGMENT, 50, "Steps that each environment of a runner takes before they are sent to the learner.",
           algorithms=ASYNCHRONOUS, set=_of_runners(FRAGMENT),
           read=lambda config: config.get_rollout_fragment_length()),
    # Espeholt et al. end at 0: nothing else bounds how far an update moves the policy.
    Parameter(END_FRACTION, 1.0, "Share of `lr` that is left at the end of `budget.env_steps`; it falls linearly, once "
              "an iteration, by RLlib's schedule.", maximum=1, rllib=1.0, optional=_SYNCHRONOUS,
              set=_set_end_fraction, read=_end_fraction_of),
    # What follows RLlib has not, but for its places for extensions: connectors, and a learner derived from its own.
    Parameter(CLIP_END_FRACTION, 1.0, "Share of `clip_param` that is left at the end of `budget.env_steps`; it falls "
              "linearly, once an iteration.", algorithms=_OF_PPO, maximum=1, rllib=1.0, optional=EVERY,
              set=lambda config, value, env_steps: _told(
                  config, CLIP_END_FRACTION, None if value == 1 else [value, env_steps]),
              read=lambda config: config.learner_config_dict.get(CLIP_END_FRACTION, [1.0])[0]),
    _switch("normalize_observations", 0, "1: observations in units of their deviation from their mean so far, clipped "
            "to 10, as VecNormalize has them. Evaluations do not change them.", algorithms=_SYNCHRONOUS),
    _switch("normalize_rewards", 0, "1: rewards divided by the deviation of the discounted return so far, and clipped "
            "to 10, as VecNormalize does; what is recorded are the environment's. Needs at most one learner.",
            algorithms=_SYNCHRONOUS),
    _switch("orthogonal_init", 0, "1: orthogonal weights of gain sqrt(2), of the last layer 0.01 for the policy and 1 "
            "for the value function, and biases 0.", algorithms=_SYNCHRONOUS),
    _extension("adam_epsilon", 1e-8, "Adam's epsilon; published settings mostly have 1e-5.", open_minimum=True),
    _extension("vf_lr", None, "Learning rate of what the value function alone has; it falls as `lr` does. None: `lr`.",
               open_minimum=True, algorithms=_SYNCHRONOUS),
    _switch("minibatch_advantages", 0, "1: advantages are standardised in each minibatch instead of over the batch."),
    _extension("vf_clip_range", None, "The value loss is the larger squared error of the value and of the one that "
               "moved at most so far in this iteration (return units), as PPO2 has it.", open_minimum=True),
)  # fmt: skip

PARAMETERS: Mapping[str, Parameter] = MappingProxyType({parameter.name: parameter for parameter in _ALL})

_RULES = (
    _whole("steps_per_env_runner", None, "In place of `train_batch_size`, which is then this many steps times "
           "`num_env_runners`: the batch grows with the scale."),
    _whole("num_minibatches", None, "In place of `minibatch_size`, which is then the batch divided by this, rounded "
           "down: the minibatch grows with the batch.", algorithms=_OF_PPO),
    Parameter("lr_scaling_exponent", None, "`lr` is meant for minibatches of 128 steps, and multiplied by "
              "(minibatch_size / 128) to this power: 0.5 is square-root scaling, 1 linear.", maximum=1),
)  # fmt: skip

RULES: Mapping[str, Parameter] = MappingProxyType({rule.name: rule for rule in _RULES})
"""What a space may say instead of a number, so that a setting means something at every scale. Unused unless given."""
REPLACED: Mapping[str, str] = MappingProxyType(
    {"steps_per_env_runner": "train_batch_size", "num_minibatches": "minibatch_size"}
)
"""Rule -> the parameter that it stands in for; a setting has one of the two."""
NAMES: Mapping[str, Parameter] = MappingProxyType({**PARAMETERS, **RULES})
"""Parameters and rules by their names."""


def overlay(setting: Mapping[str, Value], changes: Mapping[str, Value]) -> dict[str, Value]:
    """Return `setting` with `changes`; a rule takes the place of its parameter, and the other way round."""
    gone = {REPLACED.get(name) for name in changes} | {rule for rule, name in REPLACED.items() if name in changes}
    return {name: value for name, value in setting.items() if name not in gone} | dict(changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm as a space knows it: one of `ALGORITHMS`, or that of a script (`study.space.spec`).

    A space may give its `parameters`; `defaults` hold where it says nothing. What is `given`, parameters and rules, the
    algorithm is defined by.
    """

    name: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, Value] = field(default_factory=dict)
    given: Mapping[str, Value] = field(default_factory=dict)

    @property
    def asynchronous(self) -> bool:
        """Whether runners go on sampling while the learner learns; iterations are then a span of time."""
        return self.name in ASYNCHRONOUS

    @property
    def is_on_policy(self) -> bool:
        """Whether a train batch is what the runners sampled with the policy, once; else it is drawn from a buffer."""
        return self.name in EVERY

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters and rules that a space may give."""
        return (*self.parameters, *(name for name in RULES if name not in self.given))


def _algorithm(name: str, **given: Value) -> Algorithm:
    return Algorithm(
        name=name,
        parameters=tuple(each.name for each in _ALL if name in each.algorithms),
        defaults={
            each.name: each.defaults.get(name, each.default)
            for each in _ALL
            if name in each.algorithms and each.default is not None
        },
        given=given,
    )


ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "PPO": _algorithm("PPO"),  # Schulman et al., arXiv 1707.06347
        # A batch of the others is one minibatch, whatever its size.
        # Huang et al., A2C is a special case of PPO, arXiv 2205.09123
        "A2C": _algorithm("A2C", num_epochs=1, num_minibatches=1, kl_coeff=0.0, **{"lambda": 1.0}),
        "APPO": _algorithm("APPO", num_epochs=1, num_minibatches=1),  # Luo et al., IMPACT, arXiv 1912.00167
        "IMPALA": _algorithm("IMPALA", num_epochs=1, num_minibatches=1),  # Espeholt et al., arXiv 1802.01561
    }
)
"""By their names; which parameters each has stands in the entries of `PARAMETERS`."""
