"""The schema of a space file: `StudySpec`, whose sections are in `sections`, what is known of a person's script. Pure.

A study's identity is the digest of the values that differ from the defaults, with the schema's version: a new key whose
default does what was done before stops no resume, and makes no recorded study old.
"""

import copy
import hashlib
import json
import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticKnownError

from study.space.domains import Choices, Domain, ParametersSpec, Range, Section
from study.space.parameters import ALGORITHMS, NAMES, PARAMETERS, REPLACED, RULES, SCALE, Algorithm, Value, overlay
from study.space.published import published_setting
from study.space.sections import (
    LEARNERS,
    NUM_TEST_LEVELS,
    PREFIX,
    BudgetSpec,
    EnvironmentSpec,
    EvaluationSpec,
    HoldUpSpec,
    NetworkSpec,
    ResourcesSpec,
    SearchSpec,
    ThroughputSpec,
    is_procgen,
    task_of,
)

Execution = Literal["real", "emulated"]
"""How a trial runs: one process for each runner, or the lanes of all runners inside few processes."""

# --- what is known of a script ----------------------------------------------------------------------------------------

_COMMON = {SCALE, "num_envs_per_env_runner", "rollout_fragment_length", "train_batch_size", "lr", "gamma", "grad_clip"}
"""What RLlib's other algorithms have of our parameters."""
_PERHAPS = {"num_epochs", "minibatch_size", "lambda"}
"""What a script's own algorithm may have beside those of RLlib's that it is derived from."""


class ScriptSource(Section):
    """The file that a configuration was found in."""

    file: str
    """Name of the file, or of the module, without its folder: studies are alike wherever the file lies."""
    sha256: str
    """Of the file's content, in hexadecimal."""
    modules: dict[str, str] = Field({})
    """Module of the user's own that the script imports -> SHA-256 of the files of it that were imported."""


class ScriptFacts(Section):
    """What a script's `AlgorithmConfig` says, as JSON values; what older versions recorded besides is left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=True)

    source: ScriptSource
    found_as: str
    """How the configuration was found: `module level`, `function make_config`, `tune.Tuner`, `build_algo`, …."""
    algorithm: str
    """Name of the algorithm's class: `PPO`, `SAC`, or the script's own."""
    base_algorithm: str
    """Name of RLlib's class that it is, or is derived from."""
    environment: str
    """Name of the environment, or of its class, as written."""
    agents: list[str] = Field([])
    """Policies of several agents by their ids; empty for one agent."""
    values: dict[str, Any] = Field({})
    """Parameter of `study.space.parameters` -> the script's value; None where it has none (`grad_clip`)."""
    schedules: list[str] = Field([])
    """Parameters that follow a schedule: they have no one value, and are not varied unless the space names them."""
    overridden: list[str] = Field([])
    """Parameters of which every module that learns has a value of its own: a value of the whole would reach none."""
    searched: list[str] = Field([])
    """Parameters, and other settings of RLlib, for which the script lets Tune choose; `values` has one of theirs."""
    num_learners: int = 1
    """Learners among which RLlib divides a batch, at least one."""
    settings: dict[str, Any] = Field({})
    """Other options of RLlib that the script sets -> value as text, or a digest of a long one."""
    stop: dict[str, Any] = Field({})
    """Its stop criteria that are numbers, by RLlib's names of results."""
    runner_obstacle: str = ""
    """Why RLlib's own runner samples: the batched one cannot do the same; empty where it can."""
    learner_obstacle: str = ""
    """The same of the learner and the fused one."""
    sharing: Literal["harmless", "wrong", "unknown"] = "harmless"
    """What several of its environments in one process do to one another; unknown of those for several agents."""

    @property
    def defaults(self) -> dict[str, Value]:
        """The script's values that a space can hold: numbers within the bounds of our parameters."""
        found: dict[str, Value] = {}
        for name, value in self.values.items():
            if name not in PARAMETERS or type(value) not in (int, float) or not math.isfinite(value):
                continue
            value = max(value, 1) if name == SCALE else value  # without runners its main process samples, as one does
            if PARAMETERS[name].allows(value) and value == PARAMETERS[name].kind(value):
                found[name] = PARAMETERS[name].kind(value)
        return found

    @property
    def traits(self) -> Algorithm:
        """What a space may give to the script's algorithm; its defaults are the script's values."""
        known = ALGORITHMS.get(self.base_algorithm)
        taken = _COMMON if known is None else {*known.parameters, *(_PERHAPS & self.values.keys())}
        return Algorithm(
            name=self.base_algorithm,
            parameters=tuple(name for name in PARAMETERS if name in taken),
            defaults={name: value for name, value in self.defaults.items() if name in taken},
        )


# --- the schema -------------------------------------------------------------------------------------------------------


