"""What a configuration that was found comes to: its facts, its bytes, its environment, a random policy's returns.

Runs in the process of the script. Imports RLlib.
"""

import contextlib
import inspect
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gymnasium.vector import VectorEnv
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.util.check_serialize import inspect_serializability

from study.adopted import describing
from study.adopted.facts import MistakeError, Request, one_line
from study.adopted.from_tune import choices_of
from study.adopted.interception import Interception, Launch
from study.adopted.surroundings import Surroundings
from study.jax_private import jax_obstacle
from study.trial.script_config import pickled
from study.trial.script_environment import make_environment, play_randomly

_OF_A_LEARNER = ("train_batch_size_per_learner", "minibatch_size")
"""Sizes that RLlib takes for one learner."""
_SEED, _LONGEST_EPISODE = 0, 10_000
"""Of a random policy's first episode; steps after which one is cut."""


def answered(
    launch: Launch, *, request: Request, ran: Interception, surroundings: Surroundings, module: ModuleType
) -> tuple[dict[str, Any], bytes]:
    """Return what is known of a configuration that has no `refusals`, as JSON values, and the configuration pickled.

    Args:
        launch: The training that was found.
        request: What was asked.
        ran: What the script did.
        surroundings: What was there before it ran.
        module: The script's own.

    Raises:
        MistakeError: RLlib refuses the configuration, it cannot be pickled, or its environment does not work.
    """
    config = launch.config
    if not launch.searched and (why := _invalid(config)):
        rule, fix = "RLlib must accept the configuration", "Run the script by itself until it trains."
        raise MistakeError(rule=rule, got=why, fix=fix)
    environments = dict(ran.environments)  # what makes those that the script registered, with Tune or with Gymnasium
    if config.env not in environments and (entry := surroundings.registered(config.env)) is not None:
        environments[config.env] = OfGymnasium(entry)
    content = _pickled(config, environments, module)
    os.environ.update(ran.variables)  # from here on this process is as one of Ray's
    environment, several = _environment(config, environments)
    of_one = "single_" if isinstance(environment, VectorEnv) else ""
    spaces = [getattr(environment, f"{of_one}{each}_space", None) for each in ("observation", "action")]
    if not several and any(each is None for each in spaces):
        rule = f"the environment '{describing.environment_name(config.env)}' must have both spaces once it is made"
        fix = "Set `observation_space` and `action_space` in its constructor."
        raise MistakeError(rule=rule, got=str(spaces), fix=fix)
    facts = describing.facts_of(
        config,
        source=Path(request.target if request.target.endswith(".py") else str(inspect.getsourcefile(module))),
        found_as=launch.how,
        stop=launch.stop,
        searched=launch.searched,
        modules=surroundings.digests(),
        spaces=(None, None) if several else (spaces[0], spaces[1]),
        acting=environment.unwrapped.possible_agents or () if several else (),
    )
    played = {"returns": _played(config, environments, environment, request)} if request.episodes else {}
    known = {
        **played,
        **surroundings.added(ran),
        "facts": facts.model_dump(mode="json"),
        "searched": {
            describing.OF_TUNE.get(name, name): choices_of(domain, facts.num_learners if name in _OF_A_LEARNER else 1)
            for name, domain in launch.searched.items()
        },
        "starts_ray": ran.starts_ray,
        "jax_obstacle": jax_obstacle() or "",  # the environment has been made
    }
    return known, content


def _pickled(config: AlgorithmConfig, environments: Mapping[str, Any], module: ModuleType) -> bytes:
    try:
        return pickled(config, environments=environments, by_value=None if module.__name__ == "__main__" else module)
    except Exception as error:
        raise MistakeError(
            rule="everything in the configuration must be picklable, as Ray sends it to its processes",
            got=_unpicklable(config, environments) or error,
            fix="Make it inside the function that uses it, or define it at module level.",
        ) from error


def _played(
    config: AlgorithmConfig, environments: Mapping[str, Any], environment: Any, request: Request
) -> dict[str, Any]:
    """Return the episodes of a random policy; why there are none where the environment takes no random action.

    They are played where a study evaluates: the script may have another environment for that.
    """
    playing = config.get_evaluation_config_object() or config
    try:
        if (playing.env, playing.env_config) != (config.env, config.env_config):
            environment.close()
            environment = make_environment(playing, environments)
        return play_randomly(
            environment,
            episodes=request.episodes,
            seed=_SEED,
            most_s=request.play_s,
            max_episode_steps=_LONGEST_EPISODE,
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the environment's own: there is no floor then)
        return {"returns": [], "num_cut": 0, "problem": one_line(f"{type(error).__name__}: {error}")[:120]}


def _environment(config: AlgorithmConfig, environments: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the environment, made as RLlib makes it, and whether it is for several agents."""
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
    several = isinstance(getattr(made, "unwrapped", made), MultiAgentEnv)
    if several and not config.is_multi_agent:
        rule = "an environment for several agents needs policies"
        fix = "Call `.multi_agent(policies=…, policy_mapping_fn=…)` in the script."
        raise MistakeError(rule=rule, got=f"'{name}' and none", fix=fix)
    return made, several


@dataclass(frozen=True, slots=True)
class OfGymnasium:
    """Makes an environment that the script registered with Gymnasium, wherever it is unpickled."""

    spec: Any

    def __call__(self, context: Mapping[str, Any]) -> Any:
        """Return a new environment with the arguments in `env_config`."""
        import gymnasium

        return gymnasium.make(self.spec, **dict(context))


def _invalid(config: AlgorithmConfig) -> str:
    """Return why RLlib would refuse a configuration, but for its learners, which a study sets; empty: it would not."""
    tried = config.copy(copy_frozen=False)
    tried.num_learners = tried.num_gpus_per_learner = tried.num_gpus = 0
    try:
        tried.validate()
    except Exception as error:  # noqa: BLE001 (RLlib's checks, and those of a script's own configuration)
        return one_line(error)
    return ""


def _unpicklable(config: AlgorithmConfig, environments: Mapping[str, Any]) -> str | None:
    """Return which part of a configuration cannot be pickled and why, in words; None where each can."""
    parts = {f"environment '{name}'": creator for name, creator in environments.items()}
    for name, value in vars(config).items():
        setting = f"setting '{name.strip('_')}'"
        held = value.items() if isinstance(value, Mapping) else ()
        parts |= {f"{setting}, [{key!r}]": inner for key, inner in held} | {setting: value}
    for place, value in parts.items():
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # noqa: BLE001 (pickling runs code of any kind)
            path: tuple[str, ...] = (place,)
            with contextlib.suppress(Exception):  # it looks at every attribute, also at computed ones
                _, failures = inspect_serializability(value, name=place, depth=4, print_file=io.StringIO())
                path = max((each.path for each in failures), key=len)
            return f"{', '.join(path)}: {one_line(error)}"
    return None
