"""Makes the environment that a space names. No Ray, no torch.

A Gymnasium id, `module:Class` of the user's own, or an EnvPool task (`envpool_envs`).
"""

import copy
import difflib
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import error as gymnasium_error
from gymnasium.wrappers import TimeLimit

from study.space.sections import EnvironmentSpec
from study.trial.engine.envs.envpool_envs import EnvPoolEnv, EnvPoolLanes
from study.trial.engine.envs.lane_envs import ID, GymnasiumLanes, Unusable, observed

_ALIKE = 0.7
"""How alike an id must be to be proposed, as `difflib` counts: -v5 alone makes many ids half alike."""


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Makes the environment wherever it is unpickled; RLlib calls it with a context that it ignores.

    Attributes:
        spec: The environment.
        waits: Whether each step takes `step_wait_ms` longer, as it is meant for training.
    """

    spec: EnvironmentSpec
    waits: bool = False

    def __call__(self, context: Any = None) -> gymnasium.Env:
        """Return a new environment."""
        env = make_env(self.spec)
        return _Waiting(env, self.wait_s) if self.wait_s else env

    @property
    def wait_s(self) -> float:
        """Seconds that each step takes longer."""
        return self.spec.step_wait_ms / 1000 if self.waits else 0.0


class _Waiting(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env, wait_s: float) -> None:
        super().__init__(env)
        self._wait_s = wait_s

    def step(self, action: Any) -> Any:
        outcome = self.env.step(action)
        time.sleep(self._wait_s)
        return outcome


def make_env(spec: EnvironmentSpec, *, render_mode: str | None = None) -> gymnasium.Env:
    """Return one environment with float32 observations; it never waits.

    Whatever the environment's own constructor raises passes through. Environments of EnvPool have no `render_mode`, and
    draw nothing whatever is asked.

    Raises:
        Unusable: There is no such environment, or it cannot be trained on.
    """
    if spec.backend == "envpool":
        return EnvPoolEnv(spec)
    maker = _find(spec.id)
    kwargs = spec.kwargs if render_mode is None else {**spec.kwargs, "render_mode": render_mode}
    if maker is None:  # of Gymnasium's registry, without the wrappers that check the caller at every step
        known = copy.copy(gymnasium.spec(spec.id.rpartition(":")[2]))
        known.order_enforce = False
        env = gymnasium.make(known, max_episode_steps=spec.max_episode_steps, disable_env_checker=True, **kwargs)
        return observed(env)
    # Nothing else is called: any function of any module would do what its name in a space file says.
    if not isinstance(maker, type) or not issubclass(maker, gymnasium.Env):
        got = str(getattr(maker, "__name__", type(maker).__name__))
        fix = "Name a class that is derived from gymnasium.Env."
        raise Unusable(where=ID, rule="must make a gymnasium.Env", got=got, fix=fix)
    if any(base.__name__ == "MultiAgentEnv" for base in maker.__mro__):  # RLlib's, which nothing here imports
        rule, got = "must be for one agent", f"the MultiAgentEnv {maker.__name__}"
        raise Unusable(where=ID, rule=rule, got=got, fix="Use an environment for one agent.")
    env = maker(**kwargs)
    if spec.max_episode_steps is not None:
        env = TimeLimit(env, spec.max_episode_steps)
    return observed(env)


def _find(env_id: str) -> Any:
    """Return the user's own class, or None when `env_id` is one that Gymnasium knows."""
    module_name, colon, name = env_id.partition(":")
    procgen = "Games of Procgen are written as 'procgen:coinrun'." if "procgen" in env_id.lower() else ""
    if not colon:
        try:
            gymnasium.spec(env_id)
        except gymnasium_error.Error as error:
            near = difflib.get_close_matches(env_id, gymnasium.registry, n=1, cutoff=_ALIKE)
            fix = "Write module:Class of your own, or module:Id of a package that registers it, as ale_py:ALE/Pong-v5."
            fix = procgen or (f"Did you mean '{near[0]}'?" if near else fix)
            raise Unusable(where=ID, rule="no such environment", got=f"'{env_id}'", fix=fix) from error
        return None
    if not all(part.isidentifier() for part in module_name.split(".")):
        rule = "what is before the colon must be a module's name"
        fix = "Write module:Class, or package.module:Class; start the study in the module's folder."
        raise Unusable(where=ID, rule=rule, got=f"'{module_name}'", fix=fix)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            fix = "Check the spelling: it is imported from the directory in which the study was started, or installed."
            rule = "the module must exist"
            raise Unusable(where=ID, rule=rule, got=f"'{module_name}'", fix=procgen or fix) from error
        rule = f"module '{module_name}' needs '{missing}', which is not installed"
        raise Unusable(where=ID, rule=rule, fix=f"Install {missing} on every node.") from error
    if hasattr(module, name):
        return getattr(module, name)
    if env_id in gymnasium.registry or name in gymnasium.registry:
        return None  # Gymnasium's own `module:Id`: import the module, then look up the id
    near = difflib.get_close_matches(name, dir(module), n=1)
    fix = f"Did you mean '{module_name}:{near[0]}'?" if near else "Name a class of that module."
    raise Unusable(where=ID, rule=f"module '{module_name}' has no '{name}'", fix=fix)


def make_lane_envs(
    make: Callable[[], gymnasium.Env] | EnvFactory, seeds: Sequence[int]
) -> GymnasiumLanes | EnvPoolLanes:
    """Make lanes on the backend that the environment asks for.

    Args:
        make: Makes one environment. An `EnvFactory` also says which backend; anything else is Gymnasium's.
        seeds: Seed of each lane's first reset, shape (num_envs,), at least one.

    Raises:
        Unusable: The environment cannot be made.
    """
    if isinstance(make, EnvFactory) and make.spec.backend == "envpool":
        return EnvPoolLanes(make.spec, seeds, wait_s=make.wait_s)
    return GymnasiumLanes(make, seeds)