def _algorithm_known(name: str, info: ValidationInfo) -> str:
    if info.data.get("script") is None and name not in ALGORITHMS:
        raise PydanticKnownError("literal_error", {"expected": " or ".join(map(repr, ALGORITHMS))})
    return name


class StudySpec(Section):
    """A study: what to vary, on which environment, under which budget."""

    version: Literal[1] = 1
    """Version of this schema. A file without it is read by the current one."""
    description: str = ""
    """One line about the study's question."""
    kind: Literal["search", "throughput"] = "search"
    """`search`: which settings learn, or hold up; `throughput`: how many environment steps a second the cells of \
`throughput` make, in short trials that evaluate nothing."""
    config: str | None = Field(None, min_length=1)
    """A script of yours in place of `environment.id`, `algorithm` and `model`: `my_train.py`, or \
`my_train.py:make_config`, where `:` names an `AlgorithmConfig`, or a function that returns one. \
Every trial runs this configuration; the study sets what `parameters` says, seeds, evaluation and resources."""
    config_args: str = ""
    """Arguments that the script reads from its command line: `"--num-agents 2"`."""
    script: ScriptFacts | None = None
    """What was found in the script. It is read at each start, and nobody writes it."""
    environment: EnvironmentSpec
    """The environment, and the returns that give a score its meaning."""
    algorithm: Annotated[str, AfterValidator(_algorithm_known)] = "PPO"
    """RLlib's PPO, APPO or IMPALA, on its new API stack, or A2C as the special case of PPO that it is. Each has \
parameters of its own. With `config` it is the script's, any of RLlib's new API stack."""
    parameters: ParametersSpec
    """The scale axis, the tuned and the fixed parameters: each is a value (fixed), a list (choices), or \
`{low, high, log}` (a range). See the next table."""
    model: NetworkSpec = NetworkSpec()  # type: ignore[call-arg]
    """The network."""
    runner: Literal["batched", "stock"] = "batched"
    """How a runner samples: `batched`, one forward pass per vector step over all its lanes; `stock`, RLlib's own."""
    learner: Literal["auto", "fused", "rllib"] = "auto"
    """How a batch is learnt from: `fused`, RLlib's update as one program that JAX compiles, for PPO and A2C, vectors, \
dense networks, CPUs and one learner; `rllib`, RLlib's own. `auto`: `fused` where it can serve all trials of the \
study, else `rllib`; each trial records which."""
    execution: Literal["auto", "real", "emulated"] = "auto"
    """`real`: one process for each runner. `emulated`: the lanes of all runners are stepped inside the main process; \
learning is the same, the clock is not. `auto`: real where every process gets a core of its own and the memory \
suffices (of a search, at two of its scales), where environments wait (`step_wait_ms`), or emulation is impossible."""
    budget: BudgetSpec = BudgetSpec()  # type: ignore[call-arg]
    """When a trial ends: at the first of the limits given. A throughput study counts its iterations itself."""
    search: SearchSpec = SearchSpec()  # type: ignore[call-arg]
    """Who proposes settings."""
    holdup: HoldUpSpec | None = None
    """Makes this a hold-up study: in stages, with a certificate at the end."""
    throughput: ThroughputSpec | None = None
    """The cells of a throughput study, `kind: throughput`; `parameters` gives the base cell."""
    evaluation: EvaluationSpec = EvaluationSpec()  # type: ignore[call-arg]
    """How a policy is judged."""
    resources: ResourcesSpec = ResourcesSpec()  # type: ignore[call-arg]
    """What a trial reserves."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, content: Any) -> Any:
        """Say what the space does not: defaults of the algorithm, all that its script says, a published setting."""
        if not isinstance(content, dict):
            return content
        facts = None if (found := content.get("script")) is None else ScriptFacts.model_validate(found)
        traits = facts.traits if facts else ALGORITHMS.get(str(content.get("algorithm", "PPO")))
        parameters, environment = content.get("parameters", {} if facts else None), content.get("environment", {})
        if traits is None or not isinstance(parameters, dict) or not isinstance(environment, dict):
            return content
        filled = {**content, "parameters": overlay(traits.defaults, parameters)}
        if traits.name not in ("PPO", "A2C"):
            filled = {"learner": "rllib", **filled}
        if facts is not None:
            filled = {"algorithm": traits.name, **filled, "environment": {"id": facts.environment, **environment}}
        elif is_procgen(str(environment.get("id"))):  # nobody else steps them
            filled["environment"] = {"backend": "envpool", **environment}
        if isinstance(holdup := content.get("holdup"), dict) and isinstance(name := holdup.get("published"), str):
            env_id = facts.environment if facts else str(environment.get("id"))
            filled["holdup"] = {**holdup, "published": published_setting(name, env_id)}
        return filled

    @property
    def design(self) -> str:
        """The name of the kind of study, by which `study.designs` knows it."""
        return self.kind if self.holdup is None else "holdup"

    @property
    def learns(self) -> bool:
        """Whether trials are evaluated and scored."""
        return self.kind != "throughput"

    @property
    def traits(self) -> Algorithm:
        """Parameters of `algorithm`, and the values that it fixes; of a script those of the algorithm that it has."""
        return ALGORITHMS[self.algorithm] if self.script is None else self.script.traits

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The parameters that the algorithm has; of a script those that it or the space gives a value to."""
        known = {*self.traits.given, *(self.traits.parameters if self.script is None else self.parameters)}
        known |= {REPLACED[rule] for rule in known & REPLACED.keys()}
        return tuple(name for name in PARAMETERS if name in known and not self._as_rllib(name))

    def _as_rllib(self, name: str) -> bool:
        """Return whether a space leaves an optional parameter as RLlib has it: no setting and no record holds it."""
        is_optional = self.script is None and name in PARAMETERS and self.algorithm in PARAMETERS[name].optional
        return is_optional and self.domain(name) == PARAMETERS[name].default

    def domain(self, name: str) -> Domain:
        """Return what the algorithm or the space says about parameter `name`, or its default."""
        default = self.parameters.get(name, NAMES[name].default)
        domain: Domain = self.traits.given.get(name, default)
        return domain

    @property
    def rules(self) -> dict[str, Domain]:
        """Rule -> what the algorithm or the space says about it, of those that are used."""
        return {name: domain for name in RULES if (domain := self.domain(name)) is not None}

    @property
    def _domains(self) -> dict[str, Domain]:
        """What is known about everything but the scale: rules in place of what they replace."""
        left_out = {SCALE, *(REPLACED.get(rule) for rule in self.rules)}
        return {name: self.domain(name) for name in self.parameter_names if name not in left_out} | self.rules

    @property
    def scales(self) -> tuple[int, ...]:
        """The values of `num_env_runners`, ascending."""
        domain = self.domain(SCALE)
        return tuple(sorted(map(int, domain.choices))) if isinstance(domain, Choices) else (int(domain),)  # type: ignore[arg-type]

    @property
    def tuned(self) -> dict[str, Choices | Range]:
        """What the sampler chooses: all parameters and rules with a choice or a range, except the scale."""
        return {name: domain for name, domain in self._domains.items() if isinstance(domain, (Choices, Range))}

    @property
    def fixed(self) -> dict[str, Value]:
        """The parameters and rules with one value, except the scale."""
        return {name: domain for name, domain in self._domains.items() if isinstance(domain, (int, float))}

    @property
    def runner_in_use(self) -> Literal["batched", "stock"]:
        """What samples, as far as the space and its script tell: RLlib's own runner where ours cannot do the same."""
        return "stock" if self.script is not None and self.script.runner_obstacle else self.runner

    @property
    def not_emulated(self) -> str:
        """Why runners cannot be emulated, whatever samples; empty where they can."""
        if self.traits.asynchronous:
            return f"how old a policy {self.algorithm} learns from depends on the clock, and emulation has none"
        if not self.traits.is_on_policy:
            return f"how often {self.algorithm} learns depends on the number of runner processes"
        if self.environment.process == "own" or (self.script is not None and self.script.sharing == "wrong"):
            return f"{self.environment.id} keeps state in its process: beside a second one it plays another episode"
        return ""

    @property
    def learner_in_use(self) -> Literal["fused", "rllib"]:
        """What learns, as far as the space and what is installed here tell: a trial may find that `fused` cannot serve.

        All trials of a study have the same, as a comparison between engines says nothing.
        """
        serves = not self.fused_obstacle and (self.learner == "fused" or find_spec("jax") is not None)
        return "fused" if serves else "rllib"

    @property
    def fused_obstacle(self) -> str:
        """Why `fused` cannot serve all trials of the study, as far as the space tells; empty where it can."""
        pictures = is_procgen(self.environment.id) or self.model.conv_net or self.model.conv_filters
        obstacles = {
            self.script.learner_obstacle if self.script is not None else "": True,
            "learner: rllib is set": self.learner == "rllib",
            f"the algorithm is {self.algorithm}": self.algorithm not in ("PPO", "A2C"),
            "there are several learners": self.most_learners > 1,
            "the learner has a GPU": self.resources.num_gpus_per_learner > 0,
            "observations are images": bool(pictures),
        }
        return next((reason for reason, holds in obstacles.items() if holds and reason), "")

    @property
    def most_learners(self) -> int:
        """The largest number of learners that a trial has, at least one."""
        grids = self.throughput.axes().values() if self.throughput else ()
        varied = [number for axes in grids for number in axes.get(LEARNERS, ())]
        return max(self.resources.num_learners, *varied, 1)

    @property
    def standardization_in_use(self) -> Literal["steps", "rllib", "none"]:
        """What advantages are standardised over, where the learner is ours; for a script as near to it as can be.

        `steps`: environment steps only. `rllib`: also the row that RLlib appends to each fragment. `none`: not at all.
        """
        if self.algorithm != "PPO":
            return "none"
        return "rllib" if self.learner_in_use == "rllib" or self.script is not None else "steps"

    @property
    def evaluated_environment(self) -> EnvironmentSpec:
        """The environment in which policies are judged; Procgen's on levels that follow those of training."""
        kwargs = dict(self.environment.kwargs)
        if is_procgen(self.environment.id):
            _, training = task_of(PREFIX, kwargs)
            if training["num_levels"] > 0:  # else it trains on all levels, and so is tested on them
                start = training["start_level"] + training["num_levels"]
                kwargs |= {"num_levels": NUM_TEST_LEVELS, "start_level": start}
        return self.environment.model_copy(update={"kwargs": {**kwargs, **self.evaluation.kwargs}})

    @property
    def own_code(self) -> tuple[str, ...]:
        """Modules and scripts of a person's own that a trial runs: `module:Class`, `my_train.py:make_config`."""
        named = self.config or self.environment.id
        return (named,) if self.config is not None or ":" in named else ()

    @property
    def is_scored(self) -> bool:
        """Whether a return has a score: it needs `environment.floor` and `environment.reference`."""
        return self.environment.floor is not None and self.environment.reference is not None

    @property
    def floor(self) -> float:
        """Return that scores 0. A study has it that `is_scored`."""
        assert self.environment.floor is not None
        return self.environment.floor

    @property
    def target(self) -> float:
        """Return from which the environment counts as solved. A hold-up study has it."""
        assert self.environment.target is not None
        return self.environment.target

    def score(self, final_return: float) -> float:
        """Return `final_return` on the scale floor = 0, reference = 1, clipped to [0, 1.2]."""
        assert self.environment.reference is not None
        return min(max((final_return - self.floor) / (self.environment.reference - self.floor), 0.0), 1.2)

    def to_json(self) -> dict[str, Any]:
        """Return the complete spec, defaults included, as JSON values that `parse_space` reads back."""
        content = self.model_dump(mode="json")
        said = content["parameters"].items()
        return {**content, "parameters": {name: each for name, each in said if not self._as_rllib(name)}}

    def differing(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, as JSON values; sections without any are left out."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        usual = self.traits.defaults if self.script is None else {}  # a schedule of a script has no default
        said = content["parameters"].items()
        content["parameters"] = {name: value for name, value in said if name not in usual or value != usual[name]}
        return content

    def having(self, **changes: Any) -> "StudySpec":
        """Return the spec with other values, of a section those that are named; nothing is checked."""
        sections = {name: part for name in changes if isinstance(part := getattr(self, name), Section)}
        changed = {name: part.model_copy(update=changes[name]) for name, part in sections.items()}
        return self.model_copy(update=changes | changed)

    def with_seed(self, number: int) -> "StudySpec":
        """Return a hold-up study with the number that all its seeds are made of, as `holdup.seed` says."""
        assert self.holdup is not None
        return self.having(holdup={"seed": number}, evaluation={"seed": number}, search={"sampler_seed": number})

    def digest(self) -> str:
        """Return the identity of the study: that of specs which differ in nothing that a trial depends on."""
        identity = self.differing()
        identity.pop("description", None)
        identity.get("search", {}).pop("num_trials", None)  # a resume may raise it: that adds trials, and changes none
        identity = {"version": self.version} | {name: value for name, value in identity.items() if value != {}}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def as_of_now(recorded: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a recorded spec of another version in the words of this one, without the keys that this one lacks.

    Beside it stand the places of those among them that say something by which trials ran: such a study can be read and
    not resumed.
    """
    content, gone = copy.deepcopy(dict(recorded)), list[str]()
    if content.get("learner") == "lean":  # the update of `fused`, without JAX
        content["learner"] = "fused"
    environment = content.get("environment")
    if isinstance(environment, dict) and environment.pop("normalize_rewards", False):
        content["parameters"] = {**content.get("parameters", {}), "normalize_rewards": 1}
    try:
        StudySpec.model_validate(content)
    except ValidationError as error:
        for *above, name in (item["loc"] for item in error.errors() if item["type"] == "extra_forbidden"):
            section: Any = content
            for key in above:
                section = section[key]
            value = section.pop(name)
            if value and (value is True or value != 1):  # 1: each action once, one frame, one process, as now
                gone.append(".".join(map(str, [*above, name])))
    return content, gone
