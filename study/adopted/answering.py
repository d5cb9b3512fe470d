"""What a configuration that was found comes to: its facts, its bytes, and what its processes must have.

Runs in the process of the script. Imports RLlib.
"""

import hashlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import registry as gymnasium_registry
from gymnasium.vector import VectorEnv
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from study.adopted import describing
from study.adopted.interception import Interception, Launch
from study.adopted.reading import MistakeError, one_line
from study.jax_private import jax_obstacle
from study.machine.shipping import loaded_modules
from study.trial.engine.envs.probing import comes_with_gymnasium, sharing, speeds
from study.trial.experiment import make_environment, pickled

_OF_THE_STUDY = ("RAY_", "TUNE_", "PYTHONPATH")
"""How environment variables begin that the study sets by itself."""
_SEED = 0
"""Of the environment that is made to know its spaces."""


def answered(
    launch: Launch, *, ran: Interception, before: "Surroundings", file: Path, module: ModuleType
) -> tuple[dict[str, Any], bytes]:
    """Return what is known of a configuration that has no `refusals`, as JSON values, and the configuration pickled.

    Args:
        launch: The training that was found.
        ran: What the script did.
        before: What was there before it ran.
        file: The script.
        module: The script's own.

    Raises:
        MistakeError: RLlib refuses the configuration, it cannot be pickled, or its environment does not work.
    """
    config = launch.config
    _check_valid(config)
    environments = dict(ran.environments)  # what makes those that the script registered, with Tune or with Gymnasium
    if config.env not in environments and before.registers(config.env):
        environments[config.env] = OfGymnasium(gymnasium_registry[config.env])
    content = _pickled(config, environments, module)
    os.environ.update(ran.variables)  # from here on this process is as one of Ray's
    facts = describing.facts_of(
        config,
        source=file,
        found_as=launch.how,
        stop=launch.stop,
        searched=launch.searched,
        modules={name: _digest(name) for name in before.own_modules()},
        **_of_environment(config, environments),
    )
    known = {
        **before.added(ran),
        "facts": facts.model_dump(mode="json"),
        "starts_ray": ran.starts_ray,
        "jax_obstacle": jax_obstacle() or "",  # the environment has been made
        "speeds": None if config.is_multi_agent else _speeds(config, environments),
    }
    return known, content


def _check_valid(config: AlgorithmConfig) -> None:
    """Refuse what RLlib would refuse, but for the learners, which a study sets."""
    tried = config.copy(copy_frozen=False)
    tried.num_learners = tried.num_gpus_per_learner = tried.num_gpus = 0
    try:
        tried.validate()
    except Exception as error:  # RLlib's checks, and those of a script's own configuration
        rule, fix = "RLlib must accept the configuration", "Run the script by itself until it trains."
        raise MistakeError(rule=rule, got=error, fix=fix) from error


def _pickled(config: AlgorithmConfig, environments: Mapping[str, Any], module: ModuleType) -> bytes:
    by_value = None if module.__name__ == "__main__" else module
    try:
        return pickled(config, environments=environments, by_value=by_value)
    except Exception as error:
        rule = "everything in the configuration must be picklable, as Ray sends it to its processes"
        fix = "Make it inside the function that uses it, or define it at module level."
        got = next(_unpicklable(config, environments), error)
        raise MistakeError(rule=rule, got=got, fix=fix) from error


def _unpicklable(config: AlgorithmConfig, environments: Mapping[str, Any]) -> Iterator[str]:
    """Yield which parts of a configuration cannot be pickled and why, in words."""
    settings = {f"setting '{name.strip('_')}'": value for name, value in vars(config).items()}
    for place, value in {**{f"environment '{name}'": each for name, each in environments.items()}, **settings}.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # noqa: BLE001 (pickling runs code of any kind)
            yield f"{place}: {one_line(error)}"


# --- its environment -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfGymnasium:
    """Makes an environment that the script registered with Gymnasium, wherever it is unpickled."""

    spec: Any

    def __call__(self, context: Mapping[str, Any]) -> Any:
        """Return a new environment with the arguments in `env_config`."""
        return gymnasium.make(self.spec, **dict(context))


