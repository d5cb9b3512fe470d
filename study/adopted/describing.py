"""What an `AlgorithmConfig` says, as `ScriptFacts`: parameters, settings, refusals. Imports RLlib.

Its settings are what differs from the default configuration of RLlib's algorithm that the script uses.
"""

import dataclasses
import hashlib
import inspect
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.registry import ALGORITHMS_CLASS_TO_NAME
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from study.errors import Fault
from study.ray_private import option
from study.space.parameters import FRAGMENT, PARAMETERS, SCALE, attribute
from study.space.script import ScriptFacts, ScriptSource
from study.trial.engine.envs.probing import Sharing
from study.trial.experiment import SET_BY_STUDY
from study.trial.parts import learner_obstacle, runner_obstacle, space_text

OFFLINE = ("BC", "CQL", "IQL", "MARWIL")
"""RLlib's algorithms that learn from recorded data alone."""
_RLLIB = "ray.rllib.algorithms."
"""Where RLlib's own algorithms, configurations and learners are."""
_OF_CODE = ("_learner_class", "env_runner_cls")
"""Options that a study sets always, and that name code of the script's own where they are not RLlib's."""
_OF_LOGS = ("logger_", "output")
"""How options begin that say where logs and episodes go: a time of day in them changes no training."""
_LONGEST = 200
"""Characters of a setting that the facts hold as it is; of a longer one they hold a digest."""


def facts_of(
    config: AlgorithmConfig,
    *,
    source: Path,
    found_as: str,
    stop: Mapping[str, Any],
    searched: Iterable[str] = (),
    modules: Mapping[str, str] = MappingProxyType({}),
    spaces: tuple[Any, Any] = (None, None),
    acting: Iterable[Any] = (),
    sharing: Sharing = "harmless",
) -> ScriptFacts:
    """Return what is known of a configuration that has no `refusals`: the same whenever the script is read.

    Args:
        config: As the script made it.
        source: The script's file.
        found_as: How the configuration was found, for people.
        stop: The script's stop criteria.
        searched: Settings for which the script lets Tune choose.
        modules: Module of the user's own that the script imports -> digest of its files.
        spaces: Those of observations and of actions; None where there are several agents, or nobody knows.
        acting: The agents of an environment for several.
        sharing: What several of its environments in one process do to one another.
    """
    algorithm, base = _algorithm(config)
    overridden = [name for name in PARAMETERS if _is_overridden(config, name)]
    values, schedules = _values(config)
    return ScriptFacts(
        source=ScriptSource(
            file=source.name, sha256=hashlib.sha256(source.read_bytes()).hexdigest(), modules=dict(modules)
        ),
        found_as=found_as,
        algorithm=algorithm.__name__,
        base_algorithm=base,
        environment=environment_name(config.env),
        observation_space=space_text(spaces[0]),
        action_space=space_text(spaces[1]),
        agents=sorted(map(str, config.policies)) if config.is_multi_agent else [],
        acting=sorted(map(str, acting)),
        sharing=sharing,
        values={name: value for name, value in values.items() if name not in overridden},
        schedules=[name for name in schedules if name not in overridden],
        overridden=overridden,
        searched=sorted(searched),
        num_learners=max(config.num_learners or 0, 1),
        settings=_settings(config, {attribute(name) for name in values}),
        stop={str(name): plain(value) for name, value in stop.items()},
        runner_obstacle=_obstacle(runner_obstacle, config, spaces),
        learner_obstacle=_obstacle(learner_obstacle, config, spaces),
    )


def environment_name(environment: Any) -> str:
    """Return the name of an environment as a person writes it."""
    if environment is None or isinstance(environment, str):
        return environment or ""
    return str(getattr(environment, "__name__", type(environment).__name__))


def _algorithm(config: AlgorithmConfig) -> tuple[type, str]:
    """Return the algorithm's class, and RLlib's name of the nearest class that RLlib ships."""
    algorithm = config.algo_class or Algorithm
    if isinstance(algorithm, str):
        from ray.tune.registry import get_trainable_cls

        algorithm = get_trainable_cls(algorithm)
    bases = [each for each in algorithm.__mro__ if each.__module__.startswith("ray.rllib.algorithms.")]
    known = (ALGORITHMS_CLASS_TO_NAME.get(each.__name__) for each in bases)
    return algorithm, next((name for name in known if name), "Algorithm")


