"""The sections of a space file, those of hold-up and throughput studies included, and the games of Procgen. Pure.

The text below each field is its description in the schema and the field reference.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, field_validator

from study.space.domains import (
    Arguments,
    Distinct,
    Section,
    Values,
    Whole,
    broken,
    domain_of,
    mapping_of,
    suggestion,
    values,
)
from study.space.parameters import MAX_PROCESSES, MAX_TRIALS, NAMES, SCALE, Parameter

Sampler = Literal["tpe", "random", "grid"]
Seed = Annotated[Whole, Field(ge=0, lt=2**31)]
Scale = Annotated[Whole, Field(ge=1, le=MAX_PROCESSES)]

GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot", "heist", "jumper"),
    *("leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)
"""Of Procgen: `procgen:coinrun` and so on, with levels to train on and others to be tested on. They are EnvPool's.

Source: Cobbe et al., "Leveraging procedural generation to benchmark reinforcement learning", arXiv 1912.01588: training
on 200 levels of the easy and 500 of the hard distribution, tests on others.
"""
PREFIX = "procgen:"
TRAINING_LEVELS = {"easy": 200, "hard": 500}
NUM_TEST_LEVELS = 100_000
"""Levels to be tested on, which follow those of training; the paper tests on all there are."""


def is_procgen(env_id: str) -> bool:
    """Return whether an id names a Procgen game: `procgen:coinrun`."""
    return env_id.startswith(PREFIX)


def has_levels(env_id: str, kwargs: Mapping[str, Any]) -> bool:
    """Return whether the arguments of a Procgen game name levels that there are; their sums stay within 32 bits."""
    if not is_procgen(env_id):
        return True
    numbers = [kwargs.get(name, 0) for name in ("num_levels", "start_level")]
    known = kwargs.get("distribution_mode", "easy") in TRAINING_LEVELS
    return known and all(type(number) is int and 0 <= number <= 10**9 for number in numbers)


def task_of(env_id: str, kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return EnvPool's task of a Procgen game and its arguments: where levels are not given, those of training."""
    arguments = dict(kwargs)
    mode = str(arguments.pop("distribution_mode", "easy"))
    levels = {"num_levels": TRAINING_LEVELS[mode], "start_level": 0}
    return f"{env_id.removeprefix(PREFIX).capitalize()}{mode.capitalize()}-v0", {**levels, **arguments}


class EnvironmentSpec(Section):
    """The environment, and the returns that give a score its meaning."""

    id: str = Field(min_length=1)
    """A Gymnasium id such as `Acrobot-v1`, `module:Class` of your own, or one of the 16 games of Procgen, such as \
`procgen:coinrun` (through EnvPool)."""
    kwargs: Arguments = Field({})
    """Arguments of the environment's constructor. Procgen: `distribution_mode` (easy or hard), `num_levels` (200, \
or 500 of the hard ones; 0 is all), `start_level`, and others of EnvPool."""
    floor: float | None = None
    """Return that scores 0: that of a policy that learnt nothing. Required with `holdup`. \
`python -m study evaluate SPACE --random` measures it."""
    reference: float | None = None
    """Return that scores 1: that of a good policy, or the most that is possible. Required with `holdup`."""
    target: float | None = None
    """Return from which the environment counts as solved, as its page says, or nine tenths of the way from floor to \
reference. Required with `holdup`, and for the objective `env_steps_to_target`."""
    max_episode_steps: Whole | None = Field(None, ge=1)
    """Truncate episodes after so many steps; none keeps the environment's own limit."""
    backend: Literal["gymnasium", "envpool"] = "gymnasium"
    """Who steps the environments: Gymnasium's, or EnvPool's compiled ones, which have other random numbers."""
    process: Literal["auto", "shared", "own"] = "auto"
    """Whether several environments may play in one process. `own`: none share one, as a simulator needs that keeps \
state in its process: runners are real, with one environment each. `auto`: own where a seeded episode is another one \
beside a second environment, which is tried before the first trial. `shared`: several may, and nothing is tried."""
    step_wait_ms: float = Field(0.0, ge=0)
    """Every training step of a real runner waits so many milliseconds, as a remote simulator does."""

    @field_validator("id")
    @classmethod
    def _named_rightly(cls, env_id: str) -> str:
        if (file := re.fullmatch(r"([\w/.-]+)\.py(:\w+)", env_id)) is not None:
            module = file[1].removeprefix("./").replace("/", ".")
            rule, fix = "must be `module:Class`, without `.py`", f"Did you mean '{module}{file[2]}'?"
            raise broken(rule=rule, got=f"'{env_id}'", fix=fix)
        if is_procgen(env_id) and env_id.removeprefix(PREFIX) not in GAMES:
            fix = suggestion(env_id, [f"{PREFIX}{each}" for each in GAMES])
            raise broken(rule="must be a game of Procgen", got=f"'{env_id}'", fix=fix)
        return env_id