def _of_environment(config: AlgorithmConfig, environments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spaces of the environment, or the agents of one for several; it is made as RLlib makes it."""
    name = describing.environment_name(config.env)
    try:
        made = make_environment(config, environments)
        made.reset(seed=_SEED)
    except ImportError as error:
        fix = "Install it here and on every node."
        rule = f"the environment '{name}' must find the modules that it imports"
        raise MistakeError(rule=rule, got=error, fix=fix) from error
    except (Exception, SystemExit) as error:
        rule, got = f"the environment '{name}' must be made and reset", f"{type(error).__name__}: {error}"
        fix = "Make and reset it in Python by itself, with the same env_config."
        raise MistakeError(rule=rule, got=got, fix=fix) from error
    plain = getattr(made, "unwrapped", made)
    if isinstance(plain, MultiAgentEnv):
        if not config.is_multi_agent:
            rule = "an environment for several agents needs policies"
            fix = "Call `.multi_agent(policies=…, policy_mapping_fn=…)` in the script."
            raise MistakeError(rule=rule, got=f"'{name}' and none", fix=fix)
        return {"acting": plain.possible_agents or (), "sharing": "unknown"}
    of_one = "single_" if isinstance(made, VectorEnv) else ""
    spaces = tuple(getattr(made, f"{of_one}{each}_space", None) for each in ("observation", "action"))
    if any(each is None for each in spaces):
        rule = f"the environment '{name}' must have both spaces once it is made"
        fix = "Set `observation_space` and `action_space` in its constructor."
        raise MistakeError(rule=rule, got=str(list(spaces)), fix=fix)
    if of_one or comes_with_gymnasium(name):
        return {"spaces": spaces}
    made.close()
    return {"spaces": spaces, "sharing": sharing(lambda: make_environment(config, environments), apart=False)}


def _speeds(config: AlgorithmConfig, environments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how fast the environment is; None where it fails, or is for several agents."""
    try:
        return asdict(speeds(lambda: make_environment(config, environments)))
    except Exception:  # noqa: BLE001 (whatever an environment raises; a trial will report it)
        return None


# --- what a script adds to its process beside the configuration ------------------------------------------------------


class Surroundings:
    """What was there before a script ran, to tell what it has added."""

    def __init__(self, file: Path) -> None:
        """Note what is there; to be made before the script runs."""
        self._began_in = str(Path.cwd())
        self._folder = str(file.parent)
        self._variables = dict(os.environ)
        self._paths = {*sys.path, *_entries(self._variables)} - {self._folder}
        self._modules = {name.partition(".")[0] for name in sys.modules}
        self._environments = set(gymnasium_registry)

    def check_left_alone(self, launch: Launch, ran: Interception, module: ModuleType) -> None:
        """Refuse a script that trains in another folder, or has replaced a part of RLlib in place.

        Raises:
            MistakeError: It does; the processes of a trial have both anew.
        """
        for folder in filter(None, [launch.folder, ran.folder]):
            if folder != self._began_in:
                rule = "must train in the folder in which the command is typed: trials and evaluations run there"
                raise MistakeError(rule=rule, got=folder, fix=f"Type the command in {folder}.")
        if (replaced := _replaced_in_rllib({"__main__", module.__name__, *self.own_modules()})) is not None:
            rule = "must leave RLlib's own classes as they are: the processes of a trial import them anew"
            fix = "Derive a class of your own, and give it to the configuration."
            raise MistakeError(rule=rule, got=f"{replaced} of the script's own", fix=fix)

    def own_modules(self) -> list[str]:
        """Return the user's own modules; what RLlib has imported before is none, wherever it is installed."""
        return [each.name for each in loaded_modules() if each.name not in self._modules]

    def registers(self, name: Any) -> bool:
        """Return whether the script has registered an environment of that name with Gymnasium."""
        return isinstance(name, str) and name in gymnasium_registry and name not in self._environments

    def added(self, ran: Interception) -> dict[str, Any]:
        """Return the folders, modules and variables that the script has added, as JSON values of `Adopted`."""
        given = {**os.environ, **ran.variables}
        found = [str(Path(each).resolve()) for each in [*sys.path, *_entries(given)] if each not in self._paths]
        paths = list(dict.fromkeys([*found, self._folder]))
        beside = {Path(path).resolve() for path in paths}
        modules = [each for each in loaded_modules() if each.paths[0].parent in beside or each.obstacle is None]
        changed = {name for name in {*given, *self._variables} if given.get(name) != self._variables.get(name)}
        return {
            "paths": paths,
            "modules": [(each.name, list(map(str, each.paths))) for each in modules],
            "folder": ran.folder,
            "variables": {name: given.get(name) for name in sorted(changed) if not name.startswith(_OF_THE_STUDY)},
        }


def _entries(variables: Mapping[str, str]) -> list[str]:
    """Return the folders of `PYTHONPATH`."""
    return [each for each in variables.get("PYTHONPATH", "").split(os.pathsep) if each]


def _replaced_in_rllib(own: set[str]) -> str | None:
    """Return the name of a part of RLlib that now comes from a top-level module of the script; None of none."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith("ray.rllib."):
            classes = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == name]
            places: list[Any] = [module, *classes]
            for place in places:
                for attribute, value in list(vars(place).items()):
                    if str(getattr(value, "__module__", "")).partition(".")[0] in own:
                        return f"{place.__name__}.{attribute}"
    return None


def _digest(name: str) -> str:
    """Return the SHA-256 of the files of a module, and of those of its package, that this process has imported."""
    total = hashlib.sha256()
    for each, module in sorted(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        if each.partition(".")[0] == name and file.is_file():
            total.update(f"{each} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()
