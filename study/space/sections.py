"""Sections of a space file: environment, network, budget, search, evaluation, resources. Pure."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from study.space.domains import ParameterValues, Section
from study.space.parameters import MAX_PROCESSES
from study.space.plain import MAX_TRIALS
from study.space.procgen import is_procgen

Sampler = Literal["tpe", "gp", "random", "qmc", "grid"]
Objective = Literal["final_return", "env_steps_to_target", "time_to_target_s", "cpu_s_to_target", "return_and_cpu_s"]


class EnvironmentSpec(Section):
    """The environment, and the returns that give a score its meaning."""

    id: str = Field(min_length=1)
    """A Gymnasium id such as `Acrobot-v1`, `module:Class` of your own, or one of the 16 games of Procgen, such as \
`procgen:coinrun` (through EnvPool)."""
    kwargs: dict[str, Any] = Field({})
    """Arguments of the environment's constructor. Procgen: `distribution_mode` (easy or hard), `num_levels` (200, \
or 500 of the hard ones; 0 is all), `start_level`, and others of EnvPool."""
    floor: float | None = None
    """Return that scores 0: that of a policy that learnt nothing. Required with `holdup`; elsewhere, without it and \
`reference`, the returns are compared as they are. `python -m study evaluate SPACE --random` measures it."""
    reference: float | None = None
    """Return that scores 1: that of a good policy, as published, or the most that is possible. Required with \
`holdup`."""
    target: float | None = None
    """Return from which the environment counts as solved, as its page says, or nine tenths of the way from floor to \
reference. Required with `holdup`, and for the objectives that are a price of reaching it."""
    max_episode_steps: int | None = Field(None, ge=1)
    """Truncate episodes after so many steps of the environment, before `action_repeat`; none keeps its own limit."""
    backend: Literal["gymnasium", "envpool"] = "gymnasium"
    """Who steps the environments: Gymnasium's own Python ones, or EnvPool's compiled ones, other implementations \
with their own random numbers."""
    process: Literal["auto", "shared", "own"] = "auto"
    """Whether several environments may play in one process. `own`: each has a process of its own, as a simulator \
needs that keeps state in its process. `auto`: own where a seeded episode is another one beside a second environment, \
which is tried before the first trial."""
    step_wait_ms: float = Field(0.0, ge=0)
    """Every training step of an environment waits so many milliseconds, as a remote simulator does; not in \
evaluation, and not when emulated."""
    step_cpu_ms: float = Field(0.0, ge=0)
    """Every training step of an environment computes for so many milliseconds more, as a heavy simulator does; not in \
evaluation, and not when emulated."""
    action_repeat: int = Field(1, ge=1)
    """Every action is taken so often, its rewards added up; a step of the study is then so many of the environment."""
    frame_stack: int = Field(1, ge=1)
    """The policy sees so many of the last observations side by side (images: their channels); at first the same one."""
    normalize_observations: bool = False
    """The network begins with (observation - mean) / deviation, clipped to 10, of all that was trained on so far; \
part of the policy. Needs the fused learner."""
    normalize_rewards: bool = False
    """The learner divides rewards by the deviation of the discounted return so far; what is recorded are the \
environment's. Needs `runner: batched`, PPO or A2C, and at most one learner."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_backend(cls, content: Any) -> Any:
        """Let EnvPool step the games of Procgen: nobody else does."""
        if isinstance(content, dict) and is_procgen(str(content.get("id", ""))):
            return {"backend": "envpool", **content}
        return content


class NetworkSpec(Section):
    """RLlib's default network (names of `DefaultModelConfig`): fully connected; for images with convolutions before."""

    fcnet_hiddens: list[Annotated[int, Field(ge=1)]] = Field([64, 64], min_length=1)
    """Units of each hidden layer."""
    fcnet_activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Activation of the hidden layers."""
    vf_share_layers: bool = False
    """Whether policy and value function share the hidden layers; for images the convolutions."""
    conv_filters: list[Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=3, max_length=3)]] | None = None
    """Convolutions over image observations, each `[filters, kernel, stride]`; none: RLlib's own, for squares of 42, \
64, 84 or 96 pixels."""
    conv_net: Literal["nature", "impala"] | None = None
    """Convolutions by name in place of `conv_filters`: `nature`, the three layers of DQN (Mnih et al. 2015) with \
RLlib's padding, or `impala`, the 15 layers in residual blocks of IMPALA (Espeholt et al. 2018)."""