class NetworkSpec(Section):
    """RLlib's default network (names of `DefaultModelConfig`): fully connected; for images with convolutions before."""

    fcnet_hiddens: list[Annotated[Whole, Field(ge=1)]] = Field([64, 64], min_length=1, max_length=64)
    """Units of each hidden layer; the plan reckons with the memory that they take."""
    fcnet_activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Activation of the hidden layers."""
    free_log_std: bool = False
    """Whether the standard deviations of continuous actions are parameters of their own, not of the observation."""
    vf_share_layers: bool = False
    """Whether policy and value function share the hidden layers; for images the convolutions."""
    conv_filters: list[Annotated[list[Annotated[Whole, Field(ge=1)]], Field(min_length=3, max_length=3)]] | None = None
    """Convolutions over images, each `[filters, kernel, stride]`; none: RLlib's own, of squares of 42 to 96 pixels."""
    conv_net: Literal["nature"] | None = None
    """Convolutions by name in place of `conv_filters`: `nature`, the three layers of DQN (Mnih et al. 2015)."""

    @property
    def convolutions(self) -> list[list[int]] | None:
        """Filters, kernel and stride of each convolution (Mnih et al., Nature 518, 2015); None: RLlib's own."""
        return [[32, 8, 4], [64, 4, 2], [64, 3, 1]] if self.conv_net == "nature" else self.conv_filters


class BudgetSpec(Section):
    """When a trial ends: at the first of the limits given; at least one is."""

    env_steps: Whole | None = Field(None, ge=1)
    """Environment steps sampled for training, over all runners."""
    iterations: Whole | None = Field(None, ge=1)
    """Training iterations."""
    time_s: float | None = Field(None, gt=0)
    """Seconds of training time: evaluation and start-up do not count."""


class BaselineSpec(Section):
    """A named setting that runs before the sampler proposes; what it leaves out is this project's default."""

    name: str = Field(min_length=1)
    """Shown in the tables as the origin of the trial."""
    parameters: Values
    """Values of parameters, which may lie outside of the space: the sampler does not learn from it. One that is left \
out has its default. Without `num_env_runners` it runs at every scale."""


class SearchSpec(Section):
    """Who proposes settings, how many, and with which seeds."""

    sampler: Sampler = "tpe"
    """`tpe`, `random` or `grid` (every combination on every seed)."""
    num_trials: Whole | None = Field(None, ge=1, le=MAX_TRIALS)
    """Trials in all, baselines included; a grid counts itself."""
    seeds: Annotated[list[Seed], Distinct] = Field([1], min_length=1)
    """Seeds of the trials, dealt in rotation within each scale."""
    objective: Literal["final_return", "env_steps_to_target"] = "final_return"
    """What is searched for: the return at the end, or the fewest steps to two consecutive evaluations at the target."""
    sampler_seed: Seed = 0
    """Seed of the sampler and of the order in which scales and seeds are dealt."""
    baselines: list[BaselineSpec] = Field([])
    """Settings that run first, such as the one that you use today."""


NUM_SEARCH_SEEDS = 8
"""Seeds that the trials of a hold-up study's search take in turn."""
SEEDS_OF_A_STUDY = 1_000
"""Seeds that belong to one hold-up study: those from this many times `holdup.seed` on."""
MOST_STUDIES = 100_000
"""Numbers that `holdup.seed` is drawn from."""
MOST_SEEDS = 100
"""Seeds of a hold-up study's race."""
FIRST_EVALUATION_SEED = 10_000


