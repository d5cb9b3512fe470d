"""Makes the environment that a space names. No Ray, no torch.

A Gymnasium id, `module:Class` of the user's own, or an EnvPool task. Every environment leaves here with float32
observations: images in [0, 1], everything else flat.
"""

import contextlib
import copy
import difflib
import functools
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import gymnasium
from gymnasium import error as gymnasium_error
from gymnasium.envs.registration import namespace
from gymnasium.wrappers import TimeLimit

from study.space.sections import EnvironmentSpec
from study.trial.engine.envs.apart import ApartEnv
from study.trial.engine.envs.envpool_envs import EnvPoolEnv
from study.trial.engine.envs.wrappers import StepLoad, Unusable, layered, observed

ID = "environment.id"
_ALIKE = 0.7
"""How alike an id must be to be proposed, as `difflib` counts: -v5 alone makes many ids half alike."""


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Makes the environment wherever it is unpickled; RLlib calls it with a context that it ignores.

    Attributes:
        spec: The environment.
        waits: Whether each step takes `step_wait_ms` and `step_cpu_ms` longer, as it is meant for training.
    """

    spec: EnvironmentSpec
    waits: bool = False

    def __call__(self, context: Any = None) -> gymnasium.Env:
        """Return a new environment."""
        env = ApartEnv(functools.partial(make_env, self.spec)) if self.spec.process == "own" else make_env(self.spec)
        return _Heavy(env, self.load) if self.load else env

    @property
    def load(self) -> StepLoad:
        """What each step of an environment costs besides itself."""
        if not self.waits:
            return StepLoad()
        return StepLoad(wait_s=self.spec.step_wait_ms / 1000, cpu_s=self.spec.step_cpu_ms / 1000)


class _Heavy(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env, load: StepLoad) -> None:
        super().__init__(env)
        self._load = load

    def step(self, action: Any) -> Any:
        outcome = self.env.step(action)
        self._load.bear()
        return outcome


def make_env(spec: EnvironmentSpec, *, render_mode: str | None = None) -> gymnasium.Env:
    """Return one environment with float32 observations, as `Spaces` says. It never waits.

    Whatever the environment's own constructor raises passes through. Environments of EnvPool have no `render_mode`, and
    draw nothing whatever is asked.

    Raises:
        Unusable: There is no such environment, or it cannot be trained on.
    """
    if spec.backend == "envpool":
        return EnvPoolEnv(spec)
    maker = _find(spec.id)
    kwargs = spec.kwargs if render_mode is None else {**spec.kwargs, "render_mode": render_mode}
    if maker is None:
        return layered(observed(_registered(spec, kwargs)), spec)
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
    return layered(observed(env), spec)


@functools.lru_cache(maxsize=8)
def _has_equal_spaces(one: str, other: str) -> bool:
    """Return whether two environments, as JSON, can be made and have the same observations and actions."""
    with contextlib.ExitStack() as made:
        try:
            envs = [
                made.enter_context(contextlib.closing(make_env(EnvironmentSpec.model_validate_json(each))))
                for each in (one, other)
            ]
        except Exception:  # noqa: BLE001 (what a constructor raises where a package or a library is missing)
            return False
        return len({(env.observation_space.shape, str(env.action_space)) for env in envs}) == 1


def judged_in(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Return the environment in which a policy is judged that is trained in the given one.

    EnvPool's tasks are other implementations. Where Gymnasium has the same task, policies are judged by Gymnasium's, so
    that returns mean the same whoever stepped the training. Arguments and limits are the space's.
    """
    if spec.backend != "envpool" or spec.kwargs or spec.id not in gymnasium.registry:
        return spec
    original = spec.model_copy(update={"backend": "gymnasium"})
    return original if _has_equal_spaces(spec.model_dump_json(), original.model_dump_json()) else spec


def _registered(spec: EnvironmentSpec, kwargs: Mapping[str, Any]) -> gymnasium.Env:
    """Return an environment of Gymnasium's registry without the wrappers that check the caller at every step."""
    name = spec.id.rpartition(":")[2]
    known = copy.copy(gymnasium.spec(name))
    known.order_enforce = False
    return gymnasium.make(known, max_episode_steps=spec.max_episode_steps, disable_env_checker=True, **kwargs)