class BudgetSpec(Section):
    """When a trial ends: at the first of the limits given; at least one is."""

    env_steps: int | None = Field(None, ge=1)
    """Environment steps sampled for training, over all runners."""
    iterations: int | list[int] | None = None
    """Training iterations; a list makes it an axis, dealt evenly like the scale."""
    time_s: float | None = Field(None, gt=0)
    """Seconds of training time: evaluation and start-up do not count."""
    allow_larger_batch: bool = False
    """Let a train batch be larger than `env_steps`: such a trial trains once, on more steps than the budget has."""


class BaselineSpec(Section):
    """A named setting that runs before the sampler proposes; what it leaves out, the sampler fills in."""

    name: str = Field(min_length=1)
    """Shown in the tables as the origin of the trial."""
    parameters: ParameterValues = Field(min_length=1)
    """Values of tuned parameters. Without `num_env_runners` the baseline is run at every scale."""


class SearchSpec(Section):
    """Who proposes settings, how many, and with which seeds."""

    sampler: Sampler = "tpe"
    """`tpe`, `gp`, `random`, `qmc` (low discrepancy) or `grid` (every combination on every seed)."""
    num_trials: int | None = Field(None, ge=1, le=MAX_TRIALS)
    """Trials in all, baselines included; a grid counts itself."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field([1], min_length=1)
    """Seeds of the trials, dealt in rotation within each scale."""
    objective: Objective = "final_return"
    """What is searched for: `final_return`; `env_steps_to_target`, `time_to_target_s` or `cpu_s_to_target`, the price \
of two consecutive evaluations at the target; `return_and_cpu_s`, the front of return against CPU-seconds."""
    min_env_steps_per_s: float | None = Field(None, gt=0)
    """A constraint on `measured` trials: the sampler keeps away from slower settings."""
    sampler_seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the sampler and of the order in which scales and seeds are dealt."""
    baselines: list[BaselineSpec] = Field([])
    """Settings that run first, such as the one that you use today."""

    @model_validator(mode="before")
    @classmethod
    def _read_recorded_name(cls, content: Any) -> Any:
        """Read `anchors`, the name of `baselines` in records, on which a study's identity depends."""
        if isinstance(content, dict) and "anchors" in content and "baselines" not in content:
            return {("baselines" if name == "anchors" else name): value for name, value in content.items()}
        return content


class EvaluationSpec(Section):
    """Evaluation on fixed seeds, outside the timed part of a trial."""

    episodes: int = Field(50, ge=1)
    """Episodes of each evaluation."""
    num_evaluations: int = Field(10, ge=1)
    """Evaluations, evenly spaced over the budget; the last one is at the end."""
    seed: int = Field(10_000, ge=0, lt=2**28)
    """First seed of the evaluation episodes; the same for every trial."""
    stochastic: bool = False
    """Draw actions from the policy's distribution, with noise of `seed`, instead of taking the most probable ones."""
    max_episode_steps: int = Field(10_000, ge=1)
    """An evaluation episode that does not end is cut here and scored with what it has."""
    kwargs: dict[str, Any] = Field({})
    """Arguments of the environment's constructor that differ in evaluation. Procgen is evaluated on 100,000 levels \
that follow those of training, where nothing else is said."""
    agent: str | None = Field(None, min_length=1)
    """Agent of a script with several whose return counts; without it their sum does."""


class ResourcesSpec(Section):
    """What a trial reserves, and how long it may be silent."""

    num_cpus_for_main_process: int = Field(1, ge=1)
    """CPUs of the main process, which holds the learner unless `num_learners` says otherwise."""
    num_cpus_per_env_runner: int = Field(1, ge=1)
    """CPUs of each environment runner."""
    placement: Literal["pack", "spread"] = "pack"
    """Fill nodes one after another, or spread the runners over all of them."""
    emulation_processes: int = Field(1, ge=1)
    """Processes that step the lanes of an emulated trial: 1 is the main process itself; more are processes of their \
own, at most one for each runner, with `num_cpus_per_env_runner` CPUs each."""
    num_learners: int = Field(0, ge=0, le=MAX_PROCESSES)
    """Learner processes; each learns from an equal share of every batch. 0: the learner is in the main process."""
    num_cpus_per_learner: int = Field(1, ge=1)
    """CPUs of each learner process."""
    num_gpus_per_learner: float = Field(0.0, ge=0)
    """GPUs of each learner process; without learner processes, of the main process."""
    memory_main_mb: int = Field(700, ge=1)
    """Memory that the plan reckons for the main process, and for each learner process."""
    memory_per_env_runner_mb: int = Field(300, ge=1)
    """Memory that the plan reckons for each environment runner, and for each emulation process."""
    sample_timeout_s: float = Field(600.0, gt=0)
    """A round of sampling, or an evaluation, that takes longer fails the trial instead of hanging the study."""
    startup_timeout_s: float = Field(1800.0, gt=0)
    """A trial whose runners are not up after so long fails."""