class EvaluationSpec(Section):
    """Evaluation on fixed seeds, outside the timed part of a trial."""

    episodes: Whole = Field(50, ge=1)
    """Episodes of each evaluation."""
    num_evaluations: Whole = Field(10, ge=1)
    """Evaluations, evenly spaced over the budget; the last one is at the end."""
    seed: Whole = Field(FIRST_EVALUATION_SEED, ge=0, lt=2**28)
    """First seed of the evaluation episodes; the same for every trial. A hold-up study has its own."""
    stochastic: bool = False
    """Draw actions from the policy's distribution, with noise of `seed`, instead of taking the most probable ones."""
    max_episode_steps: Whole = Field(10_000, ge=1)
    """An evaluation episode that does not end is cut here and scored with what it has."""
    kwargs: Arguments = Field({})
    """Arguments of the environment's constructor that differ in evaluation. Procgen is evaluated on 100,000 levels \
that follow those of training, where nothing else is said."""


class ResourcesSpec(Section):
    """What a trial reserves, and how long it may be silent."""

    num_cpus_for_main_process: Whole = Field(1, ge=1)
    """CPUs of the main process, which holds the learner unless `num_learners` says otherwise."""
    num_cpus_per_env_runner: Whole = Field(1, ge=1)
    """CPUs of each environment runner."""
    placement: Literal["pack", "spread"] = "pack"
    """Fill nodes one after another, or spread the runners over all of them."""
    num_learners: Whole = Field(0, ge=0, le=MAX_PROCESSES)
    """Learner processes; each learns from an equal share of every batch. 0: the learner is in the main process."""
    num_cpus_per_learner: Whole = Field(1, ge=1)
    """CPUs of each learner process."""
    num_gpus_per_learner: float = Field(0.0, ge=0)
    """GPUs of each learner process; without learner processes, of the main process."""
    memory_main_mb: Whole = Field(700, ge=1)
    """Memory that the plan reckons for the main process, and for each learner process."""
    memory_per_env_runner_mb: Whole = Field(300, ge=1)
    """Memory that the plan reckons for each environment runner."""
    sample_timeout_s: float = Field(600.0, gt=0)
    """A round of sampling, an update or an evaluation that takes longer fails the trial."""
    startup_timeout_s: float = Field(1800.0, gt=0)
    """A trial whose runners are not up after so long fails."""


class RaceSpec(Section):
    """Racing the best settings of the search, at the target scale, all on the same seeds."""

    num_settings: Whole = Field(8, ge=2)
    """Settings that enter."""
    blocks: list[Annotated[Whole, Field(ge=1, le=MOST_SEEDS)]] = Field([1, 2, 4], min_length=1)
    """Seeds of each block; after each, the better half goes on, and after the last one the best."""


