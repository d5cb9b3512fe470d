"""What a study trains: RLlib's configuration as a space or a person's script makes it. Imports RLlib.

A space makes the configuration from its environment, algorithm and network, a script brings it along as bytes. What a
trial sets in it, and on which parts it runs, is the same for both: see `study.trial.configuration`.
"""

import dataclasses
import hashlib
import importlib
import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import register_env

from study.errors import SpaceError, TrialError
from study.ray_private import maker_of
from study.space.sections import NetworkSpec
from study.space.spec import StudySpec
from study.trial.engine.envs.environments import EnvFactory
from study.trial.engine.envs.probing import Spaces, probe, why_not_here
from study.trial.failures import described
from study.trial.measure import Place


def configuration_of(
    spec: StudySpec, *, script: bytes | None = None, spaces: Spaces | None = None, waits: bool = False
) -> AlgorithmConfig:
    """Return what a space trains, or the script that it names and that `pickled` returned, without what a trial sets.

    Without `spaces` the environment of a space is tried here; `waits`: whether its steps take as long as the space says
    (`step_wait_ms`).

    Raises:
        TrialError: The environment does not work here, or the script's configuration cannot be read here.
    """
    if (facts := spec.script) is not None:
        assert script is not None
        try:
            parts = cloudpickle.loads(script)
        except Exception as error:
            fix = "Install what it imports on every node, or put it beside the script."
            what = f"the configuration of {facts.source.file} must be readable"
            raise _not_here(what, described(error), fix) from error
        for name, maker in parts["environments"].items():
            register_env(name, maker)
        config: AlgorithmConfig = parts["config"]
        return config
    if spaces is None:  # the driver has tried it on its own machine
        try:
            spaces = probe(spec.environment, "space")
        except SpaceError as error:
            reason, fix = why_not_here(error, spec.environment.id)
            raise _not_here("the environment must work", reason.rstrip("."), fix) from error
    return _of_space(spec, spaces, waits=waits)


# --- a script ------------------------------------------------------------------------------------------------------


def pickled(config: AlgorithmConfig, environments: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Return a script's configuration as bytes; what cloudpickle raises passes through.

    `environments`: name -> function of an `EnvContext`, of every environment that the script has registered: the
    registry is that of one cluster.
    """
    content: bytes = cloudpickle.dumps({"config": config, "environments": dict(environments)})
    return content


def _not_here(what: str, got: str, fix: str) -> TrialError:
    place = Place(process="main", num_cpus=0)
    got = f"main process on {place.node} ({place.host}): {got}"
    return TrialError(where="start-up", rule=f"{what} on every node", got=got, fix=fix)


def make_environment(
    config: AlgorithmConfig,
    environments: Mapping[str, Any] = MappingProxyType({}),
    *,
    worker_index: int = 1,
    vector_index: int = 0,
) -> Any:
    """Return one environment of a configuration, made as RLlib makes it, with an `env_config` of its own.

    `environments` makes those that a script has registered and Ray does not know here. The two numbers are those of the
    runner, and of the environment in it.
    """
    workers = max(config.num_env_runners or 0, 1)
    context = EnvContext(config.env_config, worker_index=worker_index, vector_index=vector_index, num_workers=workers)
    if callable(config.env):
        return config.env(context)
    name = str(config.env)
    if (maker := environments.get(name) or maker_of(name)) is not None:
        return maker(context)
    if name.startswith("ale_py:ALE/"):
        gymnasium.register_envs(importlib.import_module("ale_py"))
    return gymnasium.make(name, **dict(context))


def of_gymnasium(spec: Any, context: Mapping[str, Any]) -> gymnasium.Env:
    """Return an environment that a script registered with Gymnasium, with the arguments in `env_config`."""
    return gymnasium.make(spec, **dict(context))


def with_spaces(config: AlgorithmConfig) -> AlgorithmConfig:
    """Return a configuration with the spaces of its environment, which is made where nobody has said them."""
    if config.observation_space is not None or config.is_multi_agent:
        return config
    known, own = config.copy(copy_frozen=False), int(config.num_env_runners or 0) + 1  # of no runner of the training
    environment = make_environment(config, worker_index=own)
    known.environment(observation_space=environment.observation_space, action_space=environment.action_space)
    environment.close()
    return known


# --- a space -------------------------------------------------------------------------------------------------------


def _of_space(spec: StudySpec, spaces: Spaces, *, waits: bool) -> AlgorithmConfig:
    config = _algorithm(spec.algorithm)
    config.environment(
        env=_registered(EnvFactory(spec.environment, wait_s=spec.environment.step_wait_ms / 1000 if waits else 0.0)),
        observation_space=spaces.observation_space,
        action_space=spaces.action_space,
        disable_env_checking=True,
    )
    config.env_runners(
        gym_env_vectorize_mode="sync",
        # The connectors hold no state: merging and broadcasting it would be two more calls an iteration. What an
        # asynchronous algorithm merges is what its runners sent, which is none.
        merge_env_runner_states=spec.traits.asynchronous,
        broadcast_env_runner_states=False,
    )
    config.training(grad_clip_by="global_norm")
    config.evaluation(evaluation_config={"env": _registered(EnvFactory(spec.evaluated_environment))})
    config.rl_module(model_config=_network(spec.model, spaces))
    return config


def _algorithm(name: str) -> AlgorithmConfig:
    """Return RLlib's configuration of an algorithm, with what the algorithm is defined by."""
    config: AlgorithmConfig = {"APPO": APPOConfig, "IMPALA": IMPALAConfig}.get(name, PPOConfig)()
    if name == "A2C":
        config.optimizer = "rmsprop"
        # RLlib's own runner may step more than was asked, which must not become a second update. In the one update no
        # ratio differs from 1, and squared errors are not clipped.
        config.training(minibatch_size=None, clip_param=1.0, vf_clip_param=math.inf, kl_target=1.0)
    return config


def _network(spec: NetworkSpec, spaces: Spaces) -> dict[str, Any]:
    # RLlib ignores `fcnet_hiddens` behind convolutions; the layers of the heads are what a reader means by it.
    images = len(spaces.observation_space.shape) > 1
    head = "head_" if images else ""
    given = {
        f"{head}fcnet_hiddens": list(spec.fcnet_hiddens),
        f"{head}fcnet_activation": spec.fcnet_activation,
        "free_log_std": spec.free_log_std,
        "vf_share_layers": spec.vf_share_layers,
    }
    return dataclasses.asdict(DefaultModelConfig(**given | ({"conv_filters": spec.convolutions} if images else {})))


def _registered(factory: EnvFactory) -> str:
    """Make an environment known to Ray under a name of its own, and return the name."""
    content = json.dumps([factory.spec.model_dump(mode="json"), factory.wait_s], sort_keys=True)
    name = f"study-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    register_env(name, factory)
    return name
