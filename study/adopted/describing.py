"""What is known of a script's `AlgorithmConfig`: its facts, and what its processes must have. Imports RLlib.

Its settings are what differs from the default configuration of RLlib's algorithm that the script uses.
"""

import functools
import hashlib
import inspect
import math
import numbers
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gymnasium.envs.registration import registry as gymnasium_registry
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.registry import ALGORITHMS_CLASS_TO_NAME
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.tune.registry import get_trainable_cls

from study.errors import SpaceError
from study.machine.shipping import loaded_modules
from study.ray_private import maker_of, option
from study.space.parameters import FRAGMENT, PARAMETERS, attribute
from study.space.spec import ScriptFacts, ScriptSource
from study.trial.configuration import SET_BY_STUDY, learner_obstacle, runner_obstacle
from study.trial.engine.envs.probing import Sharing, comes_with_gymnasium, sharing
from study.trial.experiment import make_environment, of_gymnasium

_NOT_STUDIED = ("BC", "CQL", "IQL", "MARWIL", "DreamerV3")
"""RLlib's algorithms that learn from recorded data alone, or that its environment runner cannot evaluate."""
_RLLIB = "ray.rllib.algorithms."
"""Where RLlib's own algorithms, configurations and learners are."""
_LEFT_OUT = (SET_BY_STUDY | {"_is_frozen", "env"}) - {
    *("_learner_class", "env_runner_cls", "restart_failed_sub_environments"),
}
"""Options that are no settings of a script: those that a study sets always, but for what a person should read of."""
_OF_LOGS = ("logger_", "output")
"""How options begin that say where logs and episodes go: a time of day in them changes no training."""
_LONGEST = 200
"""Characters of a setting that the facts hold; of a longer one they hold a digest."""
_OF_THE_STUDY = ("RAY_", "TUNE_", "PYTHONPATH")
"""How environment variables begin that the study sets by itself."""


