"""Lets a script run up to where it would train, and notes the configuration that it would train with. Imports Ray.

Nothing of Ray starts: `ray.init` is skipped; `tune.Tuner`, `tune.run` and the constructor of an algorithm are noted.
The first use of what they would return ends the script, by an exception that `except Exception` does not catch.
"""

import functools
import inspect
import os
import sys
import types
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune import registry
from ray.tune.search.variant_generator import generate_variants, parse_spec_vars

from study.adopted.reading import MistakeError
from study.machine.host import count_gpus
from study.ray_private import refuse_auto_init

NAME_A_FUNCTION = "Write a function that returns the AlgorithmConfig, and name it: --config FILE:FUNCTION."
_RESTORES = ("restore", "restore_from_path", "load_checkpoint", "set_state", "set_weights")
"""Methods of an algorithm by which a training begins with what another has learnt."""
_RUNTIME_ENV = ("env_vars", "working_dir", "excludes", "config", "eager_install")
"""Keys of Ray's `runtime_env` that a study follows, or that make no difference to it."""


class Launched(BaseException):
    """The script would train now: nothing after this line is needed."""


class UsesRay(BaseException):
    """The script would use a running Ray beside the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A configuration that a script would train with.

    Attributes:
        config: A copy of it as it is at that line.
        how: The call by which it would train: `tune.Tuner`.
        stop: Stop criteria, by RLlib's names of results.
        searched: Settings that Tune would choose; the copy has one value of each.
        folder: The working directory at that line.
    """

    config: AlgorithmConfig
    how: str
    stop: Mapping[str, Any] = field(default_factory=dict)
    searched: tuple[str, ...] = ()
    folder: str = field(default_factory=os.getcwd)


def launch_of(content: Any, how: str, *, trainable: Any = None, stop: Any = None) -> Launch:
    """Return the training that a call of Tune, or of an algorithm's constructor, would begin.

    Args:
        content: An `AlgorithmConfig`, or a dictionary of its settings.
        how: The call.
        trainable: The algorithm: a class or RLlib's name of one. None: the configuration's own.
        stop: Stop criteria; only a mapping of them is kept.

    Raises:
        MistakeError: No configuration can be made of it.
    """
    if not isinstance(content, (AlgorithmConfig, Mapping)):
        rule, got = "the parameters of a training must be an AlgorithmConfig", type(content).__name__
        raise MistakeError(rule=rule, got=got, fix="Give Tune an AlgorithmConfig or a dictionary.")
    criteria = dict(stop) if isinstance(stop, Mapping) else {}
    if isinstance(content, AlgorithmConfig):
        config = content.copy(copy_frozen=False)
        searched = _choose(vars(config))
        if trainable is not None:
            algorithm = _algorithm_of(trainable)
            default = algorithm.get_default_config()
            if not isinstance(config, type(default)):  # as the constructor of RLlib's `Algorithm` does
                config = default.update_from_dict(config.to_dict())
            config.algo_class = algorithm
        return Launch(config=config, how=how, stop=criteria, searched=searched)
    settings = dict(content)
    searched = _choose(settings)
    try:
        config = _algorithm_of(trainable).get_default_config().update_from_dict(settings)
    except MistakeError:
        raise
    except Exception as error:
        rule, got = "RLlib must accept the dictionary of settings", f"{type(error).__name__}: {error}"
        raise MistakeError(rule=rule, got=got, fix="Write it as an AlgorithmConfig, such as PPOConfig().") from error
    return Launch(config=config, how=how, stop=criteria, searched=searched)


def _choose(settings: dict[str, Any]) -> tuple[str, ...]:
    """Put one value in the place of each choice of Tune, the same at every reading; return the settings' names."""
    _, domains, grids = parse_spec_vars(settings)
    chosen = {path[0]: settings[path[0]] for path, _ in (*domains, *grids)}
    if chosen:
        settings.update(next(generate_variants(chosen, random_state=0))[1])
    return tuple(sorted(name.strip("_") for name in chosen))


def _algorithm_of(trainable: Any) -> type[Algorithm]:
    try:
        return trainable if inspect.isclass(trainable) else registry.get_trainable_cls(str(trainable))
    except Exception as error:
        rule, fix = "the algorithm must be one of RLlib", "Name one that RLlib has, such as PPO."
        raise MistakeError(rule=rule, got=f"'{trainable}'", fix=fix) from error