class ConfirmSpec(Section):
    """The frozen settings on test seeds."""

    num_seeds: Whole = Field(20, ge=5, le=SEEDS_OF_A_STUDY // 2)
    """Test seeds of every arm: the chosen setting at the target, small and unseen scales, the small scale's best, and \
every rival at the target scale."""
    num_seeds_rllib: Whole = Field(10, ge=0, le=SEEDS_OF_A_STUDY // 2)
    """Test seeds of the chosen setting at the target scale, and of the small scale's best there, under RLlib's own \
runners and learner: the verdict about RLlib rests on them. 0 leaves them out."""


class HoldUpSpec(Section):
    """A hold-up study: which setting still works at the target scale? In stages, each with seeds of its own."""

    target_scale: Scale
    """The scale that the setting is for; among `parameters.num_env_runners`."""
    small_scale: Scale
    """The scale at which training is known to work; among `parameters.num_env_runners`."""
    unseen_scales: Annotated[list[Scale], Distinct] = Field([])
    """Scales that no stage runs before the confirmation."""
    published: Values = Field({})
    """A published setting, one more rival: its source, `rl_zoo3`, `cleanrl` or `slm_lab`, or its parameters; the rest \
is as RLlib ships it. Its batch stays as published in any number of environments."""
    naive_steps_per_env_runner: Whole = Field(400, ge=1)
    """Batch per runner of the rival `naive_growth`: PPO as RLlib ships it, its batch grown with the runners."""
    seed: Whole | None = Field(None, ge=1, le=MOST_STUDIES)
    """Number of which all seeds of the study are made, those of its evaluation episodes and of its sampler too. \
Without it one that no other study has is drawn when the study begins; it stands in the study's study.json."""
    num_settings: Whole = Field(24, ge=4, le=MAX_TRIALS)
    """Settings that the search proposes besides this project's default: half at the target scale, a quarter at the \
small one, the rest between."""
    race: RaceSpec = RaceSpec()  # type: ignore[call-arg]
    """Racing the best settings of the search, at the target scale, all on the same seeds."""
    confirm: ConfirmSpec = ConfirmSpec()  # type: ignore[call-arg]
    """The frozen settings on test seeds."""
    tolerance: float = Field(0.05, gt=0, lt=1)
    """How much score the target scale may lose against the small scale's best and still hold up."""
    solved_share: float = Field(0.95, gt=0, le=1)
    """Share of test seeds that must be solved, at each of the last three evaluations."""

    @property
    def search_seeds(self) -> range:
        """Seeds of the search, in turn."""
        return self._seeds(1, NUM_SEARCH_SEEDS)

    @property
    def race_seeds(self) -> range:
        """Seeds of the race."""
        return self._seeds(101, sum(self.race.blocks))

    @property
    def test_seeds(self) -> range:
        """Seeds of the confirmation; refused until the settings are frozen."""
        return self._seeds(201, max(self.confirm.num_seeds, self.confirm.num_seeds_rllib))

    def _seeds(self, first: int, count: int) -> range:
        begin = (self.seed or 0) * SEEDS_OF_A_STUDY + first  # not drawn yet: a plan needs numbers, whichever
        return range(begin, begin + count)


LEARNERS = "num_learners"
"""An axis of a grid that is no parameter of PPO: `resources.num_learners`."""
AXES = {
    **{name: NAMES[name] for name in (SCALE, "num_envs_per_env_runner", "train_batch_size", "steps_per_env_runner")},
    **{name: NAMES[name] for name in ("minibatch_size", "num_minibatches", "num_epochs")},
    LEARNERS: Parameter(LEARNERS, 0, "Learner processes, as `resources.num_learners`.", int, maximum=MAX_PROCESSES),
}
"""What a grid can vary: what an iteration's time depends on, in the order of the tables."""

GridSpec = mapping_of(
    "GridSpec", {name: NotRequired[domain_of(parameter, sampled=False)] for name, parameter in AXES.items()}
)
"""A cross product: axis -> a value, a list, or a range that stands for one."""


class ThroughputSpec(Section):
    """A throughput study: short trials of cells, in blocks. It measures the clock and makes no claim about learning."""

    iterations: Whole = Field(4, ge=1)
    """Timed training iterations of each trial; one more before them is warm-up."""
    blocks: Whole = Field(3, ge=1, le=1_000)
    """Each runs every cell once, cells in random order (those of equal runners one after another), and the base cell \
at its beginning and at its end. The number of the block is the seed of its trials."""
    grids: dict[str, GridSpec] = Field(min_length=1)  # type: ignore[valid-type]
    """Name -> what is varied around the base cell (`parameters`): `num_env_runners`, `num_envs_per_env_runner`, \
`train_batch_size`, `steps_per_env_runner`, `minibatch_size`, `num_minibatches`, `num_epochs`, `num_learners`. A cell \
of several grids runs once a block."""

    def axes(self) -> dict[str, dict[str, list[int]]]:
        """Return grid -> axis -> its values, of those that the grid varies."""
        return {
            name: {axis: [int(value) for value in values(domain)] for axis, domain in grid.items()}  # type: ignore[attr-defined]
            for name, grid in self.grids.items()
        }