def mistake(rule: str, got: object, fix: str, *, where: str = "") -> SpaceError:
    """Return the error of one fault of a script."""
    return SpaceError.of("script", where=where, rule=rule, got=got, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A configuration that a script would train with, as it is at that line."""

    config: AlgorithmConfig
    how: str
    """The call by which it would train: `tune.Tuner`."""
    stop: Mapping[str, Any] = field(default_factory=dict)
    """Stop criteria, by RLlib's names of results."""
    searched: tuple[str, ...] = ()
    """Settings that Tune would choose; the configuration has one value of each."""


def check_studied(config: AlgorithmConfig) -> None:
    """Raise a `SpaceError` for a configuration that cannot be studied."""
    _, base = _algorithm(config)
    known = MultiAgentEnvRunner if config.is_multi_agent else SingleAgentEnvRunner
    runner = config.env_runner_cls
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        rule, fix = "must use RLlib's new API stack", "Remove the call of api_stack, as RLlib's migration guide says."
        raise mistake(rule, "the old one", fix)
    if base in _NOT_STUDIED or config.is_offline:
        rule = "must sample from an environment, and be evaluated, by RLlib's environment runners"
        got = f"{base}{' on recorded data' if config.is_offline else ''}"
        raise mistake(rule, got, "Give a script that trains online, such as with PPO or SAC.")
    if config.env is None:
        raise mistake("must name its environment", "none", "Call `.environment(...)` in the script.")
    if str(config.gym_env_vectorize_mode) == "vector_entry_point":
        rule = "must make environments one by one, so that each evaluation episode can be counted"
        fix = "Give what makes one environment, and let RLlib make the vector."
        raise mistake(rule, "one that is a vector by itself (gym_env_vectorize_mode)", fix)
    if runner is not None and not (inspect.isclass(runner) and issubclass(runner, known)):
        rule = f"must sample with a runner derived from RLlib's {known.__name__}: another cannot be measured"
        fix = f"Derive it from {known.__name__}, or remove env_runner_cls."
        raise mistake(rule, getattr(runner, "__name__", runner), fix)


def of_environment(config: AlgorithmConfig, environments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `facts_of` takes of the environment, which is made as RLlib makes it."""
    name = environment_name(config.env)
    try:
        made = make_environment(config, environments)
        made.reset(seed=0)
    except (Exception, SystemExit) as error:
        rule, fix = f"the environment '{name}' must be made and reset", "Make and reset it by itself, so configured."
        fix = "Install it here and on every node." if isinstance(error, ImportError) else fix
        raise mistake(rule, f"{type(error).__name__}: {error}", fix) from error
    if isinstance(getattr(made, "unwrapped", made), MultiAgentEnv):
        if not config.is_multi_agent:
            fix = "Call `.multi_agent(policies=…, policy_mapping_fn=…)` in the script."
            raise mistake("an environment for several agents needs policies", f"'{name}' and none", fix)
        return {"sharing": "unknown"}
    spaces = (getattr(made, "observation_space", None), getattr(made, "action_space", None))
    if comes_with_gymnasium(name):
        return {"spaces": spaces}
    made.close()
    return {"spaces": spaces, "sharing": sharing(lambda: make_environment(config, environments), apart=False)}


class Surroundings:
    """What was there before a script ran, to tell what it has added."""

    def __init__(self, file: Path) -> None:
        """Note what is there; to be made before the script runs."""
        self._folder, self._variables = str(file.parent), dict(os.environ)
        self._paths = {*sys.path, *_entries(self._variables)} - {self._folder}
        self._modules = {name.partition(".")[0] for name in sys.modules}

    def digests(self) -> dict[str, str]:
        """Return module of the user's own that the script has imported -> SHA-256 of its files that were imported."""
        totals = {each.name: hashlib.sha256() for each in loaded_modules() if each.name not in self._modules}
        for name, module in sorted(sys.modules.items()):
            file, total = Path(getattr(module, "__file__", None) or ""), totals.get(name.partition(".")[0])
            if total is not None and file.is_file():
                total.update(f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
        return {name: total.hexdigest() for name, total in totals.items()}

    def environments_of(self, config: AlgorithmConfig) -> dict[str, Any]:
        """Return what makes the environments of a configuration that the script has registered, by their names."""
        judged = config.evaluation_config
        other = judged.get("env") if isinstance(judged, Mapping) else getattr(judged, "env", None)
        names = [name for name in (config.env, other) if isinstance(name, str)]
        own = [name for name in names if name in gymnasium_registry and not comes_with_gymnasium(name)]
        found = {name: functools.partial(of_gymnasium, gymnasium_registry[name]) for name in own}
        return found | {name: maker for name in names if (maker := maker_of(name)) is not None}

    def added(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Return the folders, modules and variables that the script has added: attributes of `Adopted`."""
        given = {**os.environ, **variables}
        found = [str(Path(each).resolve()) for each in [*sys.path, *_entries(given)] if each not in self._paths]
        paths = tuple(dict.fromkeys([*found, self._folder]))
        beside = {Path(path).resolve() for path in paths}
        modules = tuple(each for each in loaded_modules() if each.path.parent in beside or each.travels)
        changed = (name for name, value in sorted(given.items()) if self._variables.get(name) != value)
        own = {name: given[name] for name in changed if not name.startswith(_OF_THE_STUDY)}
        return {"paths": paths, "modules": modules, "variables": own}


def _entries(variables: Mapping[str, str]) -> list[str]:
    """Return the folders of `PYTHONPATH`."""
    return [each for each in variables.get("PYTHONPATH", "").split(os.pathsep) if each]


# --- facts -----------------------------------------------------------------------------------------------------------


def facts_of(
    launch: Launch,
    *,
    source: Path,
    modules: Mapping[str, str] = MappingProxyType({}),
    spaces: tuple[Any, Any] | None = None,
    sharing: Sharing = "harmless",
) -> ScriptFacts:
    """Return what is known of a configuration that can be studied: the same whenever the script is read.

    Args:
        launch: The configuration, and how it was found.
        source: The script's file.
        modules: Module of the user's own that the script imports -> digest of its files.
        spaces: Of observations and of actions; None where there are several agents, or nobody knows.
        sharing: What several of its environments in one process do to one another.
    """
    config, known = launch.config, launch.config.copy(copy_frozen=False)
    if spaces is not None and config.observation_space is None and config.action_space is None:
        known.environment(observation_space=spaces[0], action_space=spaces[1])
    algorithm, base = _algorithm(config)
    values, schedules = _values(config)
    overridden = [name for name in PARAMETERS if _is_overridden(config, name)]
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    return ScriptFacts(
        source=ScriptSource(file=source.name, sha256=digest, modules=dict(modules)),
        found_as=launch.how,
        algorithm=algorithm.__name__,
        base_algorithm=base,
        environment=environment_name(config.env),
        agents=sorted(map(str, config.policies)) if config.is_multi_agent else [],
        sharing=sharing,
        values={name: value for name, value in values.items() if name not in overridden},
        schedules=[name for name in schedules if name not in overridden],
        overridden=overridden,
        searched=sorted(launch.searched),
        num_learners=max(config.num_learners or 0, 1),
        settings=_settings(config, {attribute(name) for name in values}),
        stop={str(name): float(value) for name, value in launch.stop.items() if isinstance(value, numbers.Real)},
        runner_obstacle=_obstacle(runner_obstacle, known),
        learner_obstacle=_obstacle(learner_obstacle, known),
    )


def environment_name(environment: Any) -> str:
    """Return the name of an environment, or of what makes it, as a person writes it."""
    return environment if isinstance(environment, str) else getattr(environment, "__name__", type(environment).__name__)


def _algorithm(config: AlgorithmConfig) -> tuple[type, str]:
    """Return the algorithm's class, and RLlib's name of the nearest class that RLlib ships."""
    algorithm = config.algo_class or Algorithm
    if isinstance(algorithm, str):
        algorithm = get_trainable_cls(algorithm)
    bases = [each for each in algorithm.__mro__ if each.__module__.startswith(_RLLIB)]
    known = (ALGORITHMS_CLASS_TO_NAME.get(each.__name__) for each in bases)
    return algorithm, next((name for name in known if name), "Algorithm")


def _values(config: AlgorithmConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the script's values of our parameters, and the parameters that follow a schedule."""
    values: dict[str, Any] = {"train_batch_size": config.total_train_batch_size}
    schedules = []
    for name in PARAMETERS:
        if name in values or name == FRAGMENT or not hasattr(config, attribute(name)):
            continue
        value = getattr(config, attribute(name))
        if isinstance(value, (list, tuple)):
            schedules.append(name)
        elif value is None or (isinstance(value, numbers.Real) and not isinstance(value, bool)):
            values[name] = None if value is None or not math.isfinite(value) else value
    if config.minibatch_size is not None:
        values["minibatch_size"] = config.minibatch_size * max(config.num_learners or 0, 1)
    if config.rollout_fragment_length != "auto":
        values[FRAGMENT] = config.rollout_fragment_length
    if not getattr(config, "use_kl_loss", True):
        values["kl_coeff"] = 0.0
    if option(config, "torch_lr_scheduler_classes"):
        schedules.append("lr")
        values.pop("lr", None)
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in values.items()}  # of NumPy
    return plain, schedules


def _is_overridden(config: AlgorithmConfig, name: str) -> bool:
    """Return whether every module that learns has a value of its own."""
    overrides, learning = config.algorithm_config_overrides_per_module, config.policies_to_train
    modules = [each for each in config.policies if not isinstance(learning, Collection) or each in learning]
    return bool(modules) and all(attribute(name) in overrides.get(module, {}) for module in modules)


def _settings(config: AlgorithmConfig, known: Collection[str]) -> dict[str, str]:
    kind, found = type(config), {}
    default = vars(kind() if kind.__module__.startswith(_RLLIB) else AlgorithmConfig())
    for name, value in sorted(vars(config).items()):
        text = _text(value)
        if not (name in known or name in _LEFT_OUT or name.startswith(_OF_LOGS) or text == _text(default.get(name))):
            short = len(text) <= _LONGEST
            found[name.strip("_")] = text if short else f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return found


def _text(value: Any) -> str:
    """Return a value as text that is the same at every reading."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{name}: {_text(inner)}' for name, inner in value.items()))}}}"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    return re.sub(" at 0x[0-9a-f]+", "", str(value))


def _obstacle(check: Callable[[AlgorithmConfig], str | None], config: AlgorithmConfig) -> str:
    """Return what keeps our own runner or learner from serving a configuration; where that is not known, so much."""
    try:
        return check(config) or ""
    except Exception as error:  # noqa: BLE001 (a configuration of any kind: RLlib's own part takes over)
        return f"its configuration cannot be examined ({type(error).__name__})"