def refusals(config: AlgorithmConfig) -> Iterator[Fault]:
    """Yield why a configuration cannot be studied; the place of each fault is the configuration."""
    _, base = _algorithm(config)
    offline = base in OFFLINE or config.is_offline
    known = MultiAgentEnvRunner if config.is_multi_agent else SingleAgentEnvRunner
    runner = config.env_runner_cls
    checks = (
        (
            config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2,
            "must use RLlib's new API stack (RLModule, EnvRunner and ConnectorV2)",
            "the old one",
            "Remove the call of api_stack; RLlib's migration guide says what else changes.",
        ),
        (
            config.framework_str == "torch",
            "must use torch, the one framework of the new API stack",
            config.framework_str,
            "Remove the call of `framework`, or set torch.",
        ),
        (
            not offline,
            "must sample from an environment: this study asks how training scales with environment runners",
            f"{base}, which learns from recorded data",
            "Give a script that trains online, such as with PPO or SAC.",
        ),
        (
            base != "DreamerV3",
            "must be an algorithm whose evaluation RLlib's environment runner can do",
            base,
            "Give a script with another algorithm.",
        ),
        (
            offline or config.env is not None,
            "must name its environment",
            "none",
            "Call `.environment(...)` in the script; a runner that gets its episodes from outside cannot be studied.",
        ),
        (
            str(config.gym_env_vectorize_mode) != "vector_entry_point",
            "must make environments one by one, so that each evaluation episode can be counted",
            "one that is a vector by itself (gym_env_vectorize_mode)",
            "Give what makes one environment, and let RLlib make the vector.",
        ),
        (
            offline or runner is None or (inspect.isclass(runner) and issubclass(runner, known)),
            f"must sample with a runner derived from RLlib's {known.__name__}: another cannot be measured",
            _name(runner),
            f"Derive it from {known.__name__}, or remove env_runner_cls.",
        ),
    )
    for holds, rule, got, fix in checks:
        if not holds:
            yield Fault(where="", rule=rule, got=str(got), fix=fix)


def _values(config: AlgorithmConfig) -> tuple[dict[str, Any], list[str]]:
    """Return the script's values of our parameters, and the parameters that follow a schedule."""
    learners = max(config.num_learners or 0, 1)
    values: dict[str, Any] = {
        SCALE: config.num_env_runners,
        "num_envs_per_env_runner": config.num_envs_per_env_runner,
        "train_batch_size": config.total_train_batch_size,
    }
    schedules = []
    for name in PARAMETERS:
        if name in values or name == FRAGMENT or not hasattr(config, attribute(name)):
            continue
        value = plain(getattr(config, attribute(name)))
        if isinstance(value, list):
            schedules.append(name)
        elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            values[name] = value if value is None or math.isfinite(value) else None
    if config.minibatch_size is not None:
        values["minibatch_size"] = config.minibatch_size * learners
    if config.rollout_fragment_length != "auto":
        values[FRAGMENT] = config.rollout_fragment_length
    if not getattr(config, "use_kl_loss", True):
        values["kl_coeff"] = 0.0
    if option(config, "torch_lr_scheduler_classes"):
        schedules.append("lr")
        values.pop("lr", None)
    return plain(values), schedules


def _is_overridden(config: AlgorithmConfig, name: str) -> bool:
    """Return whether every module that learns has a value of its own."""
    overrides, learning = config.algorithm_config_overrides_per_module, config.policies_to_train
    modules = [each for each in config.policies if not isinstance(learning, Collection) or each in learning]
    return bool(modules) and all(attribute(name) in overrides.get(module, {}) for module in modules)


def _settings(config: AlgorithmConfig, known: Collection[str]) -> dict[str, Any]:
    """Return the other options that differ from RLlib's: name -> value as JSON, or the digest of a long one."""
    default, found = vars(_default(config)), {}
    for name, value in sorted(vars(config).items()):
        shown = plain(value)
        is_set = name in SET_BY_STUDY and name not in _OF_CODE
        if is_set or name in known or name in ("_is_frozen", "env") or name.startswith(_OF_LOGS):
            continue
        if shown == plain(default.get(name)):
            continue
        text = json.dumps(shown, sort_keys=True)
        if len(text) > _LONGEST or "NaN" in text or "Infinity" in text:  # these two are no JSON
            shown = f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        found[name.strip("_")] = shown
    return found


def _default(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return a configuration of the same kind, as RLlib makes it."""
    return type(config)() if type(config).__module__.startswith(_RLLIB) else AlgorithmConfig()


def _obstacle(check: Any, config: AlgorithmConfig, spaces: tuple[Any, Any]) -> str:
    """Return what keeps our own runner or learner from serving a configuration; where that is not known, so much."""
    try:
        known = config.copy(copy_frozen=False)
        if config.observation_space is None and config.action_space is None and spaces[0] is not None:
            known.environment(observation_space=spaces[0], action_space=spaces[1])
        return check(known) or ""
    except Exception as error:  # noqa: BLE001 (a configuration of any kind: RLlib's own part takes over)
        return f"its configuration cannot be examined ({type(error).__name__})"


def _name(thing: Any) -> str:
    """Return the name of a class, a function or what wraps one."""
    inner = getattr(thing, "func", thing)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return str(name).replace(".<locals>", "").replace("<lambda>", "lambda")


def plain(value: Any) -> Any:
    """Return a value as JSON has it; what has no JSON by its name, which is the same at every reading."""
    if isinstance(value, np.generic):
        value = value.item()  # perhaps none of JSON's either: a date
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, map(plain, value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: plain(each.default) for each in dataclasses.fields(value)}
        known = {name: plain(getattr(value, name, None)) for name in fields}
        return {name: shown for name, shown in known.items() if shown != fields[name]}  # what differs from its class
    return _name(value)