def _find(env_id: str) -> Any:
    """Return the user's own class, or None when `env_id` is one that Gymnasium knows."""
    module_name, colon, name = env_id.partition(":")
    if not colon:
        if env_id not in gymnasium.registry:
            _check_registered(env_id)
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
            fix = "Check the spelling; it is imported from the directory in which the study was started."
            rule, fix = "the module must exist", package_of(env_id) or _procgen_meant(env_id) or fix
            raise Unusable(where=ID, rule=rule, got=f"'{module_name}'", fix=fix) from error
        rule = f"module '{module_name}' needs '{missing}', which is not installed"
        raise Unusable(where=ID, rule=rule, fix=f"Install {missing} on every node.") from error
    if hasattr(module, name):
        return getattr(module, name)
    if env_id in gymnasium.registry or name in gymnasium.registry:
        return None  # Gymnasium's own `module:Id`: import the module, then look up the id
    near = difflib.get_close_matches(name, dir(module), n=1)
    fix = f"Did you mean '{module_name}:{near[0]}'?" if near else "Name a class of that module."
    raise Unusable(where=ID, rule=f"module '{module_name}' has no '{name}'", fix=fix)


def _check_registered(env_id: str) -> None:
    try:
        load_plugins_for(env_id)
        gymnasium.spec(env_id)
    except gymnasium_error.Error as error:
        if isinstance(error, gymnasium_error.NamespaceNotFound):
            namespace = env_id.partition("/")[0]
            fix = f"Check the spelling, or install the package that registers {namespace}/…, on every node."
        else:
            near = difflib.get_close_matches(env_id, gymnasium.registry, n=1, cutoff=_ALIKE)
            fix = f"Did you mean '{near[0]}'?" if near else "Use an id of Gymnasium, or module:Class of your own."
            fix = _procgen_meant(env_id) or fix
        rule, fix = "no such environment", package_of(env_id) or fix
        raise Unusable(where=ID, rule=rule, got=f"'{env_id}'", fix=fix) from error


def _procgen_meant(env_id: str) -> str | None:
    """Return the fix for an id that names Procgen as others write it."""
    named = "procgen" in env_id.lower()
    return "Games of Procgen are written as 'procgen:coinrun'." if named else None


# --- environments that other packages register ---------------------------------------------------------------------

GROUP = "gymnasium.envs"
_NO_NAMESPACE = ("__root__", "__internal__")


@dataclass(frozen=True, slots=True)
class _Package:
    """A package that registers environments when it is imported: what pip calls it, its module, and its ids."""

    name: str
    module: str
    ids: str


_PACKAGES = (
    _Package("ale-py", "ale_py", r"ALE/|\w+NoFrameskip-v4|\w+Deterministic-v4"),
    _Package("minigrid", "minigrid", r"MiniGrid-|BabyAI-"),
    _Package("miniworld", "miniworld", r"MiniWorld-"),
    _Package("gymnasium-robotics", "gymnasium_robotics", r"(Fetch|Hand|Adroit|Franka|PointMaze|AntMaze)"),
    _Package("highway-env", "highway_env", r"(highway|merge|roundabout|parking|intersection|racetrack)-"),
    _Package("shimmy[dm-control]", "shimmy", r"dm_control/"),
)


def package_of(env_id: str) -> str | None:
    """Return how to get at an environment, `id` or `module:Id`, of a well-known package; None of any other."""
    module, colon, _ = env_id.partition(":")
    for package in _PACKAGES:
        if module == package.module if colon else re.match(package.ids, env_id):
            install = f"Run `pip install '{package.name}'` on every node"
            if colon:
                return f"{install}."
            write = f"rite {package.module}:{env_id}, which imports the package first."
            return f"W{write}" if find_spec(package.module) else f"{install}, and w{write}"
    return None


def load_plugins_for(env_id: str) -> None:
    """Let the installed packages that may know an id register what they have.

    What a package raises meanwhile passes through.
    """
    own, slash, _ = env_id.partition("/")
    for plugin in metadata.entry_points(group=GROUP):
        if plugin.name == own if slash else plugin.name in _NO_NAMESPACE:
            with namespace(own) if slash else contextlib.nullcontext():
                plugin.load()()
