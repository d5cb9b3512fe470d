"""Lets a script run up to where it would train, and notes the configurations that it would train with. Imports Ray.

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
from types import FunctionType
from typing import Any, NoReturn

import ray
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune import registry

from study.adopted.facts import MistakeError
from study.adopted.from_tune import as_config, searched_in
from study.cluster.shipping import OwnModule
from study.hosts.machine import count_gpus
from study.ray_private import refuse_auto_init

EXAMPLES = "run_rllib_example_script_experiment"
"""The function by which RLlib's own examples train."""
_RESTORES = ("restore", "restore_from_path", "load_checkpoint", "set_state", "set_weights")
"""Methods of an algorithm by which a training begins with what another has learnt."""
_OF_PROCESSES = ("env_vars", "working_dir", "py_modules", "excludes", "config", "eager_install")
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
        line: Line of the script; 0 where it is in another file.
        stop: Stop criteria, by RLlib's names of results.
        searched: Setting of the configuration -> the values among which Tune would choose. The copy has one of them.
        folder: The working directory at that line.
    """

    config: AlgorithmConfig
    how: str
    line: int
    stop: Mapping[str, Any] = field(default_factory=dict)
    searched: Mapping[str, Any] = field(default_factory=dict)
    folder: str = field(default_factory=os.getcwd)


class Interception:
    """What a script did: launches, registered environments, and what its calls of `ray.init` say."""

    def __init__(self, script: Path | None) -> None:
        """Patch Ray for the rest of this process.

        Args:
            script: The file that runs; None for an imported module.
        """
        self.launches: list[Launch] = []
        self.used: Launch | None = None
        self.environments: dict[str, Any] = {}
        self.starts_ray = False
        self.variables: dict[str, str] = {}
        self.modules: list[OwnModule] = []
        self.folder = ""
        self.unreadable: MistakeError | None = None
        self._script = script
        self._patch_ray()
        self._patch_tune()
        self._patch_rllib()

    # --- Ray ------------------------------------------------------------------------------------------------------

    def _patch_ray(self) -> None:
        def init(*_: Any, **settings: Any) -> _Context:
            self.starts_ray = True
            self._take(settings.get("runtime_env") or {})
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

    def _take(self, given: Mapping[str, Any]) -> None:
        """Give this process what the script gives to those of Ray; end the script where a study cannot.

        Args:
            given: A runtime environment.
        """
        if others := ", ".join(sorted(name for name in given if name not in _OF_PROCESSES and given[name])):
            self._end(
                rule="trials run in the Python of this command, and `ray.init` must not ask for another",
                got=f"runtime_env with {others}",
                fix=f"Install what it names, here and on every node, and remove {others}.",
            )
        folder, modules = given.get("working_dir"), [_place_of(each) for each in given.get("py_modules") or ()]
        for place in [*modules, *([] if folder is None else [str(folder)])]:
            if not Path(place).exists() or Path(place).suffix in (".zip", ".whl"):
                rule, fix = "what `ray.init` gives to the nodes must be files or folders of this machine", "Name such."
                self._end(rule=rule, got=place, fix=fix)
        variables = given.get("env_vars") or {}
        if wrong := ", ".join(name for name, value in variables.items() if not isinstance(value, str)):
            rule, fix = "what `ray.init` gives to its processes as `env_vars` must be texts", "Write it in quotes."
            self._end(rule=rule, got=f"another value of {wrong}", fix=fix)
        self.variables |= variables
        self.modules = [OwnModule(name=Path(each).stem, paths=(Path(each).resolve(),)) for each in modules]
        self.folder = "" if folder is None else str(Path(folder).resolve())
        sys.path += [*(str(each.paths[0].parent) for each in self.modules), *filter(None, [self.folder])]

    def _end(self, *, rule: str, got: str, fix: str) -> NoReturn:
        """End the script, which trains in a way that a study cannot repeat."""
        where = f"{self._script.name}, line {line}" if self._script and (line := self._line()) else ""
        self.unreadable = MistakeError(where=where, rule=rule, got=got, fix=fix)
        raise Launched from self.unreadable

    # --- Tune -----------------------------------------------------------------------------------------------------

    def _patch_tune(self) -> None:
        register = registry.register_env

        @functools.wraps(register)
        def register_env(name: str, env_creator: Any) -> None:
            self.environments[name] = env_creator
            register(name, env_creator)

        tune.register_env = registry.register_env = register_env

        def construct(tuner: tune.Tuner, trainable: Any = None, **settings: Any) -> None:
            tuner_settings = settings.get("run_config")
            stop = getattr(tuner_settings, "stop", None)
            if _is_algorithm(trainable):
                self._note(settings.get("param_space"), "tune.Tuner", stop=stop, trainable=trainable)
            else:  # its own function is called where Tune would start it
                tuner.__dict__["of_the_script"] = (trainable, settings.get("param_space"))

        def fit(tuner: tune.Tuner) -> NoReturn:
            if (own := vars(tuner).get("of_the_script")) is not None:
                self._call(*own)
            raise Launched

        @functools.wraps(tune.run)
        def run(run_or_experiment: Any, *_: Any, **settings: Any) -> NoReturn:
            if settings.get("restore"):
                self.refuse_restore("tune.run(restore=…)")
            if _is_algorithm(run_or_experiment):
                given, stop = settings.get("config"), settings.get("stop")
                self._note(given, "tune.run", stop=stop, trainable=run_or_experiment)
            else:
                self._call(run_or_experiment, settings.get("config"))
            raise Launched

        tune.Tuner.__init__, tune.Tuner.fit = construct, fit
        tune.Tuner.restore = lambda *_, **__: self._refuse_earlier("tune.Tuner.restore")
        tune.run, tune.with_resources = run, lambda trainable, resources: trainable  # a study sets the resources
        setattr(sys.modules["ray.tune.tune"], "run", run)  # noqa: B010 (a module, whose attributes mypy does not know)

    def _call(self, trainable: Any, parameters: Any) -> None:
        """Run a trainable of the script's own with its parameters, as Tune would."""
        is_function = isinstance(trainable, (functools.partial, FunctionType))
        name = getattr(trainable, "__name__", type(trainable).__name__)
        given = {} if parameters is None else parameters
        searched = searched_in(given) if isinstance(given, dict) else {}
        if not is_function or searched:
            got = f"'{name}'" + (f", for which Tune chooses {', '.join(searched)}" if searched else "")
            self._end(
                rule="what Tune trains must be an algorithm of RLlib, or a function that needs no values of Tune",
                got=got,
                fix="Write a function that returns the AlgorithmConfig, and name it: --config FILE:FUNCTION.",
            )
        trainable(given)

    # --- RLlib ----------------------------------------------------------------------------------------------------

    def _patch_rllib(self) -> None:
        def make(cls: type[Algorithm], *arguments: Any, **settings: Any) -> "NotBuilt":
            content = settings.get("config", arguments[0] if arguments else None)
            environment = settings.get("env", arguments[1] if len(arguments) > 1 else None)
            self._note(content, "build_algo", trainable=cls, environment=environment)
            return NotBuilt(self, self.launches[-1])

        Algorithm.__new__ = make
        Algorithm.from_checkpoint = lambda *_, **__: self._refuse_earlier("Algorithm.from_checkpoint")

    def _refuse_earlier(self, call: str) -> NoReturn:
        """End a script that does not make its configuration itself."""
        self._end(
            rule="the script must hold its configuration",
            got=f"`{call}`, which takes it from an earlier training",
            fix="Name the script that began the training.",
        )

    def refuse_restore(self, call: str) -> NoReturn:
        """End a script whose training goes on from another: a trial begins with new networks."""
        self._end(
            rule="the training must begin with new networks",
            got=f"`{call}`",
            fix="Leave it out, or load weights where each trial does: by `load_state_path` of an RLModuleSpec, or in a "
            "callback `on_algorithm_init`.",
        )

    def _note(
        self, content: Any, how: str, *, trainable: Any = None, stop: Any = None, environment: Any = None
    ) -> None:
        if any(frame.function == EXAMPLES for frame in inspect.stack(context=0)):
            how = EXAMPLES
        try:
            config, searched = as_config({} if content is None else content, trainable)
        except MistakeError as error:
            self._end(rule=error.fault.rule, got=error.fault.got, fix=error.fault.fix)
        if environment is not None:
            config.environment(environment)
        criteria = dict(stop) if isinstance(stop, Mapping) else {}
        self.launches.append(Launch(config=config, how=how, line=self._line(), stop=criteria, searched=searched))

    def _line(self) -> int:
        """Return the line of the script that runs now; 0 where none does."""
        frame = inspect.currentframe()
        while frame is not None:
            if self._script is not None and frame.f_code.co_filename == str(self._script):
                return frame.f_lineno
            frame = frame.f_back
        return 0


class _Context(AbstractContextManager["_Context"]):
    """What `ray.init` returns where no Ray starts."""

    dashboard_url = ""

    def __init__(self) -> None:
        self.address_info: dict[str, Any] = {}

    def __exit__(self, *_: object) -> None:
        return None

    def disconnect(self) -> None:
        """Do nothing: nothing is connected."""


class NotBuilt:
    """Stands for an algorithm that was not built; its first use ends the script."""

    def __init__(self, interception: Interception, launch: Launch) -> None:
        self._interception, self._launch = interception, launch

    def __getattr__(self, name: str) -> NoReturn:
        """End the script, which would use the algorithm now."""
        if name in _RESTORES:
            self._interception.refuse_restore(name)
        self._interception.used = self._launch
        raise Launched


def _is_algorithm(trainable: Any) -> bool:
    return isinstance(trainable, str) or (inspect.isclass(trainable) and issubclass(trainable, Algorithm))


def _place_of(module: Any) -> str:
    """Return where a module is that `ray.init` gives to its processes, as a path or as the module itself."""
    if not isinstance(module, types.ModuleType):
        return str(module)
    return str(module.__path__[0] if hasattr(module, "__path__") else module.__file__)