class Interception:
    """What a script did: its training, registered environments, and what its calls of `ray.init` say.

    Attributes:
        launch: The training with which the script ended; else the first one that it made ready; None without any.
        refusal: Why the script cannot be studied, once that is known.
        environments: Name -> creator of every environment that the script registered with Tune.
        starts_ray: Whether it called `ray.init`.
        variables: Environment variables that it would give to Ray's processes.
        folder: `working_dir` that it would give to them; empty without one.
    """

    def __init__(self, script: Path) -> None:
        """Patch Ray for the rest of this process, in which the file runs."""
        self.launch: Launch | None = None
        self.refusal: MistakeError | None = None
        self.environments: dict[str, Any] = {}
        self.starts_ray = False
        self.variables: dict[str, str] = {}
        self.folder = ""
        self._script = script
        self._patch_ray()
        self._patch_tune()
        self._patch_algorithms()

    def _note(self, content: Any, how: str, *, trainable: Any, stop: Any = None) -> Launch:
        """Note a training that is ready to begin; end the script where a study cannot repeat it."""
        if not (trainable is None or isinstance(trainable, str) or inspect.isclass(trainable)):
            got = f"'{getattr(trainable, '__name__', type(trainable).__name__)}'"
            self._refuse("what Tune trains must be an algorithm of RLlib", got, NAME_A_FUNCTION)
        try:
            launch = launch_of({} if content is None else content, how, trainable=trainable, stop=stop)
        except MistakeError as error:
            self._refuse(error.fault.rule, error.fault.got, error.fault.fix)
        self.launch = self.launch or launch
        return launch

    def _train(self, launch: Launch) -> NoReturn:
        self.launch = launch
        raise Launched

    def _refuse(self, rule: str, got: str, fix: str) -> NoReturn:
        """End the script, which trains in a way that a study cannot repeat; name its line."""
        lines = [frame.lineno for frame in inspect.stack(context=0) if frame.filename == str(self._script)]
        where = f"{self._script.name}, line {lines[0]}" if lines else ""
        self.refusal = MistakeError(where=where, rule=rule, got=got, fix=fix)
        raise Launched

    def _refuse_earlier(self, call: str) -> NoReturn:
        rule, got = "the script must hold its configuration", f"`{call}`, which takes it from an earlier training"
        self._refuse(rule, got, "Name the script that began the training.")

    def _refuse_restore(self, call: str) -> NoReturn:
        fix = "Leave it out, or load weights where each trial does: by `load_state_path` of an RLModuleSpec, or in a "
        self._refuse("the training must begin with new networks", f"`{call}`", f"{fix}callback `on_algorithm_init`.")

    def _patch_ray(self) -> None:
        def init(*_: Any, **settings: Any) -> _Context:
            self.starts_ray = True
            given = settings.get("runtime_env") or {}
            if others := ", ".join(sorted(name for name in given if name not in _RUNTIME_ENV and given[name])):
                rule = "trials run in the Python of this command, and `ray.init` must not ask for another"
                fix = "Install what it names, here and on every node, or put its folder into `sys.path`."
                self._refuse(rule, f"runtime_env with {others}", fix)
            self.variables |= {name: str(value) for name, value in (given.get("env_vars") or {}).items()}
            if given.get("working_dir"):
                self.folder = str(Path(given["working_dir"]).resolve())
            return _Context()

        def resources() -> dict[str, float]:
            gpus = count_gpus()
            return {"CPU": float(os.cpu_count() or 1), **({"GPU": float(gpus)} if gpus else {})}

        def refuse() -> NoReturn:
            raise UsesRay

        ray.init, ray.shutdown = init, lambda *_, **__: None
        ray.is_initialized = lambda: self.starts_ray
        ray.cluster_resources = ray.available_resources = resources
        ray.nodes = list
        refuse_auto_init(refuse)

    def _patch_tune(self) -> None:
        register = registry.register_env

        @functools.wraps(register)
        def register_env(name: str, env_creator: Any) -> None:
            self.environments[name] = env_creator
            register(name, env_creator)

        def construct(
            tuner: tune.Tuner, trainable: Any = None, *, param_space: Any = None, run_config: Any = None, **_: Any
        ) -> None:
            stop = getattr(run_config, "stop", None)
            tuner.__dict__["launch"] = self._note(param_space, "tune.Tuner", stop=stop, trainable=trainable)

        @functools.wraps(tune.run)
        def run(run_or_experiment: Any, *_: Any, **settings: Any) -> NoReturn:
            if settings.get("restore"):
                self._refuse_restore("tune.run(restore=…)")
            given, stop = settings.get("config"), settings.get("stop")
            self._train(self._note(given, "tune.run", stop=stop, trainable=run_or_experiment))

        tune.register_env = registry.register_env = register_env
        tune.Tuner.__init__, tune.Tuner.fit = construct, lambda tuner: self._train(vars(tuner)["launch"])
        tune.Tuner.restore = lambda *_, **__: self._refuse_earlier("tune.Tuner.restore")
        tune.run, tune.with_resources = run, lambda trainable, resources: trainable  # a study sets the resources
        setattr(sys.modules["ray.tune.tune"], "run", run)  # noqa: B010 (a module, whose attributes mypy does not know)

    def _patch_algorithms(self) -> None:
        """Let `build_algo`, `build` and constructors build nothing; the first use of an algorithm is the training."""

        def construct(algorithm: Algorithm, config: Any = None, env: Any = None, *_: Any, **__: Any) -> None:
            launch = self._note(config, "build_algo", trainable=type(algorithm))
            if env is not None:
                launch.config.environment(env)
            object.__setattr__(algorithm, "launch_of_the_script", launch)

        def use(algorithm: Algorithm, name: str) -> Any:
            launch = object.__getattribute__(algorithm, "__dict__").get("launch_of_the_script")
            if launch is None or name.startswith("__"):
                return object.__getattribute__(algorithm, name)
            return self._refuse_restore(name) if name in _RESTORES else self._train(launch)

        Algorithm.__init__, Algorithm.__getattribute__ = construct, use
        Algorithm.from_checkpoint = lambda *_, **__: self._refuse_earlier("Algorithm.from_checkpoint")


class _Context(AbstractContextManager["_Context"]):
    """What `ray.init` returns where no Ray starts."""

    dashboard_url = ""
    address_info: Mapping[str, Any] = types.MappingProxyType({})

    def __exit__(self, *_: object) -> None:
        return None

    def disconnect(self) -> None:
        """Do nothing: nothing is connected."""
